"""What the demo takes from the events of its programs."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pipelines.features.publishing.metrics.epoch_summary import EpochSummary


def run_history(looks: Iterable[Mapping[str, Any]]) -> list[EpochSummary]:
    """Return the summaries of an auxiliary peer's looks at the swarm, in the order of their epochs.

    One that was started again from a checkpoint sees some epochs a second time: those count.
    """
    found: list[EpochSummary] = []
    for summary in (look.get("summary") for look in looks):
        if summary is not None:
            while found and found[-1]["epoch"] > summary["epoch"]:
                found.pop()
            found.append(summary)
    return found


def num_samples(events: Sequence[Mapping[str, Any]]) -> int:
    """Return how many samples a trainer has contributed, over all its starts: each begins with `joined`."""
    total = newest = 0
    for event in events:
        if event.get("event") == "joined":
            total, newest = total + newest, 0
        newest = event.get("num_samples", newest)
    return total + newest
