"""The drawing Space in a browser, as a person uses it."""

import re
from typing import Any


def wait_for_status(page: Any, pattern: str, seconds: float = 120) -> None:
    """Wait until the page says something."""
    from playwright.sync_api import expect

    expect(page.locator("#status p").first).to_have_text(re.compile(pattern), timeout=1000 * seconds)


def press_draw(page: Any, prompt: str | None = None) -> None:
    """Fill in a prompt, if there is one, and press the button as soon as a press counts."""
    if prompt is not None:
        page.get_by_label("Prompt", exact=True).fill(prompt)
    page.get_by_role("button", name="Draw", exact=True).click()
