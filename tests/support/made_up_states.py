"""Training states of a few tensors."""

import torch

from pipelines.core.optimizers.lamb import Lamb
from pipelines.core.state.digest import named_state
from pipelines.core.state.snapshot import StateSnapshot


def made_up_state(seed=0, bits=8, num_steps=2, shapes=((64, 96), (7,))):
    """Return the named tensors of a LAMB that has made some steps on a large and a small parameter."""
    generator = torch.Generator().manual_seed(seed)
    parameters = [torch.nn.Parameter(torch.rand(shape, generator=generator)) for shape in shapes]
    optimizer = Lamb(parameters, lr=1e-2, bits=bits)
    for _ in range(num_steps):
        for parameter in parameters:
            parameter.grad = torch.rand(parameter.shape, generator=generator) - 0.5
        optimizer.step()
    return named_state(optimizer)


def sealed(state, epoch=3, swarm_id="birds"):
    snapshot = StateSnapshot(state, swarm_id)
    snapshot.begin()
    snapshot.fill(state)
    return snapshot, snapshot.seal(epoch)
