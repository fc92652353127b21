"""The calculator's Space starts from its bundle in a fresh interpreter; people and programs get figures or messages."""

import os
import shutil
from pathlib import Path

import gradio_client
import pytest

SPACE = Path(__file__).parents[2] / "spaces" / "memory_calculator"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DESKTOP, PHONE = (1280, 900), (390, 844)

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture(scope="module")
def environment():
    return {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        "RUN": "my-org/birds",
    }


def ask(client, *, model="GPT-2 S", repository="", micro_batch=4, machine=None):
    values = [model, repository, micro_batch, 0, "fp32", "none", "adam", "32", False, False, 0, 1, False]
    if machine:
        return client.predict(machine, *values, api_name="/find")
    return client.predict(*values, api_name="/estimate")


def test_the_bundle_holds_the_estimate_and_nothing_heavy(bundle):
    files = {str(path.relative_to(bundle)) for path in bundle.rglob("*.py")}
    assert {"app.py", "pipelines/training/memory_estimate/estimate.py"} <= files
    assert not [file for file in files if file.startswith(("modeling_dalle_collab", "pipelines/generation"))]
    assert "pipelines/training/training_peer.py" not in files


def test_a_program_gets_figures_and_settings_that_fit(client):
    summary, picture, fits, command = ask(client)
    assert summary.startswith("GPT-2 S, 124 million parameters:")
    assert 'role="img"' in picture and "T4" in fits
    assert command.startswith("# Only our model")
    assert ask(client, machine="T4 (Colab)")[0].startswith("Fits T4 (Colab)")


def test_bad_input_is_a_message_and_the_space_goes_on(client):
    assert "is no name of a repository" in ask(client, repository="<b>not a name</b>")[0]
    with pytest.raises(gradio_client.exceptions.AppError, match="-3 is less than minimum value 1"):
        ask(client, micro_batch=-3)
    assert ask(client)[0].startswith("GPT-2 S")


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine: apt-get install chromium")
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_a_person_turns_the_dials_compares_and_finds_settings(address, size, tmp_path):
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install playwright"
    )
    pictures = Path(os.environ.get("SCREENSHOTS", tmp_path))
    pictures.mkdir(parents=True, exist_ok=True)
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport=dict(width=size[0], height=size[1]))
        foreign, errors = [], []
        page.on("request", lambda seen: foreign.append(seen.url) if is_foreign(seen.url, address) else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(address)
        summary = page.get_by_label("In short")
        page.locator(".memory .bar").first.wait_for(timeout=120_000)
        assert "126 million parameters" in summary.input_value()
        page.get_by_role("button", name="Keep as A and compare").click()
        page.get_by_role("button", name="Stop comparing").wait_for(timeout=60_000)
        page.get_by_label("fp32", exact=True).check()
        page.wait_for_function("document.body.innerText.includes('A, GPU')", timeout=60_000)
        page.get_by_role("button", name="Find settings that fit").click()
        page.wait_for_function(
            "[...document.querySelectorAll('textarea')].some(area => area.value.startsWith('Fits T4'))", timeout=60_000
        )
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "wider than the screen"
        page.screenshot(path=str(pictures / f"memory_calculator_{size[0]}.png"), full_page=True)
        browser.close()
    assert foreign == [] and errors == []


def is_foreign(url: str, address: str) -> bool:
    return not url.startswith((address.rstrip("/"), "data:", "blob:"))
