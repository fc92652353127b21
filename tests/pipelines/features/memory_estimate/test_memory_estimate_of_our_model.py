"""The estimate for our model against what its training step really holds, counted tensor by tensor."""

import pytest
from measured_models import measure_our_model
from memory_measurement import storage_bytes

from modeling_dalle_collab import DalleCollabConfig, DalleCollabForConditionalGeneration
from pipelines.core.optimizers.choice import optimizer_parts
from pipelines.core.run.training_run import TrainingRun
from pipelines.features.memory_estimate.estimate import estimate_training_memory
from pipelines.features.memory_estimate.model_presets import ModelSizes
from pipelines.features.memory_estimate.settings import MemorySettings

pytestmark = pytest.mark.slow

TOLERANCE = 0.05

MIDDLING = dict(
    text_vocab_size=1000,
    codebook_size=512,
    text_sequence_length=64,
    image_grid_size=16,
    hidden_size=128,
    num_hidden_layers=6,
    num_attention_heads=2,
    head_dim=64,
)
PAPER = dict(num_hidden_layers=8)
"""The paper's sizes with fewer layers."""
SHORT = PAPER | dict(codebook_size=16384, image_grid_size=16)
"""The same with a codec of 256 codes for a picture."""


def estimated(sizes, **settings):
    settings["micro_batch_size"] = settings.pop("batch")
    return estimate_training_memory(
        ModelSizes.of(dict(model_type="dalle_collab") | sizes), MemorySettings(device="cpu", **settings)
    ).ram


def assert_close(split, step):
    assert split.weights == step.weights
    assert split.gradients == step.gradients
    assert split.activations == pytest.approx(step.activations, rel=TOLERANCE)
    assert split.total >= (1 - TOLERANCE) * step.total


@pytest.mark.long
@pytest.mark.parametrize("recompute", ["reversible", "partial", "none", "checkpoint"])
@pytest.mark.parametrize("precision", ["bf16", "fp32", "pure-bf16"])
def test_a_step_of_a_middling_model_holds_what_was_estimated(recompute, precision):
    how = dict(batch=3, recompute=recompute, precision=precision)
    assert_close(estimated(MIDDLING, **how), measure_our_model(MIDDLING, **how))


@pytest.mark.parametrize("batch", [pytest.param(1, marks=pytest.mark.long), 4])
@pytest.mark.parametrize("recompute", ["reversible", pytest.param("none", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "sizes", [pytest.param(PAPER, marks=pytest.mark.long, id="1024-codes"), pytest.param(SHORT, id="256-codes")]
)
def test_a_step_of_the_papers_width_holds_what_was_estimated(sizes, recompute, batch):
    how = dict(batch=batch, recompute=recompute)
    assert_close(estimated(sizes, **how), measure_our_model(sizes, fake=True, **how))


@pytest.mark.parametrize("bits", [8, 32])
@pytest.mark.parametrize("name", ["lamb", "muon"])
def test_the_statistics_of_our_optimizers_are_counted(name, bits):
    model = DalleCollabForConditionalGeneration(DalleCollabConfig(**MIDDLING))
    parts = optimizer_parts(TrainingRun(run_id="a", optimizer=name, optimizer_bits=bits), model)
    optimizer = parts["optimizer"](parts["params"])
    states = [value for state in optimizer.state.values() for value in state.values() if value.dim()]
    how = dict(batch=1, optimizer=name, optimizer_bits=bits)
    assert estimated(MIDDLING, **how).optimizer == pytest.approx(storage_bytes(states), rel=1e-4)
