"""Models that a swarm cannot train are refused before anything is started, in one line."""

import pytest
import torch
from torch import nn

from pipelines.core.run.training_run import TrainingRun
from pipelines.joining.collaborating import (
    UnsuitableModelError,
    check_model,
    check_shared_memory,
    collaborate,
)


def two_layers():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def frozen(model):
    return model.requires_grad_(False)


def one_short_layer():
    model = two_layers()
    model[2].bfloat16()
    return model


def of_complex_numbers():
    model = two_layers()
    model[0].weight = nn.Parameter(torch.zeros(8, 4, dtype=torch.complex64))
    return model


def of_one_memory():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = nn.Parameter(model[0].weight.data)
    return model


def tied():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    return model


def with_a_quantised_base():
    model = two_layers()
    model[0].weight = nn.Parameter(torch.zeros(8, 4, dtype=torch.int8), requires_grad=False)
    return model


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            two_layers().half(),
            r"The parameter 0\.weight is float16, and the swarm averages float32\. Call model\.float",
        ),
        (one_short_layer(), r"The parameter 2\.weight is bfloat16"),
        (two_layers().double(), r"0\.weight is float64"),
        (of_complex_numbers(), r"0\.weight is complex64"),
        (with_a_quantised_base(), r"0\.weight is int8"),
        (two_layers().to("meta"), r"0\.weight has no values yet\. Give the model its values first"),
        (nn.LazyLinear(3), r"weight has no values yet"),
        (frozen(two_layers()), r"requires_grad=True: there is nothing to train"),
        (nn.Tanh(), r"there is nothing to train"),
        (nn.Embedding(5, 3, sparse=True), r"gives sparse gradients.*sparse=False"),
        (nn.Sequential(nn.EmbeddingBag(5, 3, sparse=True)), r"The layer 0 gives sparse gradients"),
        (of_one_memory(), r"The parameters 0\.weight and 1\.weight share one memory, but are two"),
    ],
)
def test_what_would_fail_in_the_middle_is_refused_in_one_line_before_anything_starts(model, message):
    run = TrainingRun(run_id="own", task="own", num_epochs=10, num_warmup_epochs=1)
    with pytest.raises(UnsuitableModelError, match=message) as refused, collaborate(run, model):
        raise AssertionError("it has entered the swarm")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("model", [two_layers(), tied(), nn.Embedding(5, 3)])
def test_a_plain_model_is_accepted_also_with_tied_parameters(model):
    check_model(model)


def test_a_model_for_which_the_shared_memory_is_too_small_is_refused_before_the_kernel_kills_it():
    model = nn.Linear(1000, 1000)  # 1,001,000 parameters and as many gradients, of 4 bytes each
    check_shared_memory(model, free=8_008_000)
    with pytest.raises(OSError, match=r"needs 8 MiB of shared memory, and 7 MiB are free in /dev/shm.*--shm-size"):
        check_shared_memory(model, free=7_000_000)
