"""On which device a person computes here, and with how many threads."""

import os
import subprocess
import sys

import pytest
import torch

from pipelines.features.torch_devices import num_cores, torch_devices, wanted_threads

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


def test_without_a_sampling_nobody_says_how_many_threads():
    assert wanted_threads(None, {}) is None


@pytest.mark.parametrize(
    ("files", "most"),
    [
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "100000 100000\n"}, 1),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.max": "6400000 100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "20000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({}, None),
    ],
)
def test_a_container_has_as_many_cores_as_it_has_time_of(tmp_path, files, most):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert num_cores(tmp_path) == (most or len(os.sched_getaffinity(0)))


def test_cores_that_this_process_may_not_use_do_not_count():
    program = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); "
        "from pipelines.features.torch_devices import num_cores; print(num_cores())"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "1\n"


def test_a_list_of_devices_is_taken_apart_and_checked():
    assert torch_devices("cpu, cpu") == ("cpu", "cpu")
    assert torch_devices("auto") == ("cpu",) or torch.cuda.is_available()
    with pytest.raises(ValueError, match="There is no device 'spam'"):
        torch_devices("cpu,spam")
