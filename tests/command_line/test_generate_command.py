"""`dalle-collab generate` on a real, tiny run: the grid, the JSON, and one line for every mistake."""

import json
import re
import shutil

import numpy as np
import pytest
import torch
import typer
from huggingface_hub import HfApi, constants
from PIL import Image, ImageOps
from tiny_run_parts import write_tiny_run
from typer.testing import CliRunner

from pipelines.command_line.generate import generate
from pipelines.command_line.main import app as all_commands
from pipelines.tasks.text_to_image.image_codes.vqgan_codec import VQGANCodec

FEW = ["--candidates", "4", "--keep", "2", "--device", "cpu"]
GUIDED = ["--guidance-scale", "4"]
app = typer.Typer()
app.command()(generate)


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    return write_tiny_run(tmp_path_factory.mktemp("parts"))


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_a_mosaic_shows_prompts_side_by_side(run_folder, tmp_path):
    result = invoke(run_folder, "a red star", "a ring", *FEW, "--mosaic", "--output", tmp_path / "grid.png")
    assert result.exit_code == 0, result.output
    with Image.open(tmp_path / "grid.png") as grid:
        assert grid.width == 2 * (216 + 6 + 68) + 24 + 2 * 28 and 216 < grid.height < 2 * 216


def test_a_grid_is_written_for_every_prompt(run_folder, tmp_path):
    output = tmp_path / "pictures" / "grid.png"
    (tmp_path / "prompts.txt").write_text("a large green circle\n\n  маленькая звезда \n", encoding="utf-8")
    result = invoke(run_folder, "a red star", "--prompts", tmp_path / "prompts.txt", *FEW, "--output", output)
    assert result.exit_code == 0, result.output
    assert f"{output}: 6 pictures, best first." in result.output
    for stage in ("sampling: 192 of 192", "decoding: 12 of 12", "ranking: 3 of 3"):
        assert stage in result.output
    with Image.open(output) as grid:
        assert grid.height > 3 * 192


def test_fewer_candidates_than_are_kept_by_default_are_all_kept(run_folder, tmp_path):
    result = invoke(run_folder, "a ring", "--candidates", 2, "--device", "cpu", "--output", tmp_path / "grid.png")
    assert result.exit_code == 0 and "2 pictures, best first." in result.output, result.output


def test_json_names_the_chosen_candidates_and_the_same_seed_repeats_them(run_folder, tmp_path):
    arguments = (run_folder, "a red star", "a green circle", *FEW, "--json", "--output", tmp_path / "grid.png")
    first, again, other = (invoke(*arguments, "--seed", seed) for seed in (3, 3, 4))
    lines = [json.loads(line) for line in first.stdout.splitlines()]
    assert [line["prompt"] for line in lines] == ["a red star", "a green circle"]
    for line in lines:
        assert len(line["pictures"]) == 2 and line["grid"] == str(tmp_path / "grid.png")
        assert line["pictures"][0]["score"] >= line["pictures"][1]["score"]
        assert all(len(picture["image_codes"]) == 16 for picture in line["pictures"])
    assert again.stdout == first.stdout != other.stdout


def test_a_picture_is_completed_from_its_upper_rows(run_folder, tmp_path):
    picture = Image.effect_noise((40, 30), 90).convert("RGB")
    picture.save(tmp_path / "robin.jpg", quality=100)
    codec = VQGANCodec.from_pretrained(run_folder.parent / "codec")
    square = ImageOps.fit(Image.open(tmp_path / "robin.jpg"), (16, 16))
    whole = codec.encode(torch.from_numpy(np.asarray(square).copy()).permute(2, 0, 1)[None] / 255)[0].tolist()
    arguments = (run_folder, "a red star", *FEW, "--json", "--output", tmp_path / "grid.png")
    for options, num_rows in ((["--rows", "3"], 3), ([], 2)):
        done = invoke(*arguments, "--complete", tmp_path / "robin.jpg", *options)
        assert done.exit_code == 0, done.output
        pictures = json.loads(done.stdout.splitlines()[0])["pictures"]
        assert all(drawn["image_codes"][: 4 * num_rows] == whole[: 4 * num_rows] for drawn in pictures)


