"""The HTTP client of `huggingface_hub` for programs that fork, use several threads and run for months."""

import os
from http import HTTPStatus

import httpx2
from huggingface_hub import set_client_factory
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import _http

REQUEST_TIMEOUT_SECONDS = 300.0
"""How long a request may wait for the Hub's next bytes: longer than a commit of many files takes to answer."""


def install_hub_client(timeout_seconds: float = REQUEST_TIMEOUT_SECONDS) -> None:
    """Give this process, and its forks, a client whose requests time out and which closes nothing in a fork.

    The client of `huggingface_hub` has no time limit, and closes itself in every forked child. For that it takes a lock
    that another thread may have held at the moment of the fork: a peer that streams its data while hivemind forks would
    deadlock. A child may simply drop the client; the connections are its parent's.

    It also closes itself after every refused connection, while other threads use it, and another thread may find no
    client at all at that moment: an outage of the Hub would end a peer that streams. It needs no closing, since every
    request opens a connection if there is none.
    """

    def make_client() -> httpx2.Client:
        client = _http.default_client_factory()
        client.timeout = timeout_seconds
        close, owner = client.close, os.getpid()
        vars(client)["close"] = lambda: close() if os.getpid() == owner else None
        return client

    set_client_factory(make_client)
    _http.close_session = lambda: None


def is_outage(error: Exception) -> bool:
    """Return whether a request failed because the Hub is down or overloaded: a retry may succeed."""
    if isinstance(error, HfHubHTTPError):
        status = error.response.status_code
        return status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR
    return isinstance(error, (ConnectionError, TimeoutError, httpx2.TransportError))
