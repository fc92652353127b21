"""Checkpoints: bit-equal round trips, refusals by name, and what is published with them."""

import gc
import pickle
import resource

import pytest
import torch
from huggingface_hub import ModelCard
from made_up_tasks import made_up_batch
from matplotlib.figure import Figure
from PIL import Image
from safetensors.torch import load_file, save_file
from swarm_of_processes import TINY_MODEL, tiny_run

from modeling_dalle_collab import DalleCollabForConditionalGeneration, DalleCollabProcessor
from pipelines.core.optimizers.choice import optimizer_parts
from pipelines.features.publishing.auxiliary.publishing.checkpoint_writing import write_checkpoint
from pipelines.features.publishing.checkpoint_tensors import (
    RunState,
    load_training_state,
    num_parameters_in,
    save_training_state,
)
from pipelines.features.publishing.metrics.epoch_summary import EpochSummary
from pipelines.features.publishing.metrics.loss_curve import draw_loss_curve
from pipelines.features.publishing.publishable_task import CheckpointFacts, Source
from pipelines.tasks.choice import open_task
from pipelines.tasks.text_to_image.data_preparation.tokenizer_training import train_tokenizer
from pipelines.tasks.text_to_image.image_codes.codec_code import CODEC_CODE_FILES
from pipelines.tasks.text_to_image.model import initial_model

STATE = RunState(run_id="birds", epoch=3, loss=2.5, package_version="0.1.0")


def made_parts(run, num_steps=3):
    """A model and its optimizer after some steps."""
    model = initial_model(run)
    parts = optimizer_parts(run, model)
    optimizer = parts["optimizer"](parts["params"])
    for seed in range(num_steps):
        batch = made_up_batch(run, seed, 4)
        model.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()
    return model, optimizer


def task_with_processor(run):
    task = open_task(run, "test/run")
    task.processor = DalleCollabProcessor(train_tokenizer(["a bird"], 30, 8), text_sequence_length=8)
    return task


def facts(num_parameters, **values):
    values = dict(epoch=STATE.epoch, loss=STATE.loss) | values
    return CheckpointFacts(repository="org/birds", num_parameters=num_parameters, **values)


@pytest.fixture(params=[("lamb", 8), ("lamb", 32), ("muon", 8)], ids=str)
def saved(request, tmp_path):
    optimizer, bits = request.param
    run = tiny_run(optimizer=optimizer, optimizer_bits=bits, model_config=dict(TINY_MODEL, hidden_size=128))
    model, optimizer = made_parts(run)
    model.save_pretrained(tmp_path)
    save_training_state(tmp_path, model, optimizer, STATE)
    return run, model, optimizer, tmp_path


def states_of(model, optimizer):
    """All tensors that training goes on from."""
    tensors = dict(model.named_parameters())
    for number, parameter in enumerate(p for group in optimizer.param_groups for p in group["params"]):
        tensors |= {f"{number}.{key}": tensor for key, tensor in optimizer.state[parameter].items()}
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def test_a_checkpoint_restores_model_and_optimizer_bit_by_bit(saved):
    run, model, optimizer, folder = saved
    fresh_model, fresh_optimizer = made_parts(run.replace(seed=1), num_steps=0)
    assert load_training_state(folder, fresh_model, fresh_optimizer) == STATE
    expected, restored = states_of(model, optimizer), states_of(fresh_model, fresh_optimizer)
    assert expected.keys() == restored.keys()
    for name, tensor in expected.items():
        assert tensor.dtype == restored[name].dtype and torch.equal(tensor, restored[name]), name
    if run.optimizer_bits == 8:
        assert any(tensor.dtype == torch.uint8 for tensor in restored.values())


