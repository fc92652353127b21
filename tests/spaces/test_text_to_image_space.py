"""The drawing Space starts from its bundle in a fresh interpreter; people and programs get pictures or a message.

It draws from a run on an embedded Hub of its own, with two published epochs and an index of the training data.
"""

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from agent_client import use_tools
from browsing import each_size, needs_browser, serious_findings, take_picture, watched_page
from drawing_page import press_draw, wait_for_status
from huggingface_hub import HfApi, constants
from PIL import Image
from swarm_of_processes import tiny_run
from tiny_run_parts import tiny_model, write_tiny_run

from hub_tools.local_hub import LocalHub
from pipelines.core.run.training_run import TrainingRun
from pipelines.features.publishing.metrics.sample_gallery import SampleGallery
from pipelines.tasks.text_to_image.image_codes.image_code_record import (
    ImageCodeLayout,
    image_code_table,
    write_image_code_shard,
)
from pipelines.tasks.text_to_image.image_codes.vqgan_codec import VQGANCodec

SPACE = Path(__file__).parents[2] / "spaces" / "text_to_image_demo"
HOSTILE_CAPTION = "<img src=x onerror=document.title='hacked'> a [red](javascript:alert) **star**"
NUM_RECORDS = 24
REEL_PROMPTS = ("a blue star", "<i>a red star</i>")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning"),  # inside huggingface_hub's LFS upload
]


@pytest.fixture(scope="module")
def own_hub(tmp_path_factory):
    """A Hub that a test may stop."""
    constants.HF_HUB_DISABLE_XET = True  # what `prepare_hub_client` does where HF_ENDPOINT is set
    with LocalHub(tmp_path_factory.mktemp("hub")) as hub:
        hub.alice_token = hub.create_user("alice")
        hub.create_organization("org", members={"alice": "admin"})
        yield hub


@pytest.fixture(scope="module")
def api(own_hub):
    return HfApi(endpoint=own_hub.endpoint, token=own_hub.alice_token)


def publish(api, folder, name, repo_type="model"):
    api.create_repo(name, repo_type=repo_type, exist_ok=True)
    return api.upload_folder(repo_id=name, repo_type=repo_type, folder_path=folder).oid


@pytest.fixture(scope="module")
def parts(api, tmp_path_factory):
    """Codec, CLIP and dataset on the Hub; returns the folder with the run, which has no weights yet."""
    folder = tmp_path_factory.mktemp("parts")
    write_tiny_run(folder, "org/codec", "org/clip")
    (folder / "run" / "model.safetensors").unlink()
    codec = VQGANCodec.from_pretrained(folder / "codec")
    layout = ImageCodeLayout(codec_fingerprint=codec.fingerprint, codebook_size=12, grid_size=4)
    captions = [HOSTILE_CAPTION, *(f"a {color} star number {i}" for i in range(12) for color in ("red", "blue"))]
    codes = np.random.default_rng(0).integers(0, 12, (NUM_RECORDS, 16))
    (folder / "data").mkdir()
    write_image_code_shard(
        folder / "data" / "train-00000.parquet", image_code_table(captions[:NUM_RECORDS], codes, layout)
    )
    publish(api, folder / "codec", "org/codec")
    publish(api, folder / "clip", "org/clip")
    dataset_revision = publish(api, folder / "data", "org/data", "dataset")
    run = TrainingRun(run_id="tiny", model_config={}, dataset_repository="org/data", dataset_revision=dataset_revision)
    (folder / "run" / "training_run.json").write_text(run.to_json())
    return folder


@pytest.fixture(scope="module")
def published_run(api, parts):
    """A run with two published epochs; returns their commits."""
    commits = {}
    drawn = Image.new("RGB", (4 * 16, 2 * 16), "red")
    gallery = SampleGallery(tiny_run(reel_prompts=REEL_PROMPTS), parts / "run" / "progress_reel", lambda *_: drawn)
    gallery.add(12, None, now=1.0)
    for epoch in (7, 12):
        tiny_model(300, seed=epoch).save_pretrained(parts / "run")
        (parts / "run" / "run_state.json").write_text(json.dumps({"epoch": epoch}))
        commits[epoch] = publish(api, parts / "run", "org/run")
        api.create_tag("org/run", tag=f"epoch-{epoch}", revision=commits[epoch])
    return commits


