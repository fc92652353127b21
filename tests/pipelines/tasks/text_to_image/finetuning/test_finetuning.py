"""Fine-tuning: what is trained and what is not, equal gradients on both paths, and results that load elsewhere."""

import json
import os
import subprocess
import sys

import pytest
import torch
from isolation import PROJECT, environment_without
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModel, AutoProcessor

from modeling_dalle_collab import DalleCollabConfig, DalleCollabForConditionalGeneration, DalleCollabProcessor
from pipelines.tasks.text_to_image.data_preparation.tokenizer_training import train_tokenizer
from pipelines.tasks.text_to_image.finetuning.finetuned_folder import check_output, write_finetuned
from pipelines.tasks.text_to_image.finetuning.finetuning import (
    FinetuningProgress,
    FinetuningSource,
    finetune,
    load_trainable_model,
    trainable_parameters,
)
from pipelines.tasks.text_to_image.finetuning.finetuning_options import FinetuningOptions
from pipelines.tasks.text_to_image.image_code_stream import image_code_batch
from pipelines.tasks.text_to_image.image_codes.codec_code import CODEC_CODE_FILES

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")

SIZES = dict(codebook_size=32, text_sequence_length=8, image_grid_size=4, hidden_size=32, num_hidden_layers=5)
HEADS = dict(num_attention_heads=2, head_dim=16, attention_pattern=["row", "column"])
QUICK = dict(num_steps=40, learning_rate=1e-2, lora_rank=8)
REACHED = FinetuningProgress(step=3, loss=2.0, mean_loss=2.5)


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def base_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base") / "base"
    torch.manual_seed(0)
    processor = DalleCollabProcessor(
        train_tokenizer([f"picture number {number}" for number in range(96)], 64, model_max_length=8),
        image_codec_repository="org/codec",
        image_codec_fingerprint="0123456789abcdef",
        text_sequence_length=8,
    )
    processor.save_pretrained(folder)
    config = DalleCollabConfig(**SIZES, **HEADS, text_vocab_size=len(processor.tokenizer))
    DalleCollabForConditionalGeneration(config).save_pretrained(folder)
    return folder


@pytest.fixture
def source(base_folder):
    return FinetuningSource(
        model_name=str(base_folder),
        model_revision=None,
        processor=DalleCollabProcessor.from_pretrained(base_folder),
        dataset="org/owls-codes",
        dataset_revision="fedcba9876543210",
        num_codes=16,
    )


def endless_batches(source, size=4):
    """Yield batches of a tiny dataset whose codes follow from the captions."""
    generator = torch.Generator().manual_seed(0)
    while True:
        numbers = torch.randint(0, 96, (size,), generator=generator)
        text = source.processor(text=[f"picture number {number}" for number in numbers.tolist()])
        yield image_code_batch(text["input_ids"], (numbers[:, None] + torch.arange(16)) % 32)


def trained(source, **options):
    options = FinetuningOptions(**{**QUICK, **options})
    model = load_trainable_model(source, options)
    return model, list(finetune(model, endless_batches(source), options)), options


def gradients(source, recompute):
    torch.manual_seed(0)
    model = load_trainable_model(source, FinetuningOptions(lora_rank=4)).train()
    model.base_model.model.config.recompute = recompute
    for parameter in trainable_parameters(model):
        torch.nn.init.normal_(parameter, std=0.1)  # an adapter starts at zero, where half of the gradients are zero
    batch = next(endless_batches(source))
    model(input_ids=batch["input_ids"], image_codes=batch["image_codes"], return_logits=False).loss.backward()
    assert all(parameter.grad is None for parameter in model.parameters() if not parameter.requires_grad)
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.requires_grad}


def test_an_adapters_gradients_are_those_of_stored_activations(source):
    recomputed, stored = gradients(source, "reversible"), gradients(source, "none")
    assert recomputed.keys() == stored.keys() and len(stored) == 2 * 4 * 3
    for name, gradient in stored.items():
        assert gradient.abs().max() > 0, name
        torch.testing.assert_close(recomputed[name], gradient, rtol=1e-4, atol=1e-6)


def test_the_loss_falls_and_the_base_weights_stay_bit_equal(source, base_folder):
    model, progress, _ = trained(source)
    assert [point.step for point in progress] == list(range(1, 41))
    assert progress[-1].mean_loss < 0.6 * progress[0].loss
    assert progress[-1].mean_loss == pytest.approx(sum(p.loss for p in progress[-20:]) / 20)
    before = load_file(base_folder / "model.safetensors")
    after = {name.replace(".base_layer", ""): tensor for name, tensor in model.base_model.model.state_dict().items()}
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert all("lora_" in name for name, p in model.named_parameters() if p.requires_grad)


