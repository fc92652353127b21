"""A page of a Space in headless Chromium, watched: foreign requests and errors of its scripts fail the test."""

import contextlib
import functools
import http.server
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
SIZES = {"desktop": (1280, 900), "phone": (390, 844)}
AXE_RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa")

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine: apt-get install chromium")
# A page of ours is looked at on a phone by the landing page's tests; a page of Gradio, which arranges it, in long ones.
each_size = pytest.mark.parametrize("size", ["desktop", pytest.param("phone", marks=pytest.mark.long)])


class PageErrors:
    """What a page's scripts complain about, except while it is left for another: then the browser cuts its streams off.

    Gradio takes that for a broken connection if it hears of it before it is gone.
    """

    def __init__(self) -> None:
        self.seen: list[str] = []
        self._is_leaving = False

    def watch(self, page: Any) -> None:
        """Note the errors of a page from now on."""

        def leads_away(request: Any) -> bool:
            return request.is_navigation_request() and request.frame == page.main_frame

        def on_request(request: Any) -> None:
            self._is_leaving |= leads_away(request)

        def on_answer(request: Any) -> None:
            self._is_leaving &= not leads_away(request)

        def on_arrival(frame: Any) -> None:
            self._is_leaving &= frame != page.main_frame

        page.on("request", on_request)
        page.on("framenavigated", on_arrival)
        for event in ("requestfinished", "requestfailed"):  # it may have been a file to save: then nothing arrives
            page.on(event, on_answer)
        page.on("pageerror", lambda error: self._note(str(error)))
        page.on("console", lambda line: self._note(line.text) if line.type == "error" else None)

    def _note(self, text: str) -> None:
        if not self._is_leaving:
            self.seen.append(text)


@contextlib.contextmanager
def watched_page(
    address: str, size: str = "desktop", *, allowed: tuple[str, ...] = (), expected_error: str = ""
) -> Iterator[Any]:
    """Open an address at one of `SIZES`; afterwards nobody but it and `allowed` may have been asked for anything.

    `expected_error` begins the lines that the browser itself writes to the console where something is meant to fail.
    """
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is missing: pip install playwright")
    width, height = SIZES[size]
    own = (address.partition("?")[0].rstrip("/"), "data:", "blob:", *allowed)
    foreign: list[str] = []
    errors = PageErrors()
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        try:
            page = browser.new_page(viewport=dict(width=width, height=height))
            page.on("request", lambda seen: None if seen.url.startswith(own) else foreign.append(seen.url))
            errors.watch(page)
            page.goto(address)
            yield page
            assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "wider than the screen"
        finally:
            browser.close()
    unexpected = [error for error in errors.seen if not (expected_error and error.startswith(expected_error))]
    # pytest shows compared values only in files of tests, and this is none.
    assert foreign == [], f"asked others: {foreign}"
    assert unexpected == [], f"errors on the page: {unexpected}"


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder's files, as a static Space is served."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            pass

    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def take_picture(page: Any, name: str, tmp_path: Path) -> None:
    """Save the whole page as `NAME_WIDTH.png` in the folder of `SCREENSHOTS`, or in the test's own."""
    folder = Path(os.environ.get("SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=str(folder / f"{name}_{page.viewport_size['width']}.png"), full_page=True)


def serious_findings(page: Any, ignored: tuple[str, ...] = ()) -> list[str]:
    """Return what axe finds serious or critical in the page's accessibility; `ignored` names rules."""
    import axe_playwright_python

    page.evaluate((Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8"))
    found = page.evaluate("rules => axe.run(document, {runOnly: rules})", list(AXE_RULES))
    return [
        f"{violation['id']}: {violation['help']}: {node['target']}"
        for violation in found["violations"]
        if violation["impact"] in ("serious", "critical") and violation["id"] not in ignored
        for node in violation["nodes"]
    ]
