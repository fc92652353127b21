"""Muon's bits with the instructions of other processors and other numbers of threads, each in a program of its own."""

import hashlib
import json
import os
import subprocess
import sys

import pytest
import torch

from pipelines.training.optimizers.muon import Muon

KINDS = {
    "as it is": {},
    "old": dict(ATEN_CPU_CAPABILITY="default", MKL_CBWR="COMPATIBLE", ONEDNN_MAX_CPU_ISA="SSE41", OMP_NUM_THREADS="1"),
    "AVX2": dict(ATEN_CPU_CAPABILITY="avx2", MKL_CBWR="AVX2", ONEDNN_MAX_CPU_ISA="AVX2", OMP_NUM_THREADS="2"),
    "AVX-512": dict(ATEN_CPU_CAPABILITY="avx512", MKL_CBWR="AVX512", ONEDNN_MAX_CPU_ISA="AVX512_CORE"),
    "threads": dict(OMP_NUM_THREADS="3"),
}
NUM_STEPS = 8
SHAPES = ((130, 70), (70, 130), (64, 64), (1100, 3))


def made_up(shape, seed):
    """Return float32 values that are the same on every processor."""
    return torch.randint(-(2**20), 2**20, shape, generator=torch.Generator().manual_seed(seed)) / 2.0**24


def digest(*tensors):
    return hashlib.sha256(b"".join(tensor.detach().numpy().tobytes() for tensor in tensors)).hexdigest()


def trained(bits):
    """Return the digest of matrices, a table and their statistics after some steps."""
    matrices = [torch.nn.Parameter(made_up(shape, 0)) for shape in SHAPES]
    table = torch.nn.Parameter(made_up((100, 50), 1))
    groups = [dict(params=matrices, is_orthogonal=True), dict(params=[table], weight_decay=0.1)]
    optimizer = Muon(groups, lr=0.01, betas=(0.9, 0.96), weight_decay=0.05, max_gradient_norm=1.0, bits=bits)
    for step in range(NUM_STEPS):
        for number, parameter in enumerate((*matrices, table)):
            parameter.grad = made_up(parameter.shape, 1000 * step + number)
        optimizer.step()
    kept = [tensor for state in optimizer.state.values() for tensor in state.values()]
    return digest(*matrices, table, *kept)


@pytest.mark.slow
def test_all_processors_and_numbers_of_threads_give_the_same_bits():
    command = [sys.executable, __file__]
    found = []
    for kind in KINDS.values():
        done = subprocess.run(command, env=os.environ | kind, capture_output=True, text=True, check=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
    plain_products = {one.pop("plain product") for one in found}
    assert len(plain_products) > 1, "the programs compute alike, so nothing was compared"
    assert found == [found[0]] * len(KINDS)


if __name__ == "__main__":
    matrix = made_up((257, 333), 7)
    plain = digest(matrix @ matrix.T, torch.addcmul(matrix, matrix, matrix, value=0.3))
    print(json.dumps({"8": trained(8), "32": trained(32), "plain product": plain}))
