"""Which pages in a browser may call a page's program: its own, and no other.

Any page that somebody opens can send requests to localhost, and one that resolves its own name to 127.0.0.1 can read
the answers as well. Gradio looks at neither: it only tells the browser not to show other pages some of the answers.
"""

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from hub_tools.printing.printable import printable

OWN_ADDRESS = "GRADIO_ROOT_PATH"
"""The variable with the address of a page behind a proxy, such as `https://my-page.example`."""


def own_pages_only(environment: Mapping[str, str], *within: Middleware, has_login: bool = False) -> dict[str, object]:
    """Return what Gradio's `launch` takes as `app_kwargs`, so that pages of others are refused; `within` is for others.

    On the Hub only if visitors log in: other pages may use the rest, as programs do.
    """
    is_on_hub = bool(environment.get("SPACE_ID"))
    guard = [Middleware(OwnPages, environment=environment)] if has_login or not is_on_hub else []
    return dict(middleware=[*guard, *within])


def refusal(host: str, origin: str | None, environment: Mapping[str, str]) -> str:
    """Return why a request with these headers is refused; empty if it is not. `origin` is None for programs."""
    known = {urlsplit(environment.get(OWN_ADDRESS, "")).netloc, environment.get("SPACE_HOST", "")} - {""}
    if not environment.get("SPACE_ID") and host not in known and not _is_nobodys(host):
        return (
            f"This page was asked for as {printable(host)[:80]!r}, which a stranger may have named. Open it by its IP "
            f"address or as localhost, or name its address: {OWN_ADDRESS}=https://HOST"
        )
    if origin is not None and origin.partition("://")[2] not in {host, *known}:
        return f"Requests from {printable(origin)[:80]!r}, another page than this one, are not answered."
    return ""


class OwnPages:
    """Answers 403 to requests that only another page sends."""

    def __init__(self, application: ASGIApp, *, environment: Mapping[str, str]) -> None:
        self._application, self._environment = application, environment

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: Mapping[str, str] = Headers(scope=scope) if scope["type"] in ("http", "websocket") else {}
        if headers and (reason := refusal(headers.get("host", ""), headers.get("origin"), self._environment)):
            await PlainTextResponse(reason, 403)(scope, receive, send)
        else:
            await self._application(scope, receive, send)


def _is_nobodys(host: str) -> bool:
    """Return whether no stranger can have this name resolved: an IP address, or a name of the local network."""
    name = ""
    try:
        name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
        ipaddress.ip_address(name)
    except ValueError:
        return name.endswith((".local", ".localhost")) or (bool(name) and "." not in name)
    return True
