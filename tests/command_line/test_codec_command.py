"""`dalle-collab codec`, run as people run it: as a process, on real files."""

import json
import os
import signal
import subprocess
import sys
from functools import partial
from itertools import chain

import numpy as np
import pytest
import torch
from llamagen_material import drawn_weights
from PIL import Image
from tiny_run_parts import write_tiny_clip_and_codec
from typer.testing import CliRunner

from modeling_dalle_collab import DalleCollabConfig, DalleCollabForConditionalGeneration, DalleCollabProcessor
from pipelines.command_line.codec import advice_on, app, read_pictures, small_codec_config
from pipelines.tasks.text_to_image.generation.generation_options import GenerationOptions
from pipelines.tasks.text_to_image.generation.image_generation import load_text_to_image
from pipelines.tasks.text_to_image.generation.text_to_image import rank_candidates
from pipelines.tasks.text_to_image.image_codes.image_code_record import captions_and_codes, iterate_shard, read_layout
from pipelines.tasks.text_to_image.image_codes.vqgan_codec import VQGANCodec

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
    assert "Skipped 1 picture: corrupt image (1)." in done.stderr
    assert "Training takes 20 steps. Aim at a mean absolute error of 0.03 of 1" in done.stdout
    assert f"codec {codec.fingerprint}" in done.stdout and "mean absolute error" in done.stdout
    shown = run("show", tmp_path / "codec", pictures, "--output", tmp_path / "codec.png", "--num-pictures", 5)
    assert shown.returncode == 0, shown.stderr
    with Image.open(tmp_path / "codec.png") as grid:
        assert grid.size == (5 * 132 + 4, 2 * (132 + 43) + 4)
    assert "5 pictures chosen at random, each above its reconstruction; mean absolute error" in shown.stdout
    other = run(
        "show", tmp_path / "codec", pictures, "--output", tmp_path / "other.png", "--num-pictures", 5, "--seed", 1
    )
    assert other.returncode == 0 and (tmp_path / "other.png").read_bytes() != (tmp_path / "codec.png").read_bytes()
    further = run("train", pictures, "--output", tmp_path / "codec", "--resume", "--steps", 5)
    assert further.returncode == 0, further.stderr
    assert VQGANCodec.from_pretrained(tmp_path / "codec").fingerprint != codec.fingerprint


def test_a_codec_that_goes_on_keeps_its_sizes(pictures, tmp_path):
    VQGANCodec(small_codec_config(16, 4, 16, 32)).save_pretrained(tmp_path / "codec")
    words = ["train", str(pictures), "--output", str(tmp_path / "codec"), "--resume", *SMALL, "--codebook-size", "32"]
    result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, ValueError)
    assert str(result.exception).startswith("Leave out --codebook-size: --resume goes on with the codec in")


