"""`dalle-collab model finetune`, on the embedded Hub: a checkpoint is taken further on a streamed dataset."""

import json
import time

import pytest
import torch
from published_runs import interrupt, started_command, the_line
from safetensors.torch import load_file
from transformers import AutoModel

from modeling_dalle_collab import DalleCollabConfig, DalleCollabForConditionalGeneration, DalleCollabProcessor

BASE, EMPTY, STRANGER = "org/finetuned-base", "org/finetuned-empty", "org/finetuned-stranger"
SIZES = dict(codebook_size=32, text_sequence_length=8, image_grid_size=4, hidden_size=32, num_hidden_layers=3)
HEADS = dict(num_attention_heads=2, head_dim=16, attention_pattern=["row", "column"])
QUICK = ["--learning-rate", "0.01", "--lora-rank", "8", "--micro-batch-size", "8"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def material(training_material, tmp_path_factory):
    """Publish a base model, a run without weights, and a model of another codec beside the tiny dataset."""
    torch.manual_seed(0)
    for name, fingerprint in ((BASE, None), (EMPTY, None), (STRANGER, "f" * 16)):
        folder = tmp_path_factory.mktemp("base")
        processor = DalleCollabProcessor.from_pretrained(_processor_folder(training_material, folder))
        if fingerprint is not None:
            processor.image_codec_fingerprint = fingerprint
            processor.save_pretrained(folder)
        config = DalleCollabConfig(**SIZES, **HEADS, text_vocab_size=len(processor.tokenizer))
        DalleCollabForConditionalGeneration(config).save_pretrained(folder)
        if name == EMPTY:
            (folder / "model.safetensors").unlink()
        training_material.api.create_repo(name)
        training_material.api.upload_folder(repo_id=name, folder_path=str(folder))
    return training_material


def _processor_folder(material, folder):
    from transformers import AutoTokenizer

    DalleCollabProcessor(
        AutoTokenizer.from_pretrained(material.tokenizer),
        image_codec_repository=material.codec,
        image_codec_fingerprint=material.layout.codec_fingerprint,
        text_sequence_length=8,
    ).save_pretrained(folder)
    return folder


def finetune_arguments(material, output, *options, model=BASE, dataset=None):
    return ["model", "finetune", model, "--dataset", dataset or material.dataset, "--output", str(output), *options]


def test_a_run_is_fine_tuned_by_an_adapter_and_merged(material, commands, tmp_path):
    output = tmp_path / "owls"
    options = [*QUICK, "--steps", "40", "--merge", "--save-every", "25", "--mixed-precision", "bf16"]
    done = commands.run(*finetune_arguments(material, output, *options))
    assert done.returncode == 0, done.stderr
    settings = json.loads((output / "finetuning.json").read_text())
    assert settings["step"] == 40 and settings["mean_loss"] < 3.5
    assert f"Step 40: loss {settings['mean_loss']:.4f}, at first " in done.stdout
    assert f"Wrote {output / 'adapter'}. Publish it: hub-tools publish folder" in done.stdout
    assert "Warning" not in done.stderr and "kernels" not in done.stderr
    base = material.api.model_info(BASE)
    assert (settings["base_model"], settings["base_model_revision"]) == (BASE, base.sha)
    assert settings["dataset_revision"] == material.api.dataset_info(material.dataset).sha
    adapter = json.loads((output / "adapter" / "adapter_config.json").read_text())
    assert (adapter["base_model_name_or_path"], adapter["revision"]) == (BASE, base.sha)
    merged = AutoModel.from_pretrained(output / "model")
    weights = load_file(material.snapshot(BASE) / "model.safetensors")
    assert torch.equal(merged.model.token_embedding.weight, weights["model.token_embedding.weight"])
    assert [path.name for path in tmp_path.iterdir()] == ["owls"]


def test_a_folder_is_fine_tuned_as_a_whole(material, commands, tmp_path):
    base = material.snapshot(BASE)
    options = ["--full", "--steps", "3", "--gradient-accumulation", "2"]
    done = commands.run(*finetune_arguments(material, tmp_path / "owls", *options, model=str(base)))
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "owls").iterdir()} == {"model", "finetuning.json"}
    assert AutoModel.from_pretrained(tmp_path / "owls" / "model")


@pytest.mark.long
def test_ctrl_c_writes_the_adapter_as_far_as_it_came(material, tmp_path):
    output, log = tmp_path / "owls", tmp_path / "log"
    arguments = finetune_arguments(material, output, *QUICK, "--steps", "1000000", "--save-every", "5")
    with started_command(material.hub, log, *arguments) as process:
        deadline = time.monotonic() + 240
        while not output.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.2)
        assert output.exists(), log.read_text()
        assert interrupt(process, 60) == 130, log.read_text()
    assert json.loads((output / "finetuning.json").read_text())["step"] >= 5
    assert load_file(output / "adapter" / "adapter_model.safetensors")
    assert f"Wrote {output / 'adapter'}. " in log.read_text()
    assert "Warning" not in log.read_text() and "kernels" not in log.read_text()
    assert {path.name for path in tmp_path.iterdir()} == {"owls", "log"}


@pytest.mark.parametrize(
    ("model", "dataset", "options", "message"),
    [
        (
            STRANGER,
            None,
            [],
            r"but org/finetuned-stranger draws codes of codec ffffffffffffffff. Prepare your pictures",
        ),
        (EMPTY, None, [], "The weights of org/finetuned-empty are missing, damaged or do not fit"),
        ("org/absent", None, [], "org/absent is not on the Hub"),
        ("./absent", None, [], "There is no folder ./absent"),
        (BASE, "org/absent", [], "There is no dataset repository org/absent"),
        (BASE, None, ["--micro-batch-size", "97"], "has fewer records than one micro-batch of 97"),
        (BASE, None, ["--steps", "0"], "num_steps is 0; expected at least 1"),
        (BASE, None, ["--full", "--merge"], "--merge has no effect with --full"),
        (BASE, None, ["--mixed-precision", "fp8"], "mixed_precision is 'fp8'; expected one of no, fp16, bf16"),
    ],
)
def test_mistakes_give_one_line_and_leave_nothing_behind(
    material, commands, tmp_path, model, dataset, options, message
):
    done = commands.run(*finetune_arguments(material, tmp_path / "owls", *options, model=model, dataset=dataset))
    assert message in the_line(done)
    assert list(tmp_path.iterdir()) == []