def test_full_fine_tuning_changes_all_weights_and_writes_a_whole_model(source, base_folder, tmp_path):
    model, progress, options = trained(source, full=True, learning_rate=1e-3)
    assert progress[-1].mean_loss < 0.8 * progress[0].loss
    (folder,) = write_finetuned(tmp_path / "owls", model, source, options, progress[-1])
    before, after = load_file(base_folder / "model.safetensors"), load_file(folder / "model.safetensors")
    assert after.keys() == before.keys()
    assert not any(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_accumulated_micro_batches_are_one_larger_batch(source):
    whole = next(endless_batches(source))
    halves = [{name: tensor[half] for name, tensor in whole.items()} for half in (slice(0, 2), slice(2, 4))]
    results = []
    for given, options in (([whole], {}), (halves, {"gradient_accumulation": 2})):
        torch.manual_seed(0)
        options = FinetuningOptions(num_steps=1, warmup_share=0, full=True, learning_rate=1e-3, **options)
        model = load_trainable_model(source, options)
        (progress,) = finetune(model, iter(given), options)
        results.append((progress.loss, model.state_dict()))
    (loss, weights), (other_loss, other_weights) = results
    assert loss == pytest.approx(other_loss, rel=1e-5)
    for name, tensor in weights.items():
        # AdamW's first step is the sign of the gradient, whatever its size, so rounding shows where it is near zero.
        assert (tensor - other_weights[name]).abs().gt(1e-5).float().mean() < 0.02, name


def test_half_precision_computes_in_bfloat16_and_keeps_float32_weights(source):
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state()
    model, progress, _ = trained(source, mixed_precision="bf16")
    AcceleratorState._reset_state()
    assert progress[-1].mean_loss < 0.7 * progress[0].loss
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    batch = next(endless_batches(source))
    assert model(input_ids=batch["input_ids"], image_codes=batch["image_codes"]).logits.dtype == torch.float32
    with torch.no_grad(), model.disable_adapter():
        exact = model(input_ids=batch["input_ids"], image_codes=batch["image_codes"]).loss.item()
    assert progress[0].loss != exact and progress[0].loss == pytest.approx(exact, rel=1e-2)


def test_a_loss_that_is_not_finite_ends_the_training(source):
    options = FinetuningOptions(**QUICK)
    model = load_trainable_model(source, options)
    with torch.no_grad():
        model.base_model.model.output_bias[0] = torch.nan
    with pytest.raises(ValueError, match=r"The loss of step 1 is nan, .*Lower --learning-rate"):
        list(finetune(model, endless_batches(source), options))


def test_a_merged_model_is_whole_and_gives_the_adapters_logits(source, tmp_path):
    model, progress, options = trained(source, merge=True)
    batch = next(endless_batches(source))
    with torch.no_grad():
        expected = model(input_ids=batch["input_ids"], image_codes=batch["image_codes"]).logits
    adapter, folder = write_finetuned(tmp_path / "owls", model, source, options, progress[-1], merge=True)
    merged, report = AutoModel.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    torch.testing.assert_close(
        merged(input_ids=batch["input_ids"], image_codes=batch["image_codes"]).logits, expected, rtol=1e-4, atol=1e-4
    )
    processor = AutoProcessor.from_pretrained(folder)
    assert processor.image_codec_fingerprint == source.processor.image_codec_fingerprint
    assert {"pipeline_dalle_collab.py", *CODEC_CODE_FILES} <= {path.name for path in folder.iterdir()}
    names = {"adapter_config.json", "adapter_model.safetensors", "README.md"}
    assert {path.name for path in adapter.iterdir()} == names


def test_cards_name_what_was_trained_on_what(source, tmp_path):
    options = FinetuningOptions(merge=True)
    hub_source = FinetuningSource(**{**vars(source), "model_name": "org/birds", "model_revision": "0011223344"})
    model = load_trainable_model(source, options)
    adapter, whole = write_finetuned(tmp_path / "owls", model, hub_source, options, REACHED, merge=True)
    for folder, library in ((adapter, "peft"), (whole, "transformers")):
        card = (folder / "README.md").read_text()
        assert card.startswith(f"---\nlibrary_name: {library}\npipeline_tag: text-to-image\nbase_model: org/birds\n")
        assert "datasets: [org/owls-codes]" in card and "| `base_model_revision` | 0011223344 |" in card
        assert "| `dataset_revision` | fedcba9876543210 |" in card and "| `learning_rate` | 0.0001 |" in card
        assert "| `step` | 3 |" in card and "| `mean_loss` | 2.5 |" in card
    assert 'revision="0011223344"' in (adapter / "README.md").read_text()
    assert "base_model:" not in _card_of_a_local_base(source, model, tmp_path)


def _card_of_a_local_base(source, model, tmp_path):
    (folder,) = write_finetuned(
        tmp_path / "local", model.base_model.model, source, FinetuningOptions(full=True), REACHED
    )
    return (folder / "README.md").read_text()


def test_a_result_is_replaced_whole_or_not_at_all(source, tmp_path):
    options, output = FinetuningOptions(), tmp_path / "owls"
    model = load_trainable_model(source, options)
    write_finetuned(output, model, source, options, REACHED)
    before = {path: path.read_bytes() for path in output.rglob("*") if path.is_file()}
    with pytest.raises(TypeError, match="not JSON serializable"):
        write_finetuned(output, model, source, options, FinetuningProgress(step=4, loss=object(), mean_loss=1.0))
    assert {path: path.read_bytes() for path in output.rglob("*") if path.is_file()} == before
    write_finetuned(output, model, source, options, FinetuningProgress(step=4, loss=1.0, mean_loss=1.0))
    assert json.loads((output / "finetuning.json").read_text())["step"] == 4
    assert [path.name for path in tmp_path.iterdir()] == ["owls"]


def test_a_folder_of_something_else_is_not_replaced(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match=r"has other files. Name a new folder"):
        check_output(tmp_path)
    with pytest.raises(ValueError, match=r"thesis.tex is a file. Name a folder"):
        check_output(tmp_path / "thesis.tex")
    check_output(tmp_path / "new")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_steps": 0}, "num_steps is 0; expected at least 1"),
        ({"gradient_accumulation": 0}, "gradient_accumulation is 0; expected at least 1"),
        ({"learning_rate": float("nan")}, "learning_rate is nan; expected a number above 0"),
        ({"warmup_share": 1.0}, "warmup_share is 1.0, expected at least 0 and less than 1"),
        ({"mixed_precision": "fp8"}, "mixed_precision is 'fp8'; expected one of no, fp16, bf16"),
        ({"full": True, "merge": True}, "--merge has no effect with --full"),
    ],
)
def test_options_that_mean_nothing_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        FinetuningOptions(**change)


