"""On which device a person computes here, and with how many threads."""

import pytest
import torch

from pipelines.torch_devices import compute_threads, torch_devices

ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def test_a_peer_computes_with_the_threads_of_omp_num_threads():
    assert compute_threads(None, ONE_THREAD, num_cores=8) == 1


def test_who_says_how_many_threads_is_obeyed_whatever_the_environment_says():
    assert compute_threads(3, ONE_THREAD, num_cores=8) == 3


@pytest.mark.parametrize("num_cores", [8, None])
def test_without_a_wish_a_peer_takes_all_cores_or_one_where_they_cannot_be_counted(num_cores):
    assert compute_threads(None, {}, num_cores) == (num_cores or 1)


@pytest.mark.parametrize(("value", "num_threads"), [("2,4", 2), (" 3 ", 3), ("", 8), ("0", 8), ("-1", 8), ("all", 8)])
def test_omp_num_threads_is_read_as_openmp_reads_it(value, num_threads):
    assert compute_threads(None, {"OMP_NUM_THREADS": value}, num_cores=8) == num_threads


def test_a_list_of_devices_is_taken_apart_and_checked():
    assert torch_devices("cpu, cpu") == ("cpu", "cpu")
    assert torch_devices("auto") == ("cpu",) or torch.cuda.is_available()
    with pytest.raises(ValueError, match="There is no device 'spam'"):
        torch_devices("cpu,spam")
