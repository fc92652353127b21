"""A page of a Space in headless Chromium, watched: foreign requests and errors of its scripts fail the test."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
SIZES = {"desktop": (1280, 900), "phone": (390, 844)}
AXE_RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa")

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine: apt-get install chromium")


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
    errors: list[str] = []
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        try:
            page = browser.new_page(viewport=dict(width=width, height=height))
            page.on("request", lambda seen: None if seen.url.startswith(own) else foreign.append(seen.url))
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
            page.goto(address)
            yield page
            assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "wider than the screen"
        finally:
            browser.close()
    unexpected = [error for error in errors if not (expected_error and error.startswith(expected_error))]
    assert foreign == [] and unexpected == []


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
