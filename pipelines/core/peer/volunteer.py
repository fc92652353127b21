"""Who a peer's person is, what this machine has, and how events are told: the same on every wire."""

import dataclasses
from collections.abc import Callable

import torch
from huggingface_hub import get_token, whoami

from pipelines.core.run.compute_options import ComputeOptions
from pipelines.core.run.training_run import TrainingRun
from pipelines.core.torch_devices import torch_device

ANONYMOUS = "anonymous"
"""Who has no token; several people."""

EventHandler = Callable[..., None]
"""Called with an event's name and values: `checking`, `asking`, `entered`, `synchronising`, `joined`, `paused`,
`resumed`."""


def ignore_events(_event: str, **_values: object) -> None:
    """Ignore the event."""


def with_devices(compute: ComputeOptions) -> ComputeOptions:
    """Return the options with the devices of this machine in place of `auto`: all GPUs, unless one is named."""
    device = torch_device(compute.device)
    return dataclasses.replace(
        compute,
        device=device,
        num_devices=compute.num_devices or (torch.cuda.device_count() if device == "cuda" else 1),
    )


def hub_username() -> str:
    """Return the Hub user's name, or `anonymous` without a token; a refused token is an error."""
    return whoami()["name"] if get_token() else ANONYMOUS


def last_epoch(run: TrainingRun, compute: ComputeOptions, first: int) -> int:
    """Return the epoch at which a peer that starts at epoch `first` leaves."""
    return run.num_epochs if compute.max_epochs is None else min(run.num_epochs, first + compute.max_epochs)