@pytest.fixture(scope="module")
def index_command(own_hub, published_run, tmp_path_factory):
    """The command that indexes the run's dataset and publishes the index, when it has ended."""
    output = tmp_path_factory.mktemp("index") / "index"
    command = [sys.executable, "-m", "pipelines.command_line.main", "run", "index", "org/run", "--output", output]
    environment = {**os.environ, **own_hub.environment(own_hub.alice_token), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, "--publish", "org/run-index"], env=environment, capture_output=True, text=True, timeout=240
    )


@pytest.fixture(scope="module")
def environment(own_hub, published_run, index_command):
    return {
        **os.environ,
        **own_hub.environment(),
        "MODEL_REPOSITORY": "org/run",
        "TRAINING_INDEX": "org/run-index",
        "EXAMPLES": "a red star|a large green circle on the left",
        "MAX_CANDIDATES": "8",
        "MAX_QUEUE": "4",
        "DEVICE": "cpu",
        "OMP_NUM_THREADS": "1",
    }


def draw(client, prompt="a red star", candidates=4, keep=2, seed=0, **more):
    return client.predict(prompt, candidates, keep, 8, 1.0, 1.0, seed, **more, api_name="/draw")


def pixels(pictures):
    return [Image.open(picture["image"]).tobytes() for picture in pictures]


def test_the_index_command_reads_the_runs_dataset_and_publishes(index_command):
    assert index_command.returncode == 0, index_command.stderr
    assert "24 records in 1 part (0 from before)" in index_command.stdout
    assert index_command.stdout.splitlines()[-1] == "For the Space: TRAINING_INDEX=org/run-index"


def test_the_bundle_holds_all_it_needs_and_nothing_of_other_stages(bundle):
    files = {str(path.relative_to(bundle)) for path in bundle.rglob("*.py")}
    assert {
        "app.py",
        "pipelines/tasks/text_to_image/generation/text_to_image.py",
        "pipelines/tasks/text_to_image/image_codes/vqgan_codec.py",
    } <= files
    assert "pipelines/tasks/text_to_image/generation/training_index.py" in files
    foreign = (
        "pipelines/features/publishing/auxiliary",
        "pipelines/tasks/choice",
        "pipelines/tasks/language_modeling",
        "pipelines/tasks/text_to_image/task",
        "pipelines/tasks/text_to_image/data_preparation",
    )
    assert not [file for file in files if file.startswith(foreign)]


def test_a_program_gets_ranked_pictures_and_the_same_ones_for_the_same_seed(client, published_run):
    pictures, message = draw(client)
    drawn_by = rf"Drawn by epoch 12 \(commit {published_run[12][:8]}\) in \d+ s. Seed 0\."
    expected = f"The best 2 of 4 candidates, best first. {drawn_by}"
    assert re.fullmatch(expected, message)
    assert [picture["caption"] for picture in pictures] == ["best match of 4", "2nd of 4"]
    with Image.open(pictures[0]["image"]) as picture:
        assert picture.size == (16, 16) and picture.format == "PNG"
    again, other = draw(client)[0], draw(client, seed=1)[0]
    assert pixels(again) == pixels(pictures) != pixels(other)


def test_an_agent_draws_a_picture(address):
    asked = dict(prompt="a red star", candidates=4, keep=2, top_k=8, seed=0)
    tools, (drawn,) = use_tools(address, ("draw", asked))
    assert "caption" in tools["draw"].description and "prompt" in tools["draw"].inputSchema["properties"]
    assert not drawn.isError, drawn.content
    text = " ".join(part.text for part in drawn.content if part.type == "text")
    assert "The best 2 of 4 candidates" in text and "best match of 4" in text


@pytest.mark.long
def test_an_older_epoch_and_guidance_draw_other_pictures(client, published_run):
    older, message = draw(client, checkpoint="epoch-7")
    assert f"Drawn by epoch 7 (commit {published_run[7][:8]})" in message
    by_commit = draw(client, checkpoint=published_run[7])[0]
    assert pixels(by_commit) == pixels(older) != pixels(draw(client)[0])
    assert pixels(draw(client, guidance=4.0)[0]) != pixels(draw(client)[0])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (dict(prompt=" "), "Prompt 1 of 1 is empty: say what the pictures should show."),
        (dict(candidates=2, keep=3), "Cannot keep 3 of 2 candidates"),
        (dict(prompt="a" * 10_001), "The prompt has 10,001 characters, expected text of at most 10,000."),
        (dict(checkpoint="epoch-8"), "The model repository org/run has no such revision"),
        (dict(checkpoint="main; rm"), "There is no checkpoint 'main; rm'"),
    ],
)
def test_bad_input_is_a_message_and_the_space_goes_on(client, values, message):
    pictures, said = draw(client, **values)
    assert pictures == [] and said.startswith(message)


