"""The mean of all peers' sparse progress, equal in every bit wherever it is computed."""

import statistics
from collections.abc import Sequence

import torch

from pipelines.training.sparse.codec import SparseCodec, SparseUpdate


def norm_scales(norms: Sequence[float]) -> list[float]:
    """Return the factors, at most 1, that shorten contributions to the median norm (of two medians, the lower one).

    So nobody of a group with an honest majority moves the mean further than an honest peer could (SparseLoCo).
    """
    median = statistics.median_low(norms)
    return [1.0 if norm <= median else median / norm for norm in norms]


def mean(codec: SparseCodec, updates: Sequence[SparseUpdate]) -> list[torch.Tensor]:
    """Return the sum of the contributions, each shortened to the median norm, over their number: float32 on the CPU.

    They are summed in the order of their digests, whatever order they came in. Raises ValueError if there are none.
    """
    if not updates:
        raise ValueError("There are no sparse updates to average; expected at least this peer's own.")
    in_order = sorted(updates, key=lambda update: update.digest)
    total = torch.zeros(codec.layout.num_values)
    for update, scale in zip(in_order, norm_scales([update.norm for update in in_order]), strict=True):
        codec.add_to(total, update, scale)
    return codec.views(total.div_(len(updates)))
