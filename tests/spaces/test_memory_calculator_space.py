"""The calculator's Space starts from its bundle in a fresh interpreter; people and programs get figures or messages."""

import os
from pathlib import Path

import gradio_client
import pytest
from browsing import each_size, needs_browser, serious_findings, take_picture, watched_page

SPACE = Path(__file__).parents[2] / "spaces" / "memory_calculator"

HAS_TEXT = "text => [...document.querySelectorAll('textarea')].some(area => area.value.includes(text))"

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture(scope="module")
def environment(hub):
    return {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        "HF_ENDPOINT": hub.endpoint,
        "RUN": "my-org/birds",
    }


def ask(client, *, model="GPT-2 S", repository="", micro_batch=4, machine=None):
    values = [model, repository, micro_batch, 0, "fp32", "none", "adam", "32", False, False, 0, 1, False]
    if machine:
        return client.predict(*machine, *values, api_name="/find")
    return client.predict(*values, api_name="/estimate")[:4]


def test_the_bundle_holds_the_estimate_and_its_table(bundle):
    files = {str(path.relative_to(bundle)) for path in bundle.rglob("*.py")}
    assert {
        "app.py",
        "pipelines/features/memory_estimate/estimate.py",
        "pipelines/features/memory_estimate/architectures.py",
    } <= files
    assert (bundle / "pipelines/features/memory_estimate/model_table.json").is_file()
    assert not [file for file in files if file.startswith("pipelines/tasks/text_to_image/generation")]
    assert "pipelines/core/peer/training_peer.py" not in files


def test_a_program_gets_figures_and_settings_that_fit(client):
    summary, picture, fits, command = ask(client)
    assert summary.startswith("GPT-2 S, 124 million parameters:")
    assert 'role="img"' in picture and "T4" in fits
    assert command.startswith("# The command for joining")
    assert "samples at once fit 15 GiB of GPU memory and 12.7 GiB of RAM" in ask(client, machine=(15, 12.7))[0]


def test_bad_input_is_a_message_and_the_space_goes_on(client):
    assert "is not the name of a repository" in ask(client, repository="<b>not a name</b>")[0]
    with pytest.raises(gradio_client.exceptions.AppError, match="-3 is less than minimum value 1"):
        ask(client, micro_batch=-3)
    assert ask(client)[0].startswith("GPT-2 S")


@needs_browser
@each_size
def test_a_person_turns_the_dials_compares_and_finds_settings(address, size, tmp_path):
    with watched_page(address, size) as page:
        summary = page.get_by_label("Summary")
        page.locator(".memory .bar").first.wait_for(timeout=120_000)
        assert "These figures are not of my-org/birds: " in page.locator("#unread").inner_text()
        assert "126 million parameters" in summary.input_value()
        page.get_by_role("button", name="Keep as A and compare").click()
        page.get_by_role("button", name="Stop comparing").wait_for(timeout=60_000)
        page.get_by_label("Model, where none is named above").click()
        page.get_by_role("option", name="Our model, 256 codes for a picture (VQ-16)").click()
        page.wait_for_function(HAS_TEXT, arg="For a picture B computes 0.40 times as much as A.", timeout=60_000)
        take_picture(page, "memory_calculator_codecs", tmp_path)
        page.get_by_label("fp32", exact=True).check()
        page.wait_for_function("document.body.innerText.includes('A, GPU')", timeout=60_000)
        page.get_by_role("button", name="More settings").click()
        page.get_by_role("button", name="Find the largest that fits").click()
        assert (
            page.get_by_label("Optimizer in RAM").is_disabled() and page.get_by_label("Optimizer in RAM").is_checked()
        )
        page.wait_for_function(HAS_TEXT, arg="fit 15 GiB of GPU memory", timeout=60_000)
        take_picture(page, "memory_calculator", tmp_path)
        assert serious_findings(page) == []
