"""What a page shows of a machine in a run, and how the trainer's events change it. Pure."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pipelines.features.publishing.metrics.credit.standing import Standing
from pipelines.features.publishing.metrics.run_state import RunPhase
from pipelines.tools.doctor.check_result import CheckResult
from pipelines.tools.pages.joining.run_profile import RunProfile

MOST_SPEEDS = 180
MOST_LINES = 200

IDLE, STARTING, ENTERING, JOINED, TRAINING = "idle", "starting", "entering", "joined", "training"
PAUSING, PAUSED, RESUMING = "pausing", "paused", "resuming"
STOPPING, STOPPED, FINISHED, FAILED = "stopping", "stopped", "finished", "failed"

COMING_UP = frozenset({STARTING, ENTERING, JOINED})
WORKING = frozenset({JOINED, TRAINING, RESUMING})
"""Phases in which the trainer can be paused."""

RESTING = frozenset({PAUSING, PAUSED})
ALIVE = COMING_UP | WORKING | RESTING | {STOPPING}
"""Phases in which there is a trainer."""


@dataclass(frozen=True, kw_only=True)
class JoinView:
    """One moment of a `JoinSession`. Texts in it may come from strangers: escape them."""

    phase: str = IDLE
    message: str = ""
    """Why the phase is what it is, if that needs explaining."""

    profile: RunProfile | None = None
    """What is published of the run; None: it was not read yet."""

    repository: str = ""
    username: str = ""
    num_epochs: int = 0
    unit: str = "samples"
    """What the run counts; see `TrainingRun.unit`."""

    started: float | None = None
    """When the trainer was started, in seconds since 1970."""

    epoch: int | None = None
    loss: float | None = None
    samples_per_second: float | None = None
    share_averaged: float | None = None
    num_peers: int | None = None

    num_samples: int = 0
    """Contributed by the current or last trainer."""

    earlier_samples: int = 0
    """Contributed to the same run by the trainers before it."""

    speeds: tuple[float, ...] = ()
    """The newest values of `samples_per_second`, oldest first."""

    standing: Standing | None = None

    is_checking: bool = False
    looking_at: str = ""
    checks: tuple[CheckResult, ...] = ()
    check_problem: str = ""
    """Why the checks did not finish."""

    lines: tuple[str, ...] = ()
    """The last lines of the commands' output."""

    @property
    def is_alive(self) -> bool:
        """Whether there is a trainer."""
        return self.phase in ALIVE

    @property
    def all_samples(self) -> int:
        """Samples contributed to the run since the page was started."""
        return self.earlier_samples + self.num_samples

    @property
    def is_over(self) -> bool:
        """Whether there is nothing left to train in the run."""
        return self.profile is not None and self.profile.condition.state is RunPhase.OVER

    @property
    def given_samples(self) -> int:
        """Samples of the user in the run: those credited, from all machines, or those of this one if they are more."""
        return max(self.all_samples, self.standing.samples if self.standing else 0)

    def with_line(self, line: str) -> "JoinView":
        """Return the view after one more line of output."""
        return replace(self, lines=(*self.lines, line)[-MOST_LINES:])


def after_event(view: JoinView, event: Mapping[str, object]) -> JoinView:
    """Return the view after an event of a command; unknown events change nothing."""
    change = CHANGES.get(str(event.get("event")))
    return view if change is None else change(view, event)


def _finding(view: JoinView, event: Mapping[str, Any]) -> JoinView:
    names = [field.name for field in dataclasses.fields(CheckResult)]
    return replace(view, checks=(*view.checks, CheckResult(**{name: event[name] for name in names})))


def _joined(view: JoinView, event: Mapping[str, Any]) -> JoinView:
    phase, num_epochs, epoch = _phase(view, {STARTING: JOINED, ENTERING: JOINED}), event["num_epochs"], event["epoch"]
    known = replace(view, phase=phase, num_epochs=int(num_epochs), epoch=int(epoch))
    return replace(known, username=str(event["username"]), unit=str(event["unit"]))


def _step(view: JoinView, event: Mapping[str, Any]) -> JoinView:
    speed = float(event["samples_per_second"])
    speeds = (*view.speeds, speed)[-MOST_SPEEDS:] if math.isfinite(speed) else view.speeds
    # Before the first round nothing has been averaged, which is fine.
    is_known = event["ended_epoch"] or view.share_averaged is not None
    known = {name: event[name] for name in ("epoch", "num_peers", "num_samples", "samples_per_second")}
    share, phase = event["share_averaged"] if is_known else None, _phase(view, dict.fromkeys(WORKING, TRAINING))
    return replace(view, share_averaged=share, loss=event["epoch_loss"], speeds=speeds, phase=phase, **known)


def _phase(view: JoinView, following: Mapping[str, str]) -> str:
    return following.get(view.phase, view.phase)


CHANGES: Mapping[str, Callable[[JoinView, Mapping[str, Any]], JoinView]] = dict(
    looking=lambda view, event: replace(view, looking_at=str(event["at"])),
    finding=_finding,
    entered=lambda view, event: replace(view, phase=_phase(view, {STARTING: ENTERING})),
    joined=_joined,
    step=_step,
    paused=lambda view, event: replace(
        view, samples_per_second=0.0, phase=_phase(view, {PAUSING: PAUSED, TRAINING: PAUSED, JOINED: PAUSED})
    ),
    resumed=lambda view, event: replace(view, phase=_phase(view, {PAUSED: TRAINING, RESUMING: TRAINING})),
    over=lambda view, event: replace(view, phase=FINISHED, message=str(event["message"])),
    left=lambda view, event: replace(view, num_samples=int(event["num_samples"])),
)
