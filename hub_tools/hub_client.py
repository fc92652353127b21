"""The HTTP client of `huggingface_hub` for programs that fork, use several threads and run for months; and a request to
addresses that a stranger has named."""

import asyncio
import os
from collections.abc import Mapping
from http import HTTPStatus

import httpx2
from huggingface_hub import set_client_factory
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import _http

from hub_tools.foreign.json_texts import parse_json

REQUEST_TIMEOUT_SECONDS = 300.0
"""How long a request may wait for the Hub's next bytes: longer than a commit of many files takes to answer."""

MAX_ANSWER_BYTES = 65_536


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


def request_json(
    method: str,
    address: str,
    *,
    seconds: float,
    body: Mapping[str, object] | None = None,
    headers: Mapping[str, str] | None = None,
    trust_env: bool = True,
) -> tuple[int, object]:
    """Return the status and the JSON value of an answer of at most `MAX_ANSWER_BYTES`, complete after `seconds`.

    Redirects are not followed. Without `trust_env` no proxy of the environment is asked.

    Raises:
        httpx2.HTTPError, OSError: no answer in time.
        ValueError: the answer is too long, or is not JSON.
    """

    async def ask() -> tuple[int, bytes]:
        content = bytearray()
        async with (
            asyncio.timeout(seconds),
            httpx2.AsyncClient(timeout=seconds, trust_env=trust_env, follow_redirects=False) as client,
            client.stream(
                method, address, json=body, headers={"Accept-Encoding": "identity", **(headers or {})}
            ) as answer,
        ):
            async for chunk in answer.aiter_raw():
                content += chunk
                if len(content) > MAX_ANSWER_BYTES:
                    raise ValueError(f"the answer is longer than {MAX_ANSWER_BYTES} bytes")
        return answer.status_code, bytes(content)

    # A loop of its own, of which the thread knows nothing afterwards: hivemind asks for the thread's.
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        status, content = runner.run(ask())
    return status, parse_json(content)
