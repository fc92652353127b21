"""The state of a run, out of what was published of it and of who is there now: pure, for pages and commands alike.

`spaces/landing_page/scripts/run_state.js` decides the same in a browser; a test gives both the same facts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from hub_tools.counted import counted, duration
from pipelines.core.run.finished import use_of_model
from pipelines.core.run.training_run import TrainingRun
from pipelines.features.publishing.metrics.epoch_summary import EpochSummary
from pipelines.features.publishing.metrics.stalls import STALL_FACTOR, is_stalled, usual_seconds

if TYPE_CHECKING:
    from pipelines.features.publishing.repository.snapshot import RunSnapshot

PUBLISHED_SECONDS = 1800.0
"""How old published figures may be before a run counts as stalled: they are published every few minutes."""


class RunPhase(StrEnum):
    """What a run is doing."""

    NOT_BEGUN = "not begun"
    ALIVE = "alive"
    NOBODY = "nobody here"
    STALLED = "stalled"
    OVER = "over"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What is known of a run."""

    num_epochs: int | None
    """None: its settings cannot be read."""

    epoch: int = 0
    """The newest that has ended."""

    ended_at: float | None = None
    """When that was, in seconds since 1970; None: not known."""

    usual_seconds: float = 0.0
    """What an epoch usually takes; 0: not known."""

    num_peers: int | None = None
    """Who trains now; None: nobody has looked."""


@dataclass(frozen=True, kw_only=True)
class RunCondition:
    """A run's state, in a word and a sentence, and what a person does next."""

    state: RunPhase
    sentence: str
    advice: str
    """The words of a link or a button."""

    command: str
    """The same as a command."""

    seconds_left: float | None = None
    """Until the last epoch; None unless somebody trains at a known pace."""


def condition_of(facts: RunFacts, repository: str, *, task: str = "text-to-image", now: float) -> RunCondition:
    """Return what a run is doing at a time, in seconds since 1970."""
    state = _state(facts, now)
    words = dict(
        advice={RunPhase.STALLED: "See why", RunPhase.UNREACHABLE: "Examine the connection"}.get(state, "Join the run"),
        command=f"dalle-collab {_COMMANDS.get(state, 'join')} {repository}",
    )
    if state is RunPhase.OVER:
        words = dict(zip(("advice", "command"), use_of_model(task, repository), strict=True))
    left = (facts.num_epochs or 0) - facts.epoch
    return RunCondition(
        state=state,
        sentence=_sentence(state, facts, now),
        seconds_left=left * facts.usual_seconds if state is RunPhase.ALIVE and facts.usual_seconds else None,
        **words,
    )


def published_facts(
    run: TrainingRun | None, epoch: int, history: Sequence[EpochSummary], num_peers: int | None
) -> RunFacts:
    """Return the facts of a run's published history; `epoch` is that of the newest checkpoint."""
    newest = history[-1] if history else None
    reached = max(epoch, newest["epoch"] if newest else 0)
    return RunFacts(
        num_epochs=None if run is None else run.num_epochs,
        epoch=reached,
        ended_at=newest["time"] if newest and newest["epoch"] == reached else None,
        usual_seconds=usual_seconds(point["epoch_seconds"] for point in history),
        num_peers=num_peers,
    )


def condition_by(snapshot: "RunSnapshot", history: Sequence[EpochSummary], *, now: float) -> RunCondition:
    """Return what a run is doing, by its history, which has been read; no history: as far as its checkpoints say."""
    facts = published_facts(snapshot.run, snapshot.epoch or 0, history, None)
    return condition_of(facts, snapshot.repository, task=snapshot.run.task, now=now)


_COMMANDS = {RunPhase.STALLED: "run check", RunPhase.UNREACHABLE: "doctor"}


def _state(facts: RunFacts, now: float) -> RunPhase:
    if facts.num_epochs is None:
        return RunPhase.UNREACHABLE
    if facts.epoch >= facts.num_epochs:
        return RunPhase.OVER
    if facts.epoch == 0 and not facts.num_peers:
        return RunPhase.NOT_BEGUN
    if facts.num_peers == 0:
        return RunPhase.NOBODY
    waited = 0.0 if facts.ended_at is None else now - facts.ended_at
    if facts.num_peers is None:
        is_old = waited > max(PUBLISHED_SECONDS, STALL_FACTOR * facts.usual_seconds)
        return RunPhase.STALLED if is_old else RunPhase.ALIVE
    return RunPhase.STALLED if facts.usual_seconds and is_stalled(waited, facts.usual_seconds) else RunPhase.ALIVE


def _sentence(state: RunPhase, facts: RunFacts, now: float) -> str:
    waited = None if facts.ended_at is None else duration(max(0.0, now - facts.ended_at))
    place = f"epoch {facts.epoch:,} of {facts.num_epochs or 0:,}"
    who = "" if facts.num_peers is None else f"; {counted(facts.num_peers, 'peer')} here"
    if state is RunPhase.UNREACHABLE:
        return "The run's settings cannot be read."
    if state is RunPhase.OVER:
        return f"The run is over: all {counted(facts.num_epochs or 0, 'epoch')} are trained."
    if state is RunPhase.NOT_BEGUN:
        return "The run waits for its first epoch."
    if state is RunPhase.NOBODY:
        return f"Nobody trains now; {place} was the last" + (f", {waited} ago." if waited else ".")
    if state is RunPhase.STALLED:
        usual = f"; usually one takes {duration(facts.usual_seconds)}" if facts.usual_seconds else ""
        return f"No epoch has ended for {waited} after {place}{usual}{who}."
    left = ((facts.num_epochs or 0) - facts.epoch) * facts.usual_seconds
    return f"The run is at {place}{who}" + (f"; about {duration(left)} left." if left else ".")
