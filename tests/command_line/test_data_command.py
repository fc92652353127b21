"""`dalle-collab data`, run as people run it: as a process, on real files."""

import json
import signal
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image
from published_runs import command_environment

from pipelines.command_line.codec import small_codec_config
from pipelines.tasks.text_to_image.image_codes.vqgan_codec import VQGANCodec

COMMAND = [sys.executable, "-m", "pipelines.command_line.main", "data"]

pytestmark = pytest.mark.slow


@pytest.fixture
def run(commands):
    """Return what runs a command of this group in a fork, without the seconds of a new interpreter's imports."""
    return partial(commands.run, "data")


def write_codec(folder, seed: int):
    torch.manual_seed(seed)
    VQGANCodec(small_codec_config(16, 4, 16, 32)).save_pretrained(folder)
    return folder


@pytest.fixture
def codec(tmp_path):
    return write_codec(tmp_path / "codec", 0)


@pytest.fixture
def pictures(tmp_path):
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number in range(40):
        pixels = np.random.default_rng(number).integers(0, 255, (16, 16, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:02d}.png")
        (folder / f"{number:02d}.txt").write_text("x" if number == 7 else f"picture number {number}")
    (folder / "corrupt.jpg").write_bytes(b"<html>")
    (folder / "corrupt.txt").write_text("a corrupt picture")
    return folder


def test_pictures_are_prepared_verified_shown_and_give_a_tokenizer(run, pictures, codec, tmp_path):
    output = tmp_path / "data"
    done = run("prepare", pictures, "--codec", codec, "--output", output, "--shard-size", 16)
    assert done.returncode == 0, done.stderr
    assert "kept" in done.stdout and "short caption" in done.stdout and "corrupt.jpg (corrupt_image)" in done.stdout
    report = json.loads((output / "report.json").read_text())
    assert (report["kept"], report["dropped"]) == (39, {"short_caption": 1, "corrupt_image": 1})
    verified = run("verify", output)
    assert verified.returncode == 0 and "3 valid shards, 39 records" in verified.stdout
    shown = run("show", output, "--codec", codec, "--output", tmp_path / "grid.png", "--num-records", 6)
    assert shown.returncode == 0, shown.stderr
    with Image.open(tmp_path / "grid.png") as grid:
        assert grid.width == 6 * 132 + 4
    assert "Cropping cut off 0.0 % of a picture's area on average." in shown.stdout
    page = (tmp_path / "grid.html").read_text(encoding="utf-8")
    assert page.count("<img") == 6 + 1 and "picture number 0" in page and "corrupt image" in page
    trained = run("train-tokenizer", output, "--vocab-size", 60, "--output", tmp_path / "tokenizer")
    assert trained.returncode == 0, trained.stderr
    assert (tmp_path / "tokenizer" / "tokenizer.json").is_file()


def test_formats_that_are_not_read_are_named(run, pictures, codec, tmp_path):
    (pictures / "drawing.svg").write_text("<svg/>")
    (pictures / "00.txt").write_text("one\ntwo\n")
    done = run("prepare", pictures, "--codec", codec, "--output", tmp_path / "data")
    assert "1 unsupported format: SVG" in done.stdout and "convert these pictures to PNG, JPEG or WebP" in done.stdout
    assert "1 dropped for several lines: --caption-lines first keeps their first line" in done.stdout
    assert "38 of 38 kept have no NSFW label: --drop-unlabelled drops them." in done.stdout
    other = run("prepare", pictures, "--codec", codec, "--output", tmp_path / "data", "--caption-lines", "first")
    assert other.returncode == 1 and "was started with filter = " in other.stderr
    refused = run("prepare", pictures, "--codec", codec, "--output", tmp_path / "data", "--caption-lines", "all")
    assert "caption_lines is 'all'; expected one of drop, first, join." in refused.stderr


def test_a_list_of_addresses_is_downloaded_and_prepared(run, codec, tmp_path):
    rows = [{"URL": f"https://127.0.0.1:1/{number}.jpg", "TEXT": "a cat"} for number in range(3)]
    (tmp_path / "list.jsonl").write_text("\n".join(map(json.dumps, rows)))
    done = run("download", tmp_path / "list.jsonl", "--output", tmp_path / "tars")
    assert done.returncode == 1 and len(done.stderr.strip().splitlines()) == 1
    assert "No picture of" in done.stderr and "_failures.jsonl has the reason" in done.stderr
    assert "private address" in done.stdout and "0 pictures of 3 rows" in done.stdout
    (tmp_path / "none.csv").write_text("bild,text\nx,a cat\n")
    none = run("download", tmp_path / "none.csv", "--output", tmp_path / "none")
    assert none.returncode == 1 and "none.csv: no column of addresses; its columns are bild, text" in none.stderr
    assert "it has no row" in none.stderr.splitlines()[-1]
    again = run("download", tmp_path / "list.jsonl", "--output", tmp_path / "tars", "--part-size", 2)
    assert again.returncode == 1 and "was begun with another part_size" in again.stderr
    prepared = run("prepare", tmp_path / "list.jsonl", "--codec", codec, "--output", tmp_path / "data")
    assert prepared.returncode == 1 and "dalle-collab data download" in prepared.stderr


def test_commands_that_keep_nothing_end_with_1_and_one_line(run, pictures, codec, tmp_path):
    for text in pictures.glob("*.txt"):
        text.write_text("x")
    done = run("prepare", pictures, "--codec", codec, "--output", tmp_path / "data")
    assert done.returncode == 1 and "short caption" in done.stdout
    assert "Nothing of 41 samples was kept" in done.stderr and len(done.stderr.strip().splitlines()) == 1
    done = run("deduplicate", pictures, "--output", tmp_path / "found", "--workers", 1)
    assert done.returncode == 1 and "short caption" in done.stdout
    assert "nothing to compare" in done.stderr and len(done.stderr.strip().splitlines()) == 1


def test_duplicates_are_listed_and_left_out(run, pictures, codec, tmp_path):
    (pictures / "zz.png").write_bytes((pictures / "05.png").read_bytes())
    (pictures / "zz.txt").write_text("the fifth picture again")
    done = run("deduplicate", pictures, "--output", tmp_path / "found", "--workers", 1)
    assert done.returncode == 0, done.stderr
    assert "1 exact and 0 near duplicates among 4" in done.stdout
    leave_out = ("--leave-out", tmp_path / "found" / "duplicates.parquet")
    prepared = run("prepare", pictures, "--codec", codec, "--output", tmp_path / "data", *leave_out)
    assert prepared.returncode == 0 and "exact duplicate" in prepared.stdout
    assert json.loads((tmp_path / "data" / "report.json").read_text())["dropped"]["exact_duplicate"] == 1
    other = run("prepare", pictures, "--codec", codec, "--output", tmp_path / "data")
    assert other.returncode == 1 and "was started with sources = " in other.stderr


def test_codec_and_captions_come_from_the_hub(run, hub, pictures, codec, tmp_path):
    def publish(*arguments):
        command = [sys.executable, "-m", "hub_tools.command_line", "publish", *map(str, arguments)]
        subprocess.run(command, env=command_environment(hub, hub.alice_token), timeout=240, check=True)

    output = tmp_path / "data"
    publish("folder", codec, "org/prepared-codec")
    done = run("prepare", pictures, "--codec", "org/prepared-codec", "--output", output)
    assert done.returncode == 0, done.stderr
    publish("dataset", output, "org/prepared-captions")
    done = run("train-tokenizer", "org/prepared-captions", "--vocab-size", 60, "--output", tmp_path / "tokenizer")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "tokenizer" / "tokenizer.json").is_file()
    absent = run("prepare", pictures, "--codec", "org/absent", "--output", tmp_path / "other")
    assert absent.returncode == 1 and len(absent.stderr.strip().splitlines()) == 1
    assert "org/absent" in absent.stderr