def test_long_prompts_in_any_script_are_drawn(client):
    for prompt in ("маленькая красная звезда " * 400, "鳥" * 9_999):
        pictures, message = draw(client, prompt=prompt)
        assert len(pictures) == 2
        assert re.search(r"The prompt is too long: the model did not read its last [\d,]+ tokens.", message)


@pytest.mark.long
def test_impatient_visitors_are_told_that_the_queue_is_full_and_the_space_goes_on(client):
    jobs = [client.submit("a red star", 8, 2, 8, 1.0, 1.0, seed, api_name="/draw") for seed in range(60)]
    errors = [error for job in jobs if (error := job.exception(timeout=120)) is not None]
    assert 0 < len(errors) < 60
    assert {type(error).__name__ for error in errors} == {"QueueError"}
    assert len(draw(client)[0]) == 2


@pytest.mark.long
def test_a_space_without_a_run_says_which_setting_is_missing(bundle):
    environment = {name: value for name, value in os.environ.items() if name != "MODEL_REPOSITORY"}
    result = subprocess.run([sys.executable, "app.py"], cwd=bundle, env=environment, capture_output=True, text=True)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == "MODEL_REPOSITORY is not set. Name the run: MODEL_REPOSITORY=ORG/RUN"
    assert "Traceback" not in result.stderr


def drawn_files(page):
    """Return the contents of the finished pictures."""
    sources = page.locator("#drawn img").evaluate_all("images => images.map(image => image.src)")
    return [page.request.get(source).body() for source in sources]


ALL_CRISP = """() => {
    const loaded = [...document.querySelectorAll("#drawn img, #seen img")].filter(image => image.complete);
    const isCrisp = i => i.naturalWidth === 16 && i.width > 64 && getComputedStyle(i).imageRendering === "pixelated";
    return loaded.some(image => image.closest("#seen")) && loaded.every(isCrisp);
}"""
"""The codec's pictures of 16 pixels are shown much larger, and not blurred; those below the screen are loaded later."""


@needs_browser
@each_size
def test_a_person_draws_shares_and_completes_pictures_in_a_browser(address, size, tmp_path):
    from playwright.sync_api import expect

    with watched_page(address, size) as page:
        page.get_by_text("After epoch 12: press one for its caption").wait_for()
        page.locator("#by-itself button.thumbnail-lg").last.click()
        expect(page.get_by_label("Prompt", exact=True)).to_have_value(REEL_PROMPTS[1])
        take_picture(page, "text_to_image_empty", tmp_path)
        below = page.get_by_role("button", name="Draw", exact=True).bounding_box()
        status = page.locator("#status").bounding_box()
        assert status["y"] < below["y"] + below["height"] + 250, "a phone shows it beside the button"
        # A tiny model is fast: what was on the page only for a moment is noted.
        page.evaluate(
            """() => new MutationObserver(() => {
                window.sawPreview ||= document.body.innerText.includes("candidate 1");
            }).observe(document.body, {childList: true, subtree: true, characterData: true})"""
        )
        page.get_by_label("number input for Candidates").fill("8")
        press_draw(page, "a red star <b>bold</b>")
        wait_for_status(
            page, r"^The best 4 of 8 candidates, best first. Drawn by epoch 12 .*No training caption has .*“bold”"
        )
        assert page.evaluate("window.sawPreview")
        page.get_by_text("Result 4, 4th of 8").wait_for()
        page.screenshot(path=str(tmp_path / "first_screen.png"))
        box = page.locator("#drawn img").first.bounding_box()
        assert box["y"] + box["height"] < page.viewport_size["height"], "pictures are on the first screen"
        page.wait_for_function(ALL_CRISP)
        page.get_by_text(HOSTILE_CAPTION).first.wait_for()
        assert page.title() == "Text to image, trained together"
        assert "Searched 24 training records." in page.get_by_label("What the numbers mean").input_value()
        page.get_by_text(re.compile(r"8 candidates will take about \d+ s here \(cpu\)")).wait_for()
        take_picture(page, "text_to_image_demo", tmp_path)
        assert serious_findings(page, ignored=("aria-prohibited-attr",)) == []  # of Gradio's gallery
        first, link = drawn_files(page), page.locator("#link a").get_attribute("href")
        assert re.fullmatch(r"\?prompt=a\+red\+star[^&]+&candidates=8&seed=\d+&checkpoint=epoch-12", link)
        draw_more(page, first)
        page.goto(f"{address}{link}&__theme=dark")
        wait_for_status(page, r"^The link's prompt and settings are filled in: press Draw.")
        assert page.get_by_label("Prompt", exact=True).input_value() == "a red star <b>bold</b>"
        press_draw(page)
        page.get_by_text("Result 4, 4th of 8").wait_for()
        assert drawn_files(page) == first
        take_picture(page, "text_to_image_dark", tmp_path)
        assert serious_findings(page, ignored=("aria-prohibited-attr",)) == []
        complete_a_picture(page, tmp_path)
        page.get_by_role("button", name="Checkpoint and settings").click()
        page.get_by_label("Checkpoint", exact=True).click()
        page.get_by_role("option", name="epoch 7").click()
        press_draw(page)
        wait_for_status(page, r"Drawn by epoch 7 \(commit")
        press_draw(page, "  ")
        wait_for_status(page, r"is empty: say what the pictures should show")
        page.goto(f"{address}?prompt=a&candidates=many")
        wait_for_status(page, r"^The link cannot be used. candidates is 'many', expected a whole number.")
        page.goto(f"{address}?checkpoint=epoch-7")
        wait_for_status(page, r"^The link's checkpoint is selected: type a prompt.")