def test_guidance_changes_what_is_drawn(run_folder, tmp_path):
    arguments = (run_folder, "a red star", *FEW, "--json", "--output", tmp_path / "grid.png")
    plain, guided, one = (invoke(*arguments, *more).stdout for more in ([], GUIDED, ["--guidance-scale", "1"]))
    assert json.loads(guided)["pictures"] and plain == one != guided


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{run}", "a", "--rows", "2"], r"--rows says how much of a picture to keep.*--complete FILE"),
        (["{run}", "a", "--complete", "{tmp}/latin.txt"], r"latin.txt is not a picture that can be read"),
        (["{run}", "a", "--complete", "{tmp}/dot.png", "--rows", "4"], r"4 rows of the picture.*expected 1 to 3"),
        (["{run}", "a", "--candidates", "0"], r"0 candidates were requested: expected at least 1"),
        (["{run}", "a", "--candidates", "2", "--keep", "3"], r"Cannot keep 3 of 2 candidates.*--candidates 3"),
        (["{run}"], r"There is no prompt: say what the pictures should show"),
        (["{run}", "a star", " "], r"Prompt 2 of 2 is empty"),
        (["{run}", "--prompts", "{tmp}/empty.txt"], r"empty.txt has no prompts. Expected one prompt per line"),
        (["{run}", "--prompts", "{tmp}/latin.txt"], r"latin.txt is not UTF-8 text"),
        (["{run}", "--prompts", "{tmp}/gone.txt"], r"gone.txt"),
        (["{run}", "a", "--top-p", "1.5"], r"top_p is 1.5"),
        (["{run}", "a", "--output", "{tmp}/grid"], r"grid does not end in .png"),
        (["{run}", "a", "--weights", "int3"], r"weights is 'int3', expected one of published, int8"),
        (["{run}", "a", "--device", "abacus"], r"There is no device 'abacus'. Expected auto, cpu, cuda"),
        (["{run}", "a", "--codec", "{tmp}"], r"has no vqgan_config.json"),
        (["{run}", "a", "--clip", "{tmp}"], r"has no open_clip_config.json"),
        (["{tmp}/nowhere", "a"], r"There is no folder .*nowhere"),
        (["{tmp}", "a"], r"has no text-to-image model"),
        (["{tmp}/young", "a"], r"has published no checkpoint yet: wait for the auxiliary peer"),
    ],
)
def test_mistakes_are_explained(arguments, message, run_folder, tmp_path):
    (tmp_path / "empty.txt").write_text("\n \n")
    (tmp_path / "latin.txt").write_bytes("größer".encode("latin-1"))
    Image.new("RGB", (1, 1)).save(tmp_path / "dot.png")
    (tmp_path / "young").mkdir()
    (tmp_path / "young" / "training_run.json").write_text("{}")
    filled = [argument.format(run=run_folder, tmp=tmp_path) for argument in arguments]
    if "--output" not in filled:
        filled += ["--output", str(tmp_path / "grid.png")]
    result = invoke(*filled)
    with pytest.raises((ValueError, OSError), match=message):
        raise result.exception
    assert not (tmp_path / "grid.png").exists()


@pytest.mark.parametrize(
    ("command", "architecture", "message"),
    [
        ("generate", "GPT2LMHeadModel", r"writes texts. To have it do so: dalle-collab write"),
        ("generate", "LlamaForCausalLM", r"writes texts. To have it do so: dalle-collab write"),
        ("write", "DalleCollabForConditionalGeneration", r"draws pictures. To have it do so: dalle-collab generate"),
    ],
)
def test_a_model_of_the_other_kind_is_refused_with_its_command(command, architecture, message, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    result = CliRunner().invoke(all_commands, [command, str(tmp_path), "a star"])
    assert isinstance(result.exception, ValueError) and re.search(message, str(result.exception)), result.output


def test_help_shows_examples():
    result = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "120"})
    assert result.exit_code == 0 and 'dalle-collab generate my-org/birds "a robin on a branch"' in result.output


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # inside huggingface_hub's LFS upload
def test_a_run_on_the_hub_is_drawn_with_the_codec_and_clip_it_names(hub, commands, tmp_path):
    constants.HF_HUB_DISABLE_XET = True  # what `prepare_hub_client` does where HF_ENDPOINT is set
    write_tiny_run(tmp_path, "org/drawing-codec", "org/drawing-clip")
    shutil.copytree(tmp_path / "run", tmp_path / "young", ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    (tmp_path / "young" / "training_run.json").write_text("{}")
    api = HfApi(endpoint=hub.endpoint, token=hub.alice_token)
    for name in ("run", "codec", "clip", "young"):
        api.create_repo(f"org/drawing-{name}")
        api.upload_folder(repo_id=f"org/drawing-{name}", folder_path=tmp_path / name)
    options = ("a red star", *FEW, "--output", tmp_path / "grid.png")
    drawn, young = (commands.run("generate", name, *options) for name in ("org/drawing-run", "org/drawing-young"))
    assert drawn.returncode == 0, drawn.stderr
    with Image.open(tmp_path / "grid.png") as grid:
        assert grid.width >= 2 * 192
    assert young.returncode == 1 and "Traceback" not in young.stderr
    assert "org/drawing-young has published no checkpoint yet: wait for" in young.stderr.splitlines()[-1]


def test_int8_weights_draw_too(run_folder, tmp_path):
    result = invoke(run_folder, "a red cube", *FEW, "--weights", "int8", "--output", tmp_path / "grid.png")
    assert result.exit_code == 0, result.output
