"""The benchmark for GPUs runs through on a CPU, so that it works the day there is a GPU."""

import pytest
import torch
from gpu import Machine, cells, measure, sizes_of_a_gpu, tiny_size

from modeling_dalle_collab import DalleCollabForConditionalGeneration


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_all_cells_run_with_a_tiny_model_on_the_cpu():
    machine, said = Machine(device="cpu", peak_tflops=1.0), []
    rows = list(measure([tiny_size()], machine, 600.0, said.append))
    assert said == [name for name, _ in cells([tiny_size()], machine)]
    assert {row.unit for row in rows} == {"s", "1", "1/s"} and all(row.ours > 0 for row in rows)


def test_what_does_not_fit_into_the_time_is_named():
    said = []
    assert list(measure([tiny_size()], Machine(device="cpu", peak_tflops=None), -1.0, said.append)) == []
    assert said and all(line.startswith("left out, the time is over: ") for line in said)


def test_the_larger_model_has_more_than_a_billion_parameters():
    with torch.device("meta"):
        sizes = {
            size.name: DalleCollabForConditionalGeneration(size.config).num_parameters() for size in sizes_of_a_gpu()
        }
    assert 1.2e8 < sizes["paper"] < 1.3e8 and 1.1e9 < sizes["1.1 B unshared"] < 1.2e9