def draw_more(page, first):
    """Again with a new seed, then a variation of its second picture; both are kept, as is the first drawing."""
    page.get_by_role("button", name="Draw again").click()
    page.locator("#earlier img").nth(1).wait_for()
    again = drawn_files(page)
    assert again != first
    page.locator("#drawn button.thumbnail-lg").nth(1).click()
    page.get_by_role("button", name="Vary picture 2").wait_for()
    page.keyboard.press("Escape")
    page.locator("#drawn .preview").wait_for(state="hidden")
    page.get_by_role("button", name="Vary picture 2").click()
    page.get_by_text("The link does not include the picture that was varied.").wait_for()
    page.locator("#earlier img").nth(2).wait_for()
    varied = drawn_files(page)
    assert varied != again

    with page.expect_download() as download:
        page.get_by_role("button", name="Download all").click()
    assert re.fullmatch(r"a-red-star-b-bold-b-seed-\d+.zip", download.value.suggested_filename)
    with zipfile.ZipFile(download.value.path()) as archive:
        assert [archive.read(f"a-red-star-b-bold-b-{number}.png") for number in (1, 2, 3, 4)] == varied
    page.locator("#earlier button.thumbnail-lg").last.click()
    page.get_by_text("The link does not include the picture that was varied.").wait_for(state="hidden")
    assert drawn_files(page) == first


def complete_a_picture(page, tmp_path):
    (tmp_path / "notes.png").write_text("no picture")
    Image.effect_mandelbrot((64, 64), (-2, -1, 1, 1), 9).save(tmp_path / "fractal.png")
    page.get_by_role("button", name="Complete a picture").click()
    page.locator("input[type=file]").set_input_files(tmp_path / "notes.png")
    page.get_by_label("Problem with this picture").wait_for()
    assert "notes.png is not a picture" in page.get_by_label("Problem with this picture").input_value()
    page.get_by_label("Clear", exact=True).click()
    page.locator("input[type=file]").set_input_files(tmp_path / "fractal.png")
    page.get_by_alt_text("The picture to complete").wait_for()
    page.get_by_label("Rows of codes to keep (0: half)").fill("3")
    press_draw(page)
    page.get_by_text("The link does not include the picture that was completed.").wait_for(timeout=60_000)
    take_picture(page, "text_to_image_completed", tmp_path)


def test_while_the_hub_is_away_the_space_draws_with_what_it_has_and_says_what_is_missing(client, own_hub, address):
    expected = draw(client)[0]
    own_hub.stop()
    pictures, message = draw(client)
    assert "Drawn by epoch 12" in message and pixels(pictures) == pixels(expected)
    pictures, message = draw(client, checkpoint="epoch-7")
    assert pictures == [] and message.startswith(f"Cannot reach the Hub at {own_hub.endpoint}")
    assert len(draw(client)[0]) == 2
