"""Small tensors of several shapes, as the progress of a peer."""

import torch

SHAPES = ((40, 300), (7,), (64, 64), (1,), (3, 5, 11))
CHUNK, K = 256, 16


def made_up(seed, shapes=SHAPES, scale=1e-3):
    generator = torch.Generator().manual_seed(seed)
    return [scale * torch.randn(shape, generator=generator) for shape in shapes]


def decoded(codec, payload):
    """Return the dense tensors that the bytes stand for."""
    vector = torch.zeros(codec.layout.num_values)
    codec.add_to(vector, codec.decode(payload))
    return codec.views(vector)