@pytest.mark.long
@pytest.mark.slow
def test_ctrl_c_saves_the_codec_as_far_as_it_came(pictures, tmp_path):
    command = [*COMMAND, "train", str(pictures), "--output", str(tmp_path / "codec"), *SMALL, "--steps", "1000000"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120", "FORCE_COLOR": "1", "TTY_INTERACTIVE": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment) as process:
        seen = b""
        while b"error 0" not in seen:
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
    from pipelines.tasks.text_to_image.image_codes.checkpoints.taming_checkpoint import read_taming_config

    codec = VQGANCodec(read_taming_config(tmp_path / "model.yaml"))
    torch.save({"state_dict": codec.state_dict()}, tmp_path / "last.ckpt")
    done = run("convert", tmp_path / "last.ckpt", tmp_path / "model.yaml", "--output", tmp_path / "codec")
    assert done.returncode == 0, done.stderr
    assert VQGANCodec.from_pretrained(tmp_path / "codec").fingerprint == codec.fingerprint


@pytest.mark.slow
def test_a_tokenizer_of_llamagen_makes_a_dataset_whose_codes_are_drawn(commands, tmp_path):
    random = np.random.RandomState(0)
    weights = drawn_weights(random, **{"quantize.embedding.weight": [16384, 8]})
    torch.save({"model": weights}, tmp_path / "vq_ds16_t2i.pt")
    (tmp_path / "pictures").mkdir()
    for number in range(6):
        Image.fromarray(random.randint(0, 256, (64, 64, 3)).astype(np.uint8)).save(tmp_path / f"pictures/{number}.png")
        (tmp_path / f"pictures/{number}.txt").write_text(f"picture number {number}")
    tokenizer, _ = write_tiny_clip_and_codec(tmp_path)
    for words in (
        ("codec", "convert", "vq_ds16_t2i.pt", "--output", "codec", "--image-size", 64),
        ("data", "prepare", "pictures", "--codec", "codec", "--output", "data"),
    ):
        done = commands.run(*words, folder=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "16384 codes, f=16, 16 codes for a picture of 64 x 64 pixels" in done.stdout or words[0] == "data"

    (shard,) = (tmp_path / "data").rglob("*.parquet")
    layout = read_layout(shard)
    ((captions, rows),) = [captions_and_codes(batch, num_codes=layout.num_codes) for batch in iterate_shard(shard)]
    codes = torch.from_numpy(rows).long()
    codec = VQGANCodec.from_pretrained(tmp_path / "codec")
    assert (layout.codec_fingerprint, layout.codebook_size, layout.grid_size) == (codec.fingerprint, 16384, 4)
    assert codes.shape == (6, 16) and codes.max() > 8191

    write_untrained_run(tmp_path / "run", tokenizer, layout, tmp_path / "codec", tmp_path / "clip")
    bundle = load_text_to_image(tmp_path / "run")
    options = GenerationOptions(num_candidates=6, keep=6)
    ranked = rank_candidates(bundle, "a picture", codes, options)
    for picture, expected in zip(ranked, codec.decode(codes)[[item.candidate_index for item in ranked]], strict=True):
        np.testing.assert_allclose(np.asarray(picture.image).transpose(2, 0, 1) / 255, expected, atol=0.51 / 255)

    number = captions.index("picture number 3")
    words = ("run", "a star", "--candidates", 2, "--keep", 1, "--device", "cpu", "--json", "--output", "grid.png")
    done = commands.run("generate", *words, "--complete", "pictures/3.png", "--rows", 2, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    (drawn,) = json.loads(done.stdout.splitlines()[0])["pictures"]
    assert len(drawn["image_codes"]) == 16 and drawn["image_codes"][:8] == codes[number, :8].tolist()


def write_untrained_run(folder, tokenizer, layout, codec, clip):
    """A run whose model takes its sizes from a dataset, as `run create` does."""
    DalleCollabProcessor(
        tokenizer,
        image_codec_repository=str(codec),
        image_codec_fingerprint=layout.codec_fingerprint,
        clip_repository=str(clip),
        text_sequence_length=8,
    ).save_pretrained(folder)
    sizes = dict(codebook_size=layout.codebook_size, image_grid_size=layout.grid_size)
    config = DalleCollabConfig(
        **sizes,
        text_vocab_size=len(tokenizer),
        text_sequence_length=8,
        hidden_size=32,
        num_hidden_layers=2,
        attention_pattern=("row",),
        num_attention_heads=2,
        head_dim=16,
    )
    DalleCollabForConditionalGeneration(config).save_pretrained(folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "absent", "--output", "codec"], "There is no absent. Expected a tar"),
        (["train", "pictures", "--output", "codec", "--grid", "7"], "A side of 64 pixels cannot be cut into 7"),
        (["show", "absent/codec/x", "."], "There is no codec folder absent/codec/x"),
        (["convert", "absent.pt", "--output", "codec"], "There is no file absent.pt. Download the checkpoint"),
        (["convert", "a.ckpt", "a.yaml", "--image-size", "64", "--output", "codec"], "Leave out --image-size"),
        (["convert", "pictures/corrupt.jpg", "--output", "codec"], "cannot be read as a tensors-only checkpoint"),
    ],
)
def test_mistakes_give_one_line_and_exit_code_1(run, pictures, tmp_path, arguments, message):
    done = run(*arguments, folder=tmp_path)
    assert done.returncode == 1
    assert message in done.stderr and len(done.stderr.strip().splitlines()) == 1


def test_pictures_are_drawn_from_the_whole_folder_and_the_same_for_a_seed(pictures):
    everything = read_pictures([pictures], 16, 100)
    drawn = [read_pictures([pictures], 16, 100, num_kept=6, seed=seed) for seed in range(20)]
    places = [[next(i for i, other in enumerate(everything) if other.equal(one)) for one in some] for some in drawn]
    assert all(len(set(found)) == 6 for found in places) and len(set(chain(*places))) > 20
    assert read_pictures([pictures], 16, 100, num_kept=6, seed=3).equal(drawn[3])
    assert max(max(found) for found in places) >= 25
    within = read_pictures([pictures], 16, 10, num_kept=6)
    assert all(any(one.equal(other) for other in everything[:10]) for one in within)


def test_an_error_above_the_aim_gives_advice_that_can_be_followed():
    assert advice_on(0.03, small_codec_config(64, 8, 1024, 96)) is None
    words = advice_on(0.042, small_codec_config(64, 8, 1024, 96))
    assert words.startswith("An error of 0.0420 is above 0.03: go on with --resume, or train another with --grid 16")
    assert "--grid" not in advice_on(0.042, small_codec_config(16, 8, 1024, 96))


def test_large_patches_are_halved_by_levels():
    config = small_codec_config(256, 8, 1024, 64)
    assert (config.patch_size, config.channel_multipliers, config.grid_size) == (8, (1, 1, 1), 8)
    assert small_codec_config(64, 8, 1024, 64).channel_multipliers == (1,)
