"""Plain pages for a person with a browser: what repositories there are and what is in them. No scripts."""

from pathlib import PurePosixPath
from urllib.parse import quote

from fastapi import APIRouter, Response
from fastapi.responses import HTMLResponse

from ...printing.marked_up import escaped
from ..store.history import list_commits, resolve_revision
from ..store.repositories import list_repositories
from ..store.trees import entries_below, find_entry
from .request_parts import AccessOf, CallerOf, Storage

router = APIRouter()
COMMITS_SHOWN = 20
CARD_BYTES_SHOWN = 200_000
PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".gif")
STYLE = """body{font:16px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}
table{border-collapse:collapse;width:100%}td{padding:.2em .8em .2em 0;border-bottom:1px solid #ddd}
td.n{text-align:right;white-space:nowrap}pre{background:#f6f6f6;padding:1em;overflow:auto;white-space:pre-wrap}
img{max-width:100%}.q{color:#777}a{color:#14c;text-decoration:none}"""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src 'self'",
    "X-Content-Type-Options": "nosniff",
}


@router.get("/")
def index(caller: CallerOf, storage: Storage) -> Response:
    """Show the public repositories (a browser carries no token)."""
    with storage.database.reading() as connection:
        rows = [
            [_link("/" + it.url_path, it.full_name), it.type, it.created_at[:16].replace("T", " "), _lock(it.private)]
            for it in list_repositories(connection, caller)
        ]
    listing = _table(rows) if rows else "<p>There is no public repository yet.</p>"
    return _page("Embedded Hub", f"<h1>Embedded Hub</h1>{listing}")


@router.get("/{kind}/{namespace}/{name}")
@router.get("/{namespace}/{name}")
def repository_page(access: AccessOf) -> Response:
    """Show a repository: a model's page has no kind in its address."""
    with access.reading() as (connection, repository):
        head = resolve_revision(connection, repository, "main")
        entries = entries_below(connection, head, "")
        commits = list_commits(connection, head, COMMITS_SHOWN)
        readme = find_entry(connection, head, "README.md")
    base = f"/{repository.url_path}/resolve/main/"
    files = [[_link(base + quote(row["path"]), row["path"]), f"{row['size']:,} bytes"] for row in entries]
    history = [[escaped(row["title"]), row["created_at"][:16].replace("T", " "), row["oid"][:8]] for row in commits]
    pictures = "".join(
        f'<p><img src="{escaped(base + quote(row["path"]))}" alt="{escaped(row["path"])}"></p>'
        for row in entries
        if PurePosixPath(row["path"]).suffix.lower() in PICTURES and "/" not in row["path"]
    )
    card = ""
    if readme is not None:
        with access.storage.objects.path_of(readme["sha256"]).open("rb") as file:
            text = file.read(CARD_BYTES_SHOWN).decode("utf-8", "replace")
        card = f"<h2>Card</h2><pre>{escaped(text)}</pre>"
    title = f"{escaped(repository.full_name)} <span class=q>{repository.type} {_lock(repository.private)}</span>"
    body = f'<p><a href="/">All repositories</a></p><h1>{title}</h1>{pictures}'
    return _page(repository.full_name, f"{body}<h2>Files</h2>{_table(files)}{card}<h2>Commits</h2>{_table(history)}")


def _page(title: str, body: str) -> Response:
    head = f'<meta charset="utf-8"><title>{escaped(title)}</title><style>{STYLE}</style>'
    return HTMLResponse(f"<!doctype html><html lang=en><head>{head}</head><body>{body}</body></html>", headers=HEADERS)


def _table(rows: list[list[str]]) -> str:
    """Return a table of cells that are HTML already."""
    return f"<table>{''.join('<tr>' + ''.join(f'<td>{cell}</td>' for cell in row) + '</tr>' for row in rows)}</table>"


def _link(address: str, text: str) -> str:
    return f'<a href="{escaped(address)}">{escaped(text)}</a>'


def _lock(private: bool) -> str:
    return "private" if private else ""
