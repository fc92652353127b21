"""The pages of a run: each links to the others, and where a link to it is shared the run's newest picture is shown.

Both are written into the HTML that Gradio serves, so they are there before its scripts have started: chats and search
engines run none. Gradio's own tags would show Gradio's picture.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hub_tools.endpoint import current_endpoint
from hub_tools.places import is_repository_name
from hub_tools.printing.marked_up import escaped
from hub_tools.publishing.page_settings import HUB, SPACE_VARIABLES, preview_of_links

NAMES = {
    "landing_page": "The run",
    "training_dashboard": "Dashboard",
    "text_to_image_demo": "Draw",
    "memory_calculator": "Memory",
    "join_training": "Join",
}
"""What the pages are called in the links, in their order, by the project's names for the Spaces."""

SHARED_TAGS = re.compile(r'<meta\s+(?:property|name)="(?:og|twitter):[^>]*>')
STYLE = """<style>
#pages { display: flex; flex-wrap: wrap; gap: 0 1.25rem; max-width: 1280px; width: 100%; box-sizing: border-box;
  margin: 0 auto; padding: .5rem 1rem 0; font: 500 .9375rem/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
#pages > * { padding: .25rem 0; color: #4338ca; text-decoration: none; }
#pages > a:hover { text-decoration: underline; }
#pages > [aria-current] { color: #15171f; font-weight: 650; }
.dark #pages > * { color: #a5b4fc; }
.dark #pages > [aria-current] { color: #eceef7; }
</style>"""


@dataclass(frozen=True, kw_only=True)
class RunPage:
    """One of the pages, and where the others are."""

    own: str
    """The project's name for this Space."""
    run: str = ""
    """Repository `ORG/RUN`; empty if there is none on the Hub."""
    places: Mapping[str, str] = field(default_factory=dict)
    """Addresses of the other pages by the project's names for their Spaces."""

    @classmethod
    def from_environment(cls, own: str, environment: Mapping[str, str]) -> Self:
        """Read the variables. Raises ValueError for a value that is neither the name of a Space nor an address."""
        places = {
            name: space_address(variable, environment.get(variable, "")) for name, variable in SPACE_VARIABLES.items()
        }
        run = environment.get("RUN", environment.get("MODEL_REPOSITORY", "")).strip()
        return cls(
            own=own,
            run=run if is_repository_name(run) else "",
            places={name: place for name, place in places.items() if place and name != own},
        )

    def links(self) -> str:
        """Return the links to the pages, this one among them; empty if no other page is known."""
        links = [
            f'<span aria-current="page">{escaped(text)}</span>'
            if name == self.own
            # In a new tab: on the Hub a page is shown inside a frame, which the Hub's pages refuse.
            else f'<a href="{escaped(self.places[name])}" target="_blank" rel="noopener">{escaped(text)}</a>'
            for name, text in NAMES.items()
            if name == self.own or name in self.places
        ]
        return f'{STYLE}<nav id="pages" aria-label="Pages of this run">{"".join(links)}</nav>' if self.places else ""

    def written_into(self, page: str) -> str:
        """Return Gradio's HTML with the links, and with what a chat shows of a link to the page."""
        head, separator, rest = page.partition("<script")  # behind it is JSON, which may hold anything
        body, opened, content = rest.partition("<gradio-app")
        title = " · ".join(filter(None, (NAMES[self.own], self.run)))
        shared = f'<meta property="og:title" content="{escaped(title)}">\n'
        if self.run:
            shared += preview_of_links({HUB: current_endpoint(), "run": self.run})
            shared += '<meta name="twitter:card" content="summary_large_image">\n'
        return SHARED_TAGS.sub("", head) + shared + separator + body + self.links() + opened + content

    def middleware(self) -> Middleware:
        """Return what writes it into the page that a program serves at `/`."""
        return Middleware(WrittenPages, page=self)


class WrittenPages:
    """Changes the HTML at `/`, nothing else."""

    def __init__(self, application: ASGIApp, *, page: RunPage) -> None:
        self._application, self._page = application, page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "GET" or scope["path"] not in ("", "/"):
            await self._application(scope, receive, send)
            return
        begun: list[Message] = []
        content = bytearray()

        async def collect(message: Message) -> None:
            if message["type"] == "http.response.start" and _is_html(message):
                begun.append(message)
            elif message["type"] != "http.response.body" or not begun:
                await send(message)
            else:
                content.extend(message.get("body", b""))
                if not message.get("more_body"):
                    written = self._page.written_into(content.decode("utf-8")).encode("utf-8")
                    MutableHeaders(scope=begun[0])["content-length"] = str(len(written))
                    await send(begun[0])
                    await send({"type": "http.response.body", "body": written})

        await self._application(scope, receive, collect)


def space_address(name: str, value: str) -> str:
    """Return the address of a Space, given as an address or as `ORG/SPACE`; raises ValueError for anything else."""
    value = value.strip()
    if not value:
        return ""
    if is_repository_name(value):
        return f"{current_endpoint()}/spaces/{value}"
    parts = urlsplit(value)
    if parts.scheme in ("http", "https") and parts.hostname:
        return value
    raise ValueError(f"{name} is {value[:80]!r}; expected a Space, ORG/SPACE, or an address with https://")


def _is_html(message: Message) -> bool:
    headers = Headers(raw=message["headers"])
    return headers.get("content-type", "").startswith("text/html") and "content-encoding" not in headers