def test_an_offloaded_optimizers_own_copies_of_the_parameters_are_restored_too(saved):
    run, model, _, folder = saved
    fresh = initial_model(run.replace(seed=1))
    parts = optimizer_parts(run, fresh)
    groups = [{**g, "params": [torch.nn.Parameter(p.detach().clone()) for p in g["params"]]} for g in parts["params"]]
    originals = [p for group in parts["params"] for p in group["params"]]
    offloaded = parts["optimizer"](groups)
    load_training_state(folder, fresh, offloaded)
    copies = [p for group in offloaded.param_groups for p in group["params"]]
    assert all(torch.equal(copy, original) for copy, original in zip(copies, originals, strict=True))
    assert all(torch.equal(p, q) for p, q in zip(fresh.parameters(), model.parameters(), strict=True))


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer_state.safetensors"])
def test_a_pickle_in_the_place_of_tensors_is_refused_by_name_and_never_loaded(saved, name):
    run, _, _, folder = saved

    class Bomb:
        def __reduce__(self):
            return (exec, ("raise SystemExit('unpickled')",))

    (folder / name).write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(ValueError, match=rf"{name} is not a complete safetensors file .* a pickle .* is never loaded"):
        load_training_state(folder, *made_parts(run, num_steps=0))


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer_state.safetensors"])
def test_a_truncated_or_missing_file_is_refused_by_name_and_changes_nothing(saved, name):
    run, _, _, folder = saved
    content = (folder / name).read_bytes()
    model, optimizer = made_parts(run, num_steps=0)
    before = states_of(model, optimizer)
    (folder / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=f"{name} is not a complete safetensors file"):
        load_training_state(folder, model, optimizer)
    (folder / name).unlink()
    with pytest.raises(ValueError, match=f"{name} is not a complete safetensors file .*Download the checkpoint again"):
        load_training_state(folder, model, optimizer)
    assert all(torch.equal(tensor, before[key]) for key, tensor in states_of(model, optimizer).items())


def test_a_checkpoint_of_another_model_or_of_other_statistics_is_refused_by_name(saved):
    run, _, _, folder = saved
    narrow = run.replace(model_config=dict(run.model_config, hidden_size=64))
    with pytest.raises(ValueError, match=r"optimizer_state.safetensors has .* It belongs to another model or run"):
        load_training_state(folder, *made_parts(narrow, num_steps=0))
    other_bits = run.replace(optimizer_bits=40 - run.optimizer_bits)
    with pytest.raises(ValueError, match=r"optimizer_state.safetensors has .* expected"):
        load_training_state(folder, *made_parts(other_bits, num_steps=0))


def test_weights_of_another_model_leave_the_weights_as_they_were(saved):
    run, _, _, folder = saved
    weights = load_file(folder / "model.safetensors")
    name = next(iter(weights))
    weights[name] = weights[name][:1].clone()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    model, optimizer = made_parts(run, num_steps=0)
    before = {key: parameter.detach().clone() for key, parameter in model.named_parameters()}
    with pytest.raises(ValueError, match=rf"model.safetensors has .* for {name}; expected"):
        load_training_state(folder, model, optimizer)
    assert all(torch.equal(parameter, before[key]) for key, parameter in model.named_parameters())


@pytest.mark.parametrize("text", ["{", '{"epoch": 3}', None])
def test_a_damaged_run_state_is_refused_by_name(saved, text):
    run, _, _, folder = saved
    (folder / "run_state.json").unlink()
    if text is not None:
        (folder / "run_state.json").write_text(text)
    with pytest.raises(ValueError, match=r"run_state.json cannot be read .*Download the checkpoint again"):
        load_training_state(folder, *made_parts(run, num_steps=0))


def history(num_points):
    return [
        EpochSummary(
            epoch=number, loss=5.0 / number, num_peers=2, samples_per_second=9.0, share_averaged=1.0,
            bytes_sent=10, num_rounds=number, round_seconds=0.1, time=0.0, epoch_seconds=0.0,
        )
        for number in range(1, num_points + 1)
    ]  # fmt: skip


