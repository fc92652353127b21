"""Contributions of a few small tensors, for tests of what members of a group do with them."""

import torch
from hivemind.p2p import PeerID
from hivemind.utils import MSGPackSerializer

from pipelines.features.sparse.codec import SparseCodec

CODEC = SparseCodec([(40, 30), (77,)], chunk=64, k=4)
SIZES = range(CODEC.least_bytes, CODEC.most_bytes + 1)
EPOCH = 3


def peer(number):
    return PeerID(b"\x12\x20" + bytes([number]) * 32)


def content(seed, scale=1.0, num_samples=16):
    generator = torch.Generator().manual_seed(seed)
    values = [scale * torch.randn(shape, generator=generator) for shape in CODEC.layout.shapes]
    return CODEC.encode(values, num_samples)


def gathered(message):
    return MSGPackSerializer.dumps([1.0, 0, message])
