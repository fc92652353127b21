"""Who a peer's person is, when the peer leaves, and how events are told: the same on every wire."""

from collections.abc import Callable

from huggingface_hub import get_token, whoami

from pipelines.core.run.compute_options import ComputeOptions
from pipelines.core.run.training_run import TrainingRun

ANONYMOUS = "anonymous"
"""Who has no token; several people."""

EventHandler = Callable[..., None]
"""Called with an event's name and values: `checking`, `asking`, `entered`, `synchronising`, `joined`, `paused`,
`resumed`."""


def ignore_events(_event: str, **_values: object) -> None:
    """Ignore the event."""


def hub_username() -> str:
    """Return the Hub user's name, or `anonymous` without a token; a refused token is an error."""
    return whoami()["name"] if get_token() else ANONYMOUS


def last_epoch(run: TrainingRun, compute: ComputeOptions, first: int) -> int:
    """Return the epoch at which a peer that starts at epoch `first` leaves."""
    return run.num_epochs if compute.max_epochs is None else min(run.num_epochs, first + compute.max_epochs)