ELSEWHERE = """
import sys, warnings

import torch
from peft import AutoPeftModel, PeftModel
from safetensors.torch import save_file
from transformers import AutoModel, AutoProcessor, pipeline

torch.set_num_threads(1)
base, adapter, output = sys.argv[1:]
inputs = AutoProcessor.from_pretrained(base, trust_remote_code=True)(text=["picture number 5"])
codes = ((5 + torch.arange(16)) % 32)[None]
model = AutoModel.from_pretrained(base, trust_remote_code=True)
before = model(**inputs, image_codes=codes).logits
models = {
    "by_peft": PeftModel.from_pretrained(model, adapter),
    "by_auto_class": AutoPeftModel.from_pretrained(adapter, trust_remote_code=True),
    "by_transformers": AutoModel.from_pretrained(adapter, trust_remote_code=True),
}
logits = {name: loaded.eval()(**inputs, image_codes=codes).logits for name, loaded in models.items()}
draw = pipeline("text-to-image", model=adapter, trust_remote_code=True, output_type="codes", device="cpu")
drawn = draw("picture number 5", seed=3, num_images_per_prompt=2)
save_file({**logits, "before": before, "codes": drawn}, output)
"""


@pytest.mark.slow
def test_an_adapter_loads_with_peft_and_transformers_alone_and_gives_the_same_logits(source, base_folder, tmp_path):
    model, progress, options = trained(source)
    (adapter,) = write_finetuned(tmp_path / "owls", model, source, options, progress[-1])
    assert PeftModel.from_pretrained(AutoModel.from_pretrained(base_folder), adapter)
    (tmp_path / "elsewhere.py").write_text(ELSEWHERE)
    environment = {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, tmp_path / "elsewhere.py", base_folder, adapter, tmp_path / "logits.safetensors"],
        cwd=tmp_path,
        env=environment_without(PROJECT, environment),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    seen = load_file(tmp_path / "logits.safetensors")
    inputs, codes = source.processor(text=["picture number 5"]), ((5 + torch.arange(16)) % 32)[None]
    with torch.no_grad():
        expected = model(**inputs, image_codes=codes).logits
    assert all(torch.equal(seen[name], expected) for name in ("by_peft", "by_auto_class", "by_transformers"))
    assert not torch.allclose(seen["before"], expected)
    drawn = model.base_model.model.generate_image_codes(**inputs, num_candidates=2, seed=3)
    assert torch.equal(seen["codes"], drawn[0])
