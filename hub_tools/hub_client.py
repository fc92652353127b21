"""The HTTP client of `huggingface_hub` for programs that fork, use several threads and run for months; and a request to
addresses that a stranger has named."""

import asyncio
import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

import httpx2
from huggingface_hub import set_client_factory
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
from huggingface_hub.utils import _http, hf_raise_for_status

from hub_tools.foreign.json_texts import parse_json

REQUEST_TIMEOUT_SECONDS = 300.0
"""How long a request may wait for the Hub's next bytes: longer than a commit of many files takes to answer."""

MAX_ANSWER_BYTES = 65_536

PASSING_STATUSES = frozenset({408, 409, 425, 429, 500, 502, 503, 504, *range(520, 530)})
"""Of a Hub, or something on the way to it, that is down, overloaded, or busy with another commit."""

REFUSED_BY_XET = re.compile(r"HTTP status client error \(40[13] ")
"""In a ConnectionError of the library for contents, which raises no other."""

NETWORK_VARIABLES = ("ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR")


class NotTheHubError(OSError):
    """Something on the way to the Hub has answered in its place: a login page of the network, or a filter."""


class NetworkSettingsError(ValueError):
    """The variables of this machine's proxy or certificates cannot be used."""


class HubClient(httpx2.Client):
    """A client that names what is wrong with the token, the proxy, or an answer that is not the Hub's."""

    def __init__(self, timeout_seconds: float) -> None:
        self._owner = os.getpid()
        hooks: dict[str, list[Any]] = {"request": [_http.hf_request_event_hook]}
        with _network_settings_named():
            super().__init__(event_hooks=hooks, follow_redirects=True, timeout=timeout_seconds)

    def build_request(self, method: str, url: httpx2.URL | str, **options: Any) -> httpx2.Request:
        """Raise ValueError for a token that no Hub has; the HTTP library's own errors would show all of it."""
        token = str(dict(options.get("headers") or ()).get("authorization", "")).removeprefix("Bearer ")
        for place, letter in enumerate(token, start=1):
            if not "!" <= letter <= "~":
                raise ValueError(
                    f"Your Hub token has {letter!a} at place {place}; expected letters, digits and underscores. "
                    "Copy it again, set HF_TOKEN to it, or run: hf auth login"
                )
        return super().build_request(method, url, **options)

    def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Raise NotTheHubError for a web page where the Hub sends none."""
        answer = super().send(request, **options)
        if is_not_the_hub_s(request, answer):
            answer.close()
            raise NotTheHubError(
                f"What answers {request.url.host}{request.url.path} is not the Hub: a web page of "
                f"{answer.url.host}. Open any page in a browser and log in to the network (hotel, company), or check "
                "HF_ENDPOINT and the proxy's variables"
            )
        if request.url.path.endswith("/api/validate-yaml") and answer.status_code not in (200, 400):
            hf_raise_for_status(answer)  # the client would first read JSON, which other answers may not be
        return answer

    def close(self) -> None:
        """Close nothing in a fork: the connections are its parent's."""
        if os.getpid() == self._owner:
            super().close()


def is_not_the_hub_s(request: httpx2.Request, answer: httpx2.Response) -> bool:
    """Tell from its headers whether an answer is a page of something else: of the Hub's API, and about files."""
    if answer.status_code == 511:  # Network Authentication Required
        return True
    is_page = answer.headers.get("content-type", "").lower().startswith("text/html")
    if "/resolve/" in request.url.path:
        has_left = answer.has_redirect_location and answer.url.join(answer.headers["location"]).host != request.url.host
        is_known = "x-repo-commit" in answer.headers
        return request.method == "HEAD" and answer.status_code < 400 and not is_known and (is_page or has_left)
    return "/api/" in request.url.path and answer.status_code < 300 and is_page


def install_hub_client(timeout_seconds: float = REQUEST_TIMEOUT_SECONDS) -> None:
    """Give this process, and its forks, a client whose requests time out and which closes nothing in a fork.

    The client of `huggingface_hub` has no time limit, and closes itself in every forked child. For that it takes a lock
    that another thread may have held at the moment of the fork: a peer that streams its data while hivemind forks would
    deadlock. A child may simply drop the client; the connections are its parent's.

    It also closes itself after every refused connection, while other threads use it, and another thread may find no
    client at all at that moment: an outage of the Hub would end a peer that streams. It needs no closing, since every
    request opens a connection if there is none.
    """
    set_client_factory(lambda: HubClient(timeout_seconds))
    _http.close_session = lambda: None


def is_outage(error: BaseException | None) -> bool:
    """Return whether a request failed because the Hub is down, busy or overloaded: a retry may succeed."""
    if isinstance(error, HfHubHTTPError):
        return error.response.status_code in PASSING_STATUSES
    if isinstance(error, (RuntimeError, LocalEntryNotFoundError)):  # of an upload's thread; neither there nor here
        return is_outage(error.__cause__)
    is_final = isinstance(error, (httpx2.UnsupportedProtocol, httpx2.LocalProtocolError)) or is_refusal(error)
    if is_final or "CERTIFICATE" in str(error):
        return False
    return isinstance(error, (ConnectionError, TimeoutError, NotTheHubError, httpx2.TransportError))


def is_refusal(error: BaseException | None) -> bool:
    """Return whether the Hub did not let this token read or write, or an error that it caused says so."""
    if isinstance(error, HfHubHTTPError):
        return error.response.status_code in (401, 403)
    if isinstance(error, ConnectionError) and REFUSED_BY_XET.search(str(error)):
        return True
    return error is not None and is_refusal(error.__cause__)


@contextlib.contextmanager
def _network_settings_named() -> Iterator[None]:
    """Turn what making a client raises into a NetworkSettingsError; a proxy's address may have a password."""
    try:
        yield
    except ImportError:
        raise NetworkSettingsError(
            f"{_set_variables('socks')} names a SOCKS proxy, for which a package is missing. "
            "Install it: pip install socksio"
        ) from None
    except (ValueError, OSError, httpx2.InvalidURL) as error:
        reason = "" if "://" in str(error) or "@" in str(error) else f" ({error})"
        raise NetworkSettingsError(
            f"{_set_variables()} cannot be used{reason}: expected proxies such as http://HOST:PORT or "
            "socks5://HOST:PORT, names of hosts, and files of certificates. Correct or unset them"
        ) from None


def _set_variables(beginning: str = "") -> str:
    """Return the names of the variables about the network that are set, and begin so."""
    values = {name: os.environ.get(name.lower()) or os.environ.get(name) or "" for name in NETWORK_VARIABLES}
    return ", ".join(name for name, value in values.items() if value and value.startswith(beginning)) or "The proxy"


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
        with _network_settings_named():
            made = httpx2.AsyncClient(timeout=seconds, trust_env=trust_env, follow_redirects=False)
        async with (
            asyncio.timeout(seconds),
            made as client,
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
