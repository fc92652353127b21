"""A repository's Markdown card as HTML: HTML in it is shown as text, and nothing of other machines is loaded."""

import re
from collections.abc import Iterator
from urllib.parse import quote, urljoin, urlsplit

from markdown_it import MarkdownIt
from markdown_it.token import Token

from ...printing.marked_up import escaped
from .cards import FRONT_MATTER

LONGEST_HEADER = 20_000
_MARKDOWN = MarkdownIt("js-default", {"html": False})
_TABLES, _CODE = re.compile(r"(<table>.*?</table>)", re.DOTALL), re.compile(r"<pre>")


def rendered_card(text: str, files: str) -> str:
    """Return the HTML of a card; `files` is the address below which its repository's files are, ending in a slash."""
    match = FRONT_MATTER.match(text)
    header = "" if match is None else match.group(1)[:LONGEST_HEADER]
    tokens = _MARKDOWN.parse(text if match is None else text[match.end() :])
    for token in _every(tokens):
        _point_home(token, quote(files))
    body = _MARKDOWN.renderer.render(tokens, _MARKDOWN.options, {})
    # What is wide is moved, not the page, also with the keyboard.
    body = _CODE.sub('<pre tabindex="0">', _TABLES.sub(r'<div class="scroll" tabindex="0">\1</div>', body))
    shown = f"<details><summary>Header</summary><pre>{escaped(header)}</pre></details>" if header else ""
    return f'<article class="card">{shown}{body}</article>'


def _every(tokens: list[Token]) -> Iterator[Token]:
    for token in tokens:
        yield token
        yield from _every(token.children or [])


def _point_home(token: Token, files: str) -> None:
    """Let names of files lead into the repository; a picture of another machine becomes a link to it."""
    if token.type == "link_open":
        address = str(token.attrGet("href") or "")
        if not address.startswith("#"):
            token.attrSet("href", urljoin(files, address))
        token.attrSet("rel", "noopener noreferrer nofollow")
    elif token.type == "image":
        address = urljoin(files, str(token.attrGet("src") or ""))
        if urlsplit(address).netloc or address.startswith("data:"):
            token.type, token.tag, token.content = "text", "", f"[picture: {token.content} {address[:200]}]"
        else:
            token.attrSet("src", address)
