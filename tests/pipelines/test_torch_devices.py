"""On which device a person computes here, and with how many threads."""

import subprocess
import sys

import pytest
import torch

from pipelines.torch_devices import GIBIBYTE, cap_gpu_memory, off_the_gpu, torch_devices, wanted_threads

ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def test_a_peer_computes_with_the_threads_of_omp_num_threads():
    assert wanted_threads(None, ONE_THREAD) == 1


def test_who_says_how_many_threads_is_obeyed_whatever_the_environment_says():
    assert wanted_threads(3, ONE_THREAD) == 3


@pytest.mark.parametrize(
    ("value", "num_threads"), [("2,4", 2), (" 3 ", 3), ("", None), ("0", None), ("-1", None), ("all", None)]
)
def test_omp_num_threads_is_read_as_openmp_reads_it(value, num_threads):
    assert wanted_threads(None, {"OMP_NUM_THREADS": value}) == num_threads


def test_without_a_wish_nobody_says_how_many_threads():
    assert wanted_threads(None, {}) is None


def test_cores_that_this_process_may_not_use_do_not_count():
    program = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); "
        "from pipelines.torch_devices import num_cores; print(num_cores())"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "1\n"


def test_a_list_of_devices_is_taken_apart_and_checked():
    assert torch_devices("cpu, cpu") == ("cpu", "cpu")
    assert torch_devices("auto") == ("cpu",) or torch.cuda.is_available()
    with pytest.raises(ValueError, match="There is no device 'spam'"):
        torch_devices("cpu,spam")


def test_without_a_gpu_a_cap_on_its_memory_is_said_to_have_no_effect(caplog):
    cap_gpu_memory("cpu", None)
    assert caplog.messages == []
    cap_gpu_memory("cpu", 6.0)
    assert caplog.messages == ["--max-gpu-memory 6 has no effect: there is no GPU to cap, this peer is on cpu."]


def test_without_a_gpu_nothing_is_moved_off_it():
    tensor = torch.ones(3)
    place = tensor.data_ptr()
    off_the_gpu([tensor])()
    assert tensor.data_ptr() == place


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpus_memory_is_capped_and_given_back_in_a_pause():
    model = torch.nn.Linear(1024, 1024, device="cuda")
    weight, values = model.weight, model.weight.detach().cpu()
    bring_back = off_the_gpu(model.parameters())
    assert torch.cuda.memory_allocated() == 0 and weight.device.type == "cpu"
    bring_back()
    assert model.weight is weight and weight.device.type == "cuda" and torch.equal(weight.detach().cpu(), values)
    model(torch.ones(1, 1024, device="cuda")).sum().backward()
    assert weight.grad.device.type == "cuda"
    cap_gpu_memory("cuda", 0.25)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(GIBIBYTE // 2, dtype=torch.uint8, device="cuda")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
