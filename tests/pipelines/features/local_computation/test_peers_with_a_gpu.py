"""A peer that computes on a GPU, in 16 bits and compiled code, beside one on a CPU."""

import pytest
import torch
from safetensors.torch import load_file
from swarm_of_processes import PATIENT, Swarm, tiny_run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.swarm,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


@pytest.mark.parametrize("precision", ["auto", "fp16"])
def test_a_peer_on_a_gpu_and_one_on_a_cpu_end_with_equal_parameters(tmp_path, precision):
    run = tiny_run(target_batch_size=40, num_epochs=6, **PATIENT)
    computes = {"gpu": dict(device="cuda", precision=precision, max_gpu_memory=4.0), "cpu": dict(device="cpu")}
    with Swarm(tmp_path, run, num_peers=2) as swarm:
        peers = [
            swarm.start(name, micro_batch_size=5, seconds_per_batch=0.25, suits_its_machine=True, compute=compute)
            for name, compute in computes.items()
        ]
        for peer in peers:
            peer.wait_for("finished")
        assert not any(words in peers[0].log() for words in ("compiler failed", "recompile_limit")), peers[0].log()
    first, second = (load_file(tmp_path / f"{name}.safetensors") for name in computes)
    assert all(torch.equal(first[name], second[name]) for name in first)
    for peer in peers:
        (finished,) = peer.events("finished")
        assert finished["loss"] < peer.events("evaluation")[0]["loss"]
        assert [step["was_used"] for step in peer.events("step")].count(True) >= run.num_epochs
