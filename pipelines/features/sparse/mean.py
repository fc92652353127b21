"""The mean of all peers' sparse progress by their samples, equal in every bit wherever it is computed."""

import math
import statistics
from collections.abc import Sequence

import torch

from pipelines.features.sparse.codec import SparseCodec, SparseUpdate

NORM_TOLERANCE = 1.1
"""Contributions of equally many samples differ less in norm: by 4 % at most among 16 peers with 15 local steps."""


def norm_scales(norms: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Return the factors, at most 1, that shorten contributions to what the group's norms allow for their samples.

    With the median norm per sample (of two medians, the lower one) progress may be as long as its samples say. Of fewer
    samples than usual it is mostly noise, which grows with their root only. So nobody of a group with an honest
    majority moves the mean further than an honest peer of as much weight could, and who claims less moves it less.
    """
    per_sample = NORM_TOLERANCE * statistics.median_low(
        [norm / weight for norm, weight in zip(norms, weights, strict=True)]
    )
    usual = statistics.median(weights)
    limits = [per_sample * max(weight, math.sqrt(weight * usual)) for weight in weights]
    return [1.0 if norm <= limit else limit / norm for norm, limit in zip(norms, limits, strict=True)]


def share_to_send_again(scale: float) -> float:
    """Return the share of a contribution that its peer sends once more after it was shortened by this factor.

    It is what was cut, but no more than has counted: a peer whose progress is always too long would pile it up.
    """
    return min(1.0 - scale, scale)


def mean(codec: SparseCodec, updates: Sequence[SparseUpdate], weights: Sequence[float]) -> list[torch.Tensor]:
    """Return the weighted mean of the contributions, each shortened by `norm_scales`: float32 on the CPU.

    `weights`: positive, as far as a contribution's samples are believed. They are summed in the order of their digests,
    whatever order they came in. Raises ValueError if there are none.
    """
    if not updates:
        raise ValueError("There are no sparse updates to average; expected at least this peer's own.")
    scales = norm_scales([update.norm for update in updates], weights)
    whole = math.fsum(weights)
    factors = [scale * (weight / whole) for scale, weight in zip(scales, weights, strict=True)]
    total = torch.zeros(codec.layout.num_values)
    for update, factor in sorted(zip(updates, factors, strict=True), key=lambda pair: pair[0].digest):
        codec.add_to(total, update, factor)
    return codec.views(total)
