"""Attackers who know all honest gradients and each other: attacks from the literature, as pure functions.

Axis names: peer, element. Each takes the honest peers' vectors (peer, element) and returns the one vector (element,)
that all attackers send.
"""

from collections.abc import Callable
from statistics import NormalDist

import torch

Attack = Callable[[torch.Tensor], torch.Tensor]


def sign_flip(factor: float = 10.0) -> Attack:
    """Return the attack that sends the honest mean, negated and scaled up."""
    return lambda honest: -factor * honest.mean(0)


def a_little_is_enough(num_peers: int, num_attackers: int, z: float | None = None) -> Attack:
    """Return ALIE (Baruch et al., 2019): the honest mean, moved by z standard deviations in every coordinate.

    By default z is the largest at which the attackers still look more typical than enough of the honest peers
    (algorithm 3 of the paper), so that no distance-based rule can tell them apart.
    """
    if z is None:
        num_needed = num_peers // 2 + 1 - num_attackers
        num_honest = num_peers - num_attackers
        z = NormalDist().inv_cdf((num_honest - num_needed) / num_honest)
    return lambda honest: honest.mean(0) - z * honest.std(0)


def inner_product_manipulation(epsilon: float = 10.0) -> Attack:
    """Return IPM (Xie et al., 2020): against the honest mean, so that the aggregate points away from descent."""
    return lambda honest: -epsilon * honest.mean(0)


def copycat() -> Attack:
    """Return the attack of peers that do not compute: all send what the first honest peer sends."""
    return lambda honest: honest[0]


def spikes(length: float = 1.0, share: float = 0.01) -> Attack:
    """Return the attack that adds to the honest mean where no honest peer sends anything to speak of.

    The `share` of coordinates that honest peers change least get, together, `length` times the honest mean's norm.
    """

    def attack(honest: torch.Tensor) -> torch.Tensor:
        mean, num_spikes = honest.mean(0), max(1, round(share * honest.shape[1]))
        quietest = honest.abs().amax(0).argsort()[:num_spikes]
        return mean.index_add(0, quietest, (length * mean.norm() / num_spikes**0.5).expand(num_spikes))

    return attack
