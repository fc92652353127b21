"""What a training peer reports of each step to the person in front of it."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """What one local step did."""

    epoch: int
    """Epoch for which the gradient was computed."""

    loss: float | None
    """Mean loss of the micro-batch; None if its gradient overflowed in float16 and was dropped."""

    epoch_loss: float | None
    """Mean loss of this peer's micro-batches of the epoch so far, or of this one while none of them counts."""

    was_used: bool
    """Whether the gradient counts towards the epoch; not if it was computed on an outdated state."""

    ended_epoch: bool
    num_peers: int
    samples_per_second: float
    """This peer's speed."""

    swarm_samples_per_second: float
    """That of all peers together, as they say; each counts up to a multiple of the typical one."""

    share_averaged: float
    num_samples: int
    """Samples this peer has contributed so far."""

    bytes_per_sample: float
    """Bytes this peer has sent for averaging, per sample that it has contributed."""
