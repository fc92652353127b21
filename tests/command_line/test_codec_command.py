"""`dalle-collab codec`, run as people run it: as a process, on real files."""

import os
import signal
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image

from pipelines.command_line.codec import small_codec_config
from pipelines.image_codes.vqgan_codec import VQGANCodec

COMMAND = [sys.executable, "-m", "pipelines.command_line.main", "codec"]
SMALL = ["--image-size", "16", "--grid", "4", "--codebook-size", "16", "--channels", "32", "--batch-size", "8"]


@pytest.fixture
def run(commands):
    """Return what runs a command of this group in a fork, without the seconds of a new interpreter's imports."""
    return partial(commands.run, "codec")


@pytest.fixture
def pictures(tmp_path):
    folder = tmp_path / "pictures"
    folder.mkdir()
    random = np.random.default_rng(0)
    for number in range(30):
        pixels = np.full((20, 24, 3), random.integers(0, 255, 3), np.uint8)
        pixels[5:15, 5:15] = random.integers(0, 255, 3)
        Image.fromarray(pixels).save(folder / f"{number:02d}.png")
    (folder / "corrupt.jpg").write_bytes(b"<html>")
    return folder


@pytest.mark.slow
def test_a_codec_is_trained_shown_and_trained_further(run, pictures, tmp_path):
    done = run("train", pictures, "--output", tmp_path / "codec", *SMALL, "--steps", 20)
    assert done.returncode == 0, done.stderr
    codec = VQGANCodec.from_pretrained(tmp_path / "codec")
    assert codec.config == small_codec_config(16, 4, 16, 32)
    assert f"codec {codec.fingerprint}" in done.stdout and "mean absolute error" in done.stdout
    shown = run("show", tmp_path / "codec", pictures, "--output", tmp_path / "codec.png", "--num-pictures", 5)
    assert shown.returncode == 0, shown.stderr
    with Image.open(tmp_path / "codec.png") as grid:
        assert grid.size == (8 * 132 + 4, 2 * 132 + 4)
    further = run("train", pictures, "--output", tmp_path / "codec", "--resume", "--steps", 5)
    assert further.returncode == 0, further.stderr
    assert VQGANCodec.from_pretrained(tmp_path / "codec").fingerprint != codec.fingerprint


@pytest.mark.slow
def test_ctrl_c_saves_the_codec_as_far_as_it_came(pictures, tmp_path):
    command = [*COMMAND, "train", str(pictures), "--output", str(tmp_path / "codec"), *SMALL, "--steps", "1000000"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120", "FORCE_COLOR": "1", "TTY_INTERACTIVE": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment) as process:
        seen = b""
        while b"error" not in seen:
            part = os.read(process.stdout.fileno(), 4096)
            assert part, seen.decode()
            seen += part
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=120)[0].decode()
    assert process.returncode == 130, rest
    assert VQGANCodec.from_pretrained(tmp_path / "codec").config.codebook_size == 16


@pytest.mark.slow
def test_a_published_checkpoint_is_converted_to_safetensors(run, tmp_path):
    description = """
model:
  target: taming.models.vqgan.VQModel
  params: {embed_dim: 8, n_embed: 16, ddconfig: {double_z: false, z_channels: 8, resolution: 16, ch: 32,
    ch_mult: [1, 1], num_res_blocks: 1, attn_resolutions: []}}
"""
    (tmp_path / "model.yaml").write_text(description)
    from pipelines.image_codes.taming_checkpoint import read_taming_config

    codec = VQGANCodec(read_taming_config(tmp_path / "model.yaml"))
    torch.save({"state_dict": codec.state_dict()}, tmp_path / "last.ckpt")
    done = run("convert", tmp_path / "last.ckpt", tmp_path / "model.yaml", "--output", tmp_path / "codec")
    assert done.returncode == 0, done.stderr
    assert VQGANCodec.from_pretrained(tmp_path / "codec").fingerprint == codec.fingerprint


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "absent", "--output", "codec"], "There is no absent. Expected a tar"),
        (["train", "pictures", "--output", "codec", "--grid", "7"], "A side of 64 pixels cannot be cut into 7"),
        (["show", "absent/codec/x", "."], "There is no codec folder absent/codec/x"),
    ],
)
def test_mistakes_give_one_line_and_exit_code_1(run, pictures, tmp_path, arguments, message):
    done = run(*arguments, folder=tmp_path)
    assert done.returncode == 1
    assert message in done.stderr and len(done.stderr.strip().splitlines()) == 1


def test_large_patches_are_halved_by_levels():
    config = small_codec_config(256, 8, 1024, 64)
    assert (config.patch_size, config.channel_multipliers, config.grid_size) == (8, (1, 1, 1), 8)
    assert small_codec_config(64, 8, 1024, 64).channel_multipliers == (1, 1)
