"""How many samples a machine computes at once: by what it measures, and within its memory."""

import pytest
import torch
from made_up_tasks import made_up_task
from swarm_of_processes import tiny_run

from pipelines.core.gradients.computation import GradientComputation
from pipelines.core.run.task import num_samples
from pipelines.features.local_computation.micro_batch import (
    NoMicroBatchFitsError,
    choose_micro_batch,
    gpu_suffices,
    largest_useful,
    ram_suffices,
    trial,
)


def machine(*, fits, fixed=0.0, per_sample=0.01):
    """Return a machine that takes `fixed` seconds for a pass and `per_sample` more for each, and what it was asked."""
    asked = []

    def measure(size):
        asked.append(size)
        return fixed + per_sample * size if size <= fits else None

    return measure, asked


@pytest.mark.parametrize(
    ("fits", "fixed", "expected"),
    [
        (1000, 0.0, 1),  # a sample costs the same in any company: stay small
        (1000, 0.05, 64),  # 10.8 ms a sample with 64, 10.4 ms with 128
        (40, 10.0, 1),  # one pass takes long already
        (40, 1.0, 32),  # memory ends between 32 and 48
        (50, 1.0, 48),  # and here between 48 and 64
        (1, 1.0, 1),
        (1000, 3.0, 128),  # 256 would still pay, but would blur the end of an epoch
    ],
)
def test_the_micro_batch_is_at_the_knee_of_the_speed_or_where_memory_ends(fits, fixed, expected):
    measure, asked = machine(fits=fits, fixed=fixed)
    assert choose_micro_batch(measure, largest=128) == expected
    assert max(map(asked.count, asked)) <= 2, "a machine that does nothing else is measured twice"


def test_a_device_without_room_for_one_sample_is_named():
    with pytest.raises(NoMicroBatchFitsError, match="Not even one sample fits"):
        choose_micro_batch(lambda size: None, largest=8)


def test_a_micro_batch_is_small_beside_the_batch_of_the_swarm():
    assert [largest_useful(target) for target in (1, 32, 4096)] == [1, 4, 256]


def test_twice_the_memory_of_the_last_size_must_leave_half_of_what_is_free():
    assert ram_suffices(100, free_bytes=400)
    assert not ram_suffices(101, free_bytes=400)


def test_a_gpu_suffices_within_the_cap_and_beside_other_programs():
    assert gpu_suffices(90, others=0, total=100, cap=100.0) and not gpu_suffices(91, others=0, total=100, cap=100.0)
    assert gpu_suffices(36, others=0, total=100, cap=40.0) and not gpu_suffices(37, others=0, total=100, cap=40.0)
    assert not gpu_suffices(36, others=60, total=100, cap=40.0)


def test_trying_a_size_computes_real_gradients_and_leaves_no_trace():
    run = tiny_run()
    task = made_up_task(run)
    model = task.new_model()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    random_state = torch.get_rng_state()
    computation = GradientComputation(task, model, device="cpu", precision="fp32", compiled=False)
    sizes = []

    def backward(batch, factor):
        sizes.append(num_samples(batch))
        loss = computation.backward(batch, factor)
        assert all(parameter.grad is not None for parameter in model.parameters())
        return loss

    assert trial(task, backward, model, "cpu")(4) > 0
    assert set(sizes) == {4}
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random_state)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_finds_a_micro_batch_that_trains():
    run = tiny_run()
    task = made_up_task(run)
    model = task.new_model().to("cuda")
    computation = GradientComputation(task, model, device="cuda", precision="bf16", compiled=False)
    size = choose_micro_batch(trial(task, computation.backward, model, "cuda"), largest=64)
    assert computation.backward(task.made_up_batch(size), 1.0).mean > 0
