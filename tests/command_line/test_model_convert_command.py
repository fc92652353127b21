"""`dalle-collab model convert`, run as people run it: as a process, on real files."""

import inspect
import os
import resource
import subprocess
import sys
from functools import partial

import pytest
import torch
from golden_files import golden_settings, golden_state_dict, golden_tensors
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoModel, AutoProcessor, PreTrainedTokenizerFast

from pipelines.command_line.model.convert import convert
from pipelines.tasks.text_to_image.conversion.checkpoint_sizes import UnseenSettings

COMMAND = [sys.executable, "-m", "pipelines.command_line.main", "model", "convert"]


@pytest.fixture
def run(commands):
    """Return what runs a command of this group in a fork, without the seconds of a new interpreter's imports."""
    return partial(commands.run, "model", "convert")


@pytest.fixture
def checkpoint(tmp_path):
    torch.save(golden_state_dict(), tmp_path / "dalle.pt")
    return tmp_path / "dalle.pt"


@pytest.mark.slow
def test_a_checkpoint_becomes_a_model_that_draws_the_same(run, checkpoint, tmp_path):
    done = run(checkpoint, "--output", tmp_path / "model", "--codebook-size", 512)
    assert done.returncode == 0, done.stderr
    model = AutoModel.from_pretrained(tmp_path / "model")
    expected, depth = golden_tensors(), golden_settings()["config"]["depth"]
    assert f"{model.num_parameters():,} parameters, {depth} layers with 5 sets of weights" in done.stdout
    assert "It has no tokenizer" in done.stdout
    assert f"hub-tools publish folder {tmp_path / 'model'} ORG/NAME" in done.stdout
    # The default is the window of the original run.
    codes = model.generate_image_codes(expected["text"], temperature=0, num_candidates=1)
    assert torch.equal(codes[:, 0], expected["legacy_conv/greedy_tokens"])


@pytest.mark.slow
def test_options_and_a_tokenizer_reach_the_model(run, checkpoint, tmp_path):
    sizes = golden_settings()["config"]
    words = {"<unk>": 0} | {f"word{index}": index for index in range(1, sizes["vocab_text"])}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words, unk_token="<unk>")))
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    options = {"tokenizer": tmp_path / "tokenizer", "codebook-size": 512, "conv-window": "corner", "pad-token-id": 0}
    options |= {"attention-pattern": "row, column, row, row", "final-attention": "convolutional"}
    options |= {"conv-kernel-size": 5, "head-dim": 28}
    arguments = [word for name, value in options.items() for word in (f"--{name}", value)]
    done = run(checkpoint, "--output", tmp_path / "model", *arguments)
    assert done.returncode == 0, done.stderr
    assert "no tokenizer" not in done.stdout
    model, expected = AutoModel.from_pretrained(tmp_path / "model"), golden_tensors()
    assert model(expected["text"], expected["image"]).loss.item() == pytest.approx(expected["loss"].item(), abs=1e-5)
    processor = AutoProcessor.from_pretrained(tmp_path / "model")
    assert processor(text="word3").input_ids.tolist() == [[3] + [0] * (sizes["text_seq_len"] - 1)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent.pt", "--output", "model"], "There is no file absent.pt, expected a checkpoint"),
        (["dalle.pt", "--output", "."], ". already exists, expected a new or an empty folder"),
        (["dalle.pt", "--output", "model"], "has 800 ids, expected more than 8192 image codes"),
        (["dalle.pt", "--output", "dalle.pt/model", "--codebook-size", "512"], "dalle.pt: File exists"),
        (
            ["dalle.pt", "--output", "model", "--tokenizer", "./absent"],
            "No fast tokenizer can be loaded from './absent'",
        ),
        (
            ["dalle.pt", "--output", "model", "--codebook-size", "512", "--conv-window", "middle"],
            "conv_window is 'middle'",
        ),
    ],
)
def test_mistakes_give_one_line_and_exit_code_1(run, checkpoint, tmp_path, arguments, message):
    done = run(*arguments, folder=tmp_path)
    assert done.returncode == 1
    assert message in done.stderr and len(done.stderr.strip().splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["dalle.pt"]


@pytest.mark.slow
def test_a_full_disk_gives_one_line_and_leaves_nothing_behind(checkpoint, tmp_path):
    def allow_only_small_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    arguments = [checkpoint, "--output", tmp_path / "model", "--codebook-size", 512]
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)], env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
        timeout=240, check=False, preexec_fn=allow_only_small_files,
    )  # fmt: skip
    assert done.returncode == 1
    assert "model cannot be written" in done.stderr and len(done.stderr.strip().splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["dalle.pt"]


def test_the_defaults_of_the_options_are_the_original_runs():
    unseen, defaults = vars(UnseenSettings()), inspect.signature(convert).parameters
    shown = {name: defaults[name].default for name in unseen}
    assert shown | {"attention_pattern": tuple(shown["attention_pattern"].split(","))} == unseen