def test_what_is_published_loads_as_a_model_and_says_how_far_the_run_is(tmp_path):
    run = tiny_run(dataset_repository="org/birds-codes", dataset_revision="0123456789abcdef")
    model, optimizer = made_parts(run)
    task = task_with_processor(run)
    write_checkpoint(tmp_path, task, model, optimizer, STATE)
    loaded = DalleCollabForConditionalGeneration.from_pretrained(tmp_path)
    assert all(torch.equal(p, q) for p, q in zip(loaded.parameters(), model.parameters(), strict=True))
    assert num_parameters_in(tmp_path) == model.num_parameters()
    card = task.card(
        facts(
            model.num_parameters(), history=history(3), evaluations=[dict(epoch=2, loss=3.25, num_records=48)],
            sources=[Source(role="codec", repository="org/vqgan", revision="fedcba9876543210", licence="mit")],
        )
    )  # fmt: skip
    assert card.startswith("---\nlibrary_name: transformers\npipeline_tag: text-to-image\n")
    assert f"| epoch | 3 of {run.num_epochs} |" in card and "| training loss (nats) | 2.5000 |" in card
    assert "| held-out loss (nats) | 3.2500 at epoch 2, on 48 records: too few to tell small differences |" in card
    shown = ModelCard(card).data.eval_results
    assert [(item.metric_type, item.metric_value, item.metric_args) for item in shown] == [
        ("loss", 3.25, dict(epoch=2, num_records=48))
    ]
    assert shown[0].dataset_revision == "0123456789abcdef" and ModelCard(card).data.model_name == "org/birds"
    assert "dalle-collab run rollback org/birds N" in card
    assert "| most peers at a time | 2 |" in card and f"{model.num_parameters():,}" in card
    assert "| codec | [org/vqgan](/org/vqgan) | `fedcba987654` | mit |" in card
    assert ModelCard(card).data.datasets == ["org/birds-codes"] and "what the model draws" not in card
    assert "![loss curve](loss_curve.png)" in card and "dalle-collab join org/birds" in card
    assert 'pipeline("text-to-image", model="org/birds", trust_remote_code=True)' in card
    assert {"pipeline_dalle_collab.py", *CODEC_CODE_FILES} <= {path.name for path in tmp_path.iterdir()}
    assert {path.suffix for path in tmp_path.iterdir()} <= {".json", ".safetensors", ".py", ".jinja"}


def test_a_full_disk_is_an_os_error_so_that_the_auxiliary_peer_tries_again_later(tmp_path):
    model, optimizer = made_parts(tiny_run())
    task = task_with_processor(tiny_run())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, hard))
    try:
        with pytest.raises(OSError, match=r"cannot be written: .*File too large"):
            write_checkpoint(tmp_path, task, model, optimizer, STATE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_so_it_is_where_the_tokenizer_meets_the_full_disk_first(tmp_path):
    model, optimizer = made_parts(tiny_run())
    task = task_with_processor(tiny_run())
    (tmp_path / "tokenizer.json").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"cannot be written: .*No space left on device"):
        write_checkpoint(tmp_path, task, model, optimizer, STATE)


@pytest.mark.parametrize("num_points", [0, 1, 3])
def test_the_loss_curve_is_a_picture_however_much_there_is_to_draw(tmp_path, num_points):
    draw_loss_curve(history(num_points), tmp_path / "loss_curve.png", [dict(epoch=2, loss=3.0)][:num_points])
    with Image.open(tmp_path / "loss_curve.png") as picture:
        assert picture.size == (880, 550) and picture.format == "PNG"


def test_nothing_is_left_of_a_loss_curve_in_memory(tmp_path):
    def num_figures():
        return sum(type(one) is Figure for one in gc.get_objects())

    gc.collect()
    num_before = num_figures()
    draw_loss_curve(history(3), tmp_path / "loss_curve.png")
    assert num_figures() == num_before


def test_a_card_without_history_says_that_the_loss_is_not_known_yet():
    card = open_task(tiny_run(), "test/run").card(facts(1000, loss=None))
    assert "| training loss (nats) | not known yet |" in card and "| most peers at a time | 0 |" in card
