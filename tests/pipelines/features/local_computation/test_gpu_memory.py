"""A peer leaves a GPU's memory to other programs: above its cap, and while it rests."""

import pytest
import torch

from pipelines.core.run.compute_options import GIBIBYTE
from pipelines.features.local_computation.gpu_memory import cap_gpu_memory, off_the_gpu


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
    before = torch.cuda.memory_allocated()
    model = torch.nn.Linear(1024, 1024, device="cuda")
    weight, values = model.weight, model.weight.detach().cpu()
    bring_back = off_the_gpu(model.parameters())
    assert torch.cuda.memory_allocated() == before and weight.device.type == "cpu"
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
