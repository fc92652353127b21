"""Plain pages for a person with a browser: what repositories there are and what is in them. No scripts."""

from collections.abc import Mapping
from http import HTTPStatus
from urllib.parse import quote

from fastapi import APIRouter, Response
from fastapi.responses import HTMLResponse

from ...counted import file_size
from ...printing.marked_up import escaped
from ..store.history import list_commits, resolve_revision
from ..store.repositories import list_repositories
from ..store.trees import entries_below, find_entry
from .rendered_card import rendered_card
from .request_parts import AccessOf, CallerOf, Storage

router = APIRouter()
COMMITS_SHOWN = 20
CARD_BYTES_SHOWN = 200_000
STYLE = """:root{color-scheme:light dark;
--ink:#1f2328;--dim:#59636e;--line:#d8dee4;--soft:#f6f8fa;--link:#0b57d0;--page:#fff}
@media (prefers-color-scheme:dark){:root{
--ink:#e6edf3;--dim:#9aa4af;--line:#30363d;--soft:#161b22;--link:#6cb0ff;--page:#0d1117}}
body{font:16px/1.55 system-ui,sans-serif;max-width:54rem;margin:0 auto;padding:1.5rem 1rem 4rem;
color:var(--ink);background:var(--page)}
h1,h2,h3{line-height:1.25;text-wrap:balance;overflow-wrap:anywhere}h2{margin-top:2.2rem}
.card{border:1px solid var(--line);border-radius:10px;padding:1rem 1.4rem;margin:1.2rem 0}
.card h1{margin-top:.6rem}.card h2{border-bottom:1px solid var(--line);padding-bottom:.25rem}
.card tr:has(th):not(:has(th:not(:empty))){display:none}.card>p,.card li{overflow-wrap:anywhere}.scroll{overflow-x:auto}
.card td:first-child,.card th{white-space:nowrap}
table{border-collapse:collapse;width:100%;font-size:.94rem}
td,th{padding:.3rem .8rem .3rem 0;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}
.files td:first-child{overflow-wrap:anywhere}
.files td:last-child{color:var(--dim);white-space:nowrap;text-align:right;padding-right:0}
pre{background:var(--soft);border-radius:8px;padding:.8rem 1rem;overflow:auto;font-size:.88rem}
code{background:var(--soft);border-radius:4px;padding:.1em .3em;font-size:.88em;overflow-wrap:anywhere}
pre code{padding:0;font-size:1em}img{max-width:100%;height:auto;border-radius:6px}
summary,.q{color:var(--dim)}a{color:var(--link);text-underline-offset:.15em}
@media(max-width:30rem){.card{padding:.4rem .9rem}}"""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src 'self'",
    "X-Content-Type-Options": "nosniff",
}


@router.get("/")
def index(caller: CallerOf, storage: Storage) -> Response:
    """Show the public repositories (a browser carries no token)."""
    with storage.database.reading() as connection:
        rows = [
            [_link("/" + it.url_path, it.full_name), it.type, _date(it.created_at), _lock(it.private)]
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
    files = [[_link(base + quote(row["path"]), row["path"]), file_size(row["size"])] for row in entries]
    history = [[escaped(row["title"]), row["oid"][:8], _date(row["created_at"])] for row in commits]
    card = ""
    if readme is not None:
        with access.storage.objects.path_of(readme["sha256"]).open("rb") as file:
            card = rendered_card(file.read(CARD_BYTES_SHOWN).decode("utf-8", "replace"), base)
    kind = f"<span class=q>{repository.type} {_lock(repository.private)}</span>"
    place = f'<p><a href="/">All repositories</a> / <b>{escaped(repository.full_name)}</b> {kind}</p>'
    card = card or f"<h1>{escaped(repository.full_name)}</h1>"
    return _page(repository.full_name, f"{place}{card}<h2>Files</h2>{_table(files)}<h2>Commits</h2>{_table(history)}")


def problem_page(message: str, status: int, headers: Mapping[str, str]) -> Response:
    """Return a page that says why there is none."""
    title = "Not found" if status in (401, 404) else HTTPStatus(status).phrase
    body = f'<h1>{title}</h1><p>{escaped(message)}</p><p><a href="/">All repositories</a></p>'
    return _page(title, body, status=status, headers=headers)


def _page(title: str, body: str, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escaped(title)}</title><style>{STYLE}</style>"
    )
    page = f"<!doctype html><html lang=en><head>{head}</head><body>{body}</body></html>"
    return HTMLResponse(page, status_code=status, headers={**(headers or {}), **HEADERS})


def _table(rows: list[list[str]]) -> str:
    """Return a table of cells that are HTML already."""
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table class=files>{body}</table>"


def _link(address: str, text: str) -> str:
    return f'<a href="{escaped(address)}">{escaped(text)}</a>'


def _date(created_at: str) -> str:
    return f"{created_at[:16].replace('T', ' ')} UTC"


def _lock(private: bool) -> str:
    return "private" if private else ""
