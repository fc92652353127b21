"""`dalle-collab clip` on real files: it trains, ranks, and answers mistakes with one line."""

import io
import os
import signal
import subprocess
import sys
import tarfile
from collections import Counter

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from pipelines.command_line.clip import app, captioned_pictures
from pipelines.tasks.text_to_image.data_preparation.encoding import decode_picture
from pipelines.tasks.text_to_image.data_preparation.filtering import FilterPolicy
from pipelines.tasks.text_to_image.data_preparation.reading.reading_options import ReadingOptions

COLOURS = {"red": (220, 30, 30), "green": (30, 180, 60), "blue": (30, 60, 220), "white": (250, 250, 250)}
QUICK = ["--steps", "60", "--batch-size", "16", "--group-size", "4", "--image-size", "32", "--learning-rate", "0.001"]


def picture_bytes(colour, size=(20, 16)):
    buffer = io.BytesIO()
    Image.new("RGB", size, colour).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture(scope="module")
def tar_of_pictures(tmp_path_factory):
    """Captioned pictures as img2dataset writes them, with an empty caption and a damaged picture."""
    path = tmp_path_factory.mktemp("tars") / "00000.tar"
    with tarfile.open(path, "w") as tar:
        for index in range(64):
            name, colour = list(COLOURS.items())[index % 4]
            shade = tuple(max(0, value - index // 2) for value in colour)
            content = picture_bytes(shade) if index != 1 else picture_bytes(shade)[:40]
            caption = f"a {name} picture" if index != 2 else ""
            for suffix, data in (("png", content), ("txt", caption.encode())):
                member = tarfile.TarInfo(f"{index:05d}.{suffix}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return path


@pytest.fixture(scope="module")
def trained(tar_of_pictures, tmp_path_factory):
    output = tmp_path_factory.mktemp("output") / "clip"
    result = CliRunner().invoke(app, ["train", str(tar_of_pictures), "--output", str(output), *QUICK])
    return output, result


def test_the_clip_sees_pictures_as_the_codec_does_and_what_the_dataset_leaves_out_is_counted(tmp_path):
    cut_out = Image.new("RGBA", (40, 20), (0, 0, 0, 0))
    cut_out.paste((200, 0, 0, 255), (5, 5, 35, 15))
    cut_out.save(tmp_path / "a.png")
    Image.new("RGB", (90, 20)).save(tmp_path / "flat.png")
    for name in ("a", "flat"):
        (tmp_path / f"{name}.txt").write_text(f"a picture, {name}\nde.utf8=ein Bild")
    dropped = Counter()
    policy = FilterPolicy(reading=ReadingOptions(caption_lines="first"))
    ((caption, picture),) = captioned_pictures([tmp_path], dropped, 32, policy)
    assert caption == "a picture, a" and dropped == {"extreme aspect ratio": 1}
    seen, _, _ = decode_picture((tmp_path / "a.png").read_bytes(), 32, FilterPolicy())
    assert np.array_equal(picture, seen) and (picture[0] == 255).all() and picture[16, 16].tolist() == [200, 0, 0]


def test_a_folder_whose_captions_are_in_names_is_told_how_they_are_read(tmp_path):
    Image.new("RGB", (20, 20)).save(tmp_path / "red-robin.png")
    with pytest.raises(ValueError, match=r"missing caption: 1\)\. Captions are texts .* in names: --caption-from name"):
        list(captioned_pictures([tmp_path], Counter(), 32, FilterPolicy()))


@pytest.mark.slow
def test_train_reports_what_was_learnt_and_what_was_left_out(trained):
    output, result = trained
    assert result.exit_code == 0, result.output
    assert "1 empty caption" in result.output and "1 corrupt image" in result.output
    assert "the same by chance" in result.output
    assert {"open_clip_config.json", "open_clip_model.safetensors", "tokenizer.json"} <= {
        file.name for file in output.iterdir()
    }


@pytest.mark.slow
def test_a_clip_that_has_learnt_nothing_is_not_saved_without_consent(tmp_path):
    random = np.random.default_rng(0)
    for index in range(100):
        Image.fromarray(random.integers(0, 255, (32, 32, 3), np.uint8)).save(tmp_path / f"{index}.png")
        (tmp_path / f"{index}.txt").write_text(f"a picture, number {index}")
    words = ["train", str(tmp_path), "--output", str(tmp_path / "clip"), *QUICK[2:], "--steps", "2"]
    for consent, code, saved in (
        ([], 1, "It was not saved; --force saves"),
        (["--force"], 0, "It was saved, as --force"),
    ):
        result = CliRunner().invoke(app, [*words, *consent])
        assert result.exit_code == code and (tmp_path / "clip").is_dir() == (code == 0)
        assert "The CLIP has learnt nothing: " in result.stderr and saved in result.stderr


@pytest.mark.slow
def test_rank_puts_the_fitting_picture_first(trained, tmp_path):
    for name, colour in COLOURS.items():
        (tmp_path / f"{name}.png").write_bytes(picture_bytes(colour, (40, 40)))
    files = [str(tmp_path / f"{name}.png") for name in COLOURS]
    for name in COLOURS:
        result = CliRunner().invoke(app, ["rank", f"a {name} picture", *files, "--clip", str(trained[0])])
        lines = result.output.splitlines()
        assert lines[0].endswith(f"{name}.png") and len(lines) == 4
        scores = [float(line.split()[0]) for line in lines]
        assert scores == sorted(scores, reverse=True)


@pytest.mark.long
@pytest.mark.slow
def test_ctrl_c_saves_the_clip_and_leaves_with_130(tar_of_pictures, tmp_path):
    command = [sys.executable, "-m", "pipelines.command_line.main", "clip", "train", str(tar_of_pictures)]
    options = ["--output", str(tmp_path / "clip"), *QUICK[2:], "--steps", "100000", "--force"]
    with subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        said = iter(process.stderr.readline, "")
        assert any("training: 1 of" in line for line in said), "it ended before the first step"
        os.killpg(process.pid, signal.SIGINT)
        process.stderr.read()
        assert process.wait(timeout=60) == 130
    assert (tmp_path / "clip" / "open_clip_model.safetensors").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "{folder}/nowhere", "--output", "{folder}/x"], r"There is no .*nowhere"),
        (["train", "{folder}", "--output", "{folder}/x"], r"has no tars .* and no pictures"),
        (["train", "{tar}", "--output", "{folder}/x", "--steps", "0"], r"num_steps is 0: expected at least 1"),
        (["train", "{tar}", "--output", "{folder}/x", "--codec", "./gone"], r"no codec folder .*gone"),
        (["rank", "a", "{folder}/text.txt", "--clip", "{folder}"], r"has no open_clip_config.json"),
    ],
)
def test_mistakes_are_explained(arguments, message, tar_of_pictures, tmp_path):
    (tmp_path / "text.txt").write_text("no picture")
    filled = [argument.format(folder=tmp_path, tar=tar_of_pictures) for argument in arguments]
    result = CliRunner().invoke(app, filled)
    with pytest.raises((ValueError, OSError), match=message):
        raise result.exception
    assert not (tmp_path / "x").exists()


@pytest.mark.slow
def test_a_file_that_is_no_picture_is_named(trained, tmp_path):
    (tmp_path / "text.png").write_text("no picture")
    result = CliRunner().invoke(app, ["rank", "a", str(tmp_path / "text.png"), "--clip", str(trained[0])])
    with pytest.raises(ValueError, match=r"text.png is not a readable picture: expected a PNG, JPEG or WebP file"):
        raise result.exception


@pytest.mark.parametrize("command", ["train", "rank"])
def test_help_shows_examples(command):
    result = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "120"})
    assert result.exit_code == 0 and f"dalle-collab clip {command}" in result.output