def test_a_tampered_shard_fails_verification_and_is_mended_by_the_same_command(run, pictures, codec, tmp_path):
    output = tmp_path / "data"
    arguments = ("prepare", pictures, "--codec", codec, "--output", output, "--shard-size", 16)
    assert run(*arguments).returncode == 0
    shard = output / "train-00001.parquet"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-30])
    failed = run("verify", output)
    assert failed.returncode == 1 and "Shard train-00001.parquet" in failed.stderr and "truncated" in failed.stderr
    mended = run(*arguments)
    assert mended.returncode == 0 and "3 shards (2 from before)" in mended.stdout
    assert shard.read_bytes() == whole


def test_another_codec_is_refused_for_a_folder_that_was_begun(run, pictures, codec, tmp_path):
    output = tmp_path / "data"
    assert run("prepare", pictures, "--codec", codec, "--output", output).returncode == 0
    other = write_codec(tmp_path / "other", 1)
    refused = run("prepare", pictures, "--codec", other, "--output", output)
    assert refused.returncode == 1 and len(refused.stderr.strip().splitlines()) == 1
    assert "has codes of codec" in refused.stderr and "--output" in refused.stderr


def test_ctrl_c_keeps_finished_shards_and_the_same_command_goes_on(run, pictures, codec, tmp_path):
    arguments = [
        "prepare",
        str(pictures),
        "--codec",
        str(codec),
        "--shard-size",
        "4",
        "--batch-size",
        "1",
        "--workers",
        "1",
    ]
    assert run(*arguments, "--output", tmp_path / "whole").returncode == 0
    output = tmp_path / "stopped"
    command = [*COMMAND, *arguments, "--output", str(output)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and not (output / "train-00001.parquet").exists():
            pass
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    assert process.returncode in (0, 130), errors  # 0: it was done before the signal came
    assert process.returncode == 0 or "The same command resumes" in errors
    assert not list(output.glob(".*.partial"))
    assert run(*arguments, "--output", output).returncode == 0
    whole = [path for path in (tmp_path / "whole").rglob("*") if path.is_file()]
    assert any(path.parent.name == "dropped" for path in whole)
    for path in whole:
        assert (output / path.relative_to(tmp_path / "whole")).read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["prepare", "absent", "--codec", "codec", "--output", "out"], "There is no absent. Expected a tar"),
        (
            ["prepare", "pictures", "--codec", "no/such/codec", "--output", "out"],
            "There is no codec folder no/such/codec",
        ),
        (["prepare", "pictures", "--codec", "codec", "--output", "out", "--shard-size", "0"], "shard_size is 0"),
        (["prepare", "pictures", "--codec", "codec", "--output", "out", "--fit", "stretch"], "fit is 'stretch'"),
        (["prepare", "pictures", "--codec", "codec", "--output", "out", "--precision", "tf32"], "Only GPUs know tf32"),
        (["prepare", "pictures", "--codec", "codec", "--output", "out", "--device", "cuda:0,cpu"], "torch sees no GPU"),
        (["verify", "absent"], "absent has no Parquet shards"),
        (["show", "absent", "--codec", "codec"], "absent has no Parquet shards"),
        (["train-tokenizer", "absent", "--output", "out"], "There is no folder absent"),
    ],
)
def test_mistakes_give_one_line_and_exit_code_1(run, pictures, codec, tmp_path, arguments, message):
    done = run(*arguments, folder=tmp_path)
    assert done.returncode == 1
    assert message in done.stderr and len(done.stderr.strip().splitlines()) == 1
