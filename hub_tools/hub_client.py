"""The HTTP client of `huggingface_hub` for programs that fork and that run for months."""

import os

import httpx2
from huggingface_hub import set_client_factory
from huggingface_hub.utils._http import default_client_factory

REQUEST_TIMEOUT_SECONDS = 300.0
"""How long a request may wait for the Hub's next word: a commit of many files is long in coming, a dead line longer."""


def install_hub_client(timeout_seconds: float = REQUEST_TIMEOUT_SECONDS) -> None:
    """Give this process, and its forks, a client whose requests end and which lets go of nothing in a fork.

    The client of `huggingface_hub` has no time limit, and closes itself in every forked child. For that it takes a lock
    that another thread may have held at the moment of the fork: a peer that streams its data while hivemind forks would
    wait for ever. A child may simply forget the client; the connections are its parent's.
    """

    def make_client() -> httpx2.Client:
        client = default_client_factory()
        client.timeout = timeout_seconds
        close, owner = client.close, os.getpid()
        client.close = lambda: close() if os.getpid() == owner else None
        return client

    set_client_factory(make_client)
