"""The result of a chaos run: pure functions of the trainers' events and of the script."""

import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pipelines.core.run.training_run import TrainingRun
from pipelines.tools.chaos.faults.fault_script import NO_PEER, Fault, FaultKind

MIN_GOODPUT = 0.8
MIN_SHARE_AVERAGED = TrainingRun.min_share_averaged
"""A round that averaged less than this share of the vector is lost, and so are its samples."""

MAX_PARAMETER_DIFFERENCE = 2e-3
"""Largest relative L2 difference of two trainers' parameters that float16 averaging explains."""

NUM_BLOCKS = 6
TOLERATED_RISE = 0.05
"""Share of its total fall by which the evaluation loss may rise from one sixth of the run to the next."""

Events = Mapping[str, Sequence[Mapping[str, Any]]]


@dataclass(frozen=True, kw_only=True)
class Window:
    """A stretch of the run, in seconds since 1970."""

    begin: float
    end: float
    busy_share: float = 0.0
    """Share of all CPUs' time that was busy."""

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end - self.begin

    def overlap(self, begin: float, end: float) -> float:
        """Return how many seconds of another stretch lie in this one."""
        return max(0.0, min(end, self.end) - max(begin, self.begin))


@dataclass(frozen=True, kw_only=True)
class CountedStretch:
    """Samples of one trainer that one averaging round brought into the shared model, and when they were computed."""

    trainer: str
    begin: float
    end: float
    num_samples: int


@dataclass(frozen=True, kw_only=True)
class ChaosReport:
    """The figures of one chaos run."""

    num_faults: int
    goodput: float
    """Samples per second that reached the shared model under faults, relative to those without."""

    goodput_bound: float
    """Share of the trainers' time not struck by faults: goodput if all other trainers were undisturbed."""

    samples_per_second: float
    """During the faults."""

    reference_samples_per_second: float
    reference_busy_share: float
    """Share of all CPUs' time busy without faults. Close to 1, the machine sets the speed and goodput says little."""

    num_epochs: int
    """Epochs of the swarm, including the fault-free part."""

    num_rounds: int
    """Rounds of honest trainers during the faults, counted per trainer."""

    num_lost_rounds: int
    """Rounds that averaged less than the run requires."""

    evaluation_losses: dict[int, float]
    """Median over the trainers by epoch, on held-out records."""

    evaluation_falls: bool
    parameter_difference: float
    """Largest relative L2 difference between two trainers' final parameters; infinite if one is missing."""

    num_orphans: int
    num_unexpected_exits: int
    """Trainers that exited without being killed."""

    num_checkpoints: int
    """Checkpoints that the auxiliary peer published."""

    attacks: Mapping[str, bool] = field(default_factory=dict)
    """Attacks by name, and whether a trainer named the attacker among its suspects."""

    serving: Mapping[str, object] = field(default_factory=dict)
    """What clients have seen of what is served; see `ServingScenario.figures`. Empty: nobody serves."""

    memory_growth_bytes: int = 0
    """Of the trainer, not restarted, whose memory grew most during the faults."""

    epochs_per_minute: float = 0.0
    """During the faults."""

    longest_epoch_seconds: float = 0.0
    """During the faults: the longest time in which no trainer ended one."""

    states_agree: bool | None = None
    """Whether all trainers had the same state after each epoch, and the rounds' files lead to it; None: not known."""

    @property
    def criteria(self) -> dict[str, bool]:
        """Criteria of a good run, and whether this one meets them."""
        return {
            f"goodput at least {MIN_GOODPUT}": self.goodput >= MIN_GOODPUT,
            "evaluation loss falls within noise": self.evaluation_falls,
            "all parameters equal at the end": self.parameter_difference <= MAX_PARAMETER_DIFFERENCE,
            "no orphan process": self.num_orphans == 0,
            **({} if self.states_agree is None else {"every epoch led all to one state": self.states_agree}),
            **(_criteria_of_serving(self.serving) if self.serving else {}),
        }

    def to_json(self) -> dict[str, object]:
        """Return all figures and the criteria."""
        return dict(asdict(self), criteria=self.criteria)


def make_report(
    events: Events,
    faults: Sequence[Fault],
    *,
    reference: Window,
    chaos: Window,
    parameter_difference: float,
    num_orphans: int,
    num_unexpected_exits: int,
    num_checkpoints: int,
    attackers: Mapping[str, str] = {},
    serving: Mapping[str, object] = {},
    memory_growth_bytes: int = 0,
    has_false_lists: bool = False,
) -> ChaosReport:
    """Return the figures of a run whose faults started at `chaos.begin`; `attackers` are peer ids by attack."""
    stretches = list(counted_stretches(events))
    rates = [samples_within(stretches, window) / window.seconds for window in (reference, chaos)]
    losses = median_losses(events)
    rounds = [event for _, event in _epoch_events(events) if chaos.begin < event["time"] <= chaos.end]
    honest = [event for event in rounds if not event["attack"]]
    named = {peer for event in honest for peer in event.get("suspects", ())}
    reached = [event["new_epoch"] for event in rounds]
    ends = {event["new_epoch"]: event["time"] for event in reversed(rounds)}
    digests = {(event["new_epoch"], event["digest"]) for _, event in _epoch_events(events) if "digest" in event}
    return ChaosReport(
        num_faults=len(faults),
        goodput=rates[1] / rates[0] if rates[0] else 0.0,
        goodput_bound=1 - struck_share(events, faults, chaos),
        samples_per_second=rates[1],
        reference_samples_per_second=rates[0],
        reference_busy_share=reference.busy_share,
        num_epochs=max(losses, default=0),
        num_rounds=len(honest),
        num_lost_rounds=sum(not was_averaged(event) for event in honest),
        evaluation_losses=losses,
        evaluation_falls=falls_within_noise(list(losses.values())),
        parameter_difference=parameter_difference,
        num_orphans=num_orphans,
        num_unexpected_exits=num_unexpected_exits,
        num_checkpoints=num_checkpoints,
        attacks={name: peer in named for name, peer in attackers.items()},
        serving=serving,
        memory_growth_bytes=memory_growth_bytes,
        longest_epoch_seconds=max(
            (after - before for before, after in itertools.pairwise(sorted(ends.values()))), default=0.0
        ),
        states_agree=len(dict(digests)) == len(digests) and not has_false_lists if digests else None,
        epochs_per_minute=60 * (max(reached) - min(reached)) / chaos.seconds if reached else 0.0,
    )


def _criteria_of_serving(seen: Mapping[str, Any]) -> dict[str, bool]:
    criteria = {
        "what is served equals what one machine draws": seen["num_drawn_otherwise"] + seen["num_computed_otherwise"]
        == 0,
        "no honest server accused": seen["num_honest_servers_named"] == 0,
    }
    if seen["num_false_servers"]:
        criteria["who draws falsely is named"] = seen["num_false_servers_named"] == seen["num_false_servers"]
    if seen["num_holes"]:
        criteria["missing layers are named, and used once they are served"] = seen["has_computed_after_holes"]
    return criteria


def was_averaged(event: Mapping[str, Any]) -> bool:
    """Tell whether an epoch's gradient was averaged with others."""
    return event["group_size"] > 1 and event["share_averaged"] >= MIN_SHARE_AVERAGED


def counted_stretches(events: Events) -> Iterator[CountedStretch]:
    """Yield the trainers' honest contributions, spread over the time in which they were computed."""
    for trainer, its_events in events.items():
        begin = None
        for event in its_events:
            if event["event"] == "epoch" and begin is not None and was_averaged(event) and not event["attack"]:
                yield CountedStretch(trainer=trainer, begin=begin, end=event["time"], num_samples=event["num_samples"])
            begin = event["time"]


def samples_within(stretches: Sequence[CountedStretch], window: Window) -> float:
    """Return the samples computed within a window."""
    return sum(
        stretch.num_samples * window.overlap(stretch.begin, stretch.end) / (stretch.end - stretch.begin)
        for stretch in stretches
        if stretch.end > stretch.begin
    )


def median_losses(events: Events) -> dict[int, float]:
    """Return, by epoch reached, the median of the trainers' evaluation losses."""
    by_epoch = defaultdict(list)
    for _, event in _epoch_events(events):
        by_epoch[event["new_epoch"]].append(event["loss"])
    return {epoch: statistics.median(losses) for epoch, losses in sorted(by_epoch.items())}


def falls_within_noise(losses: Sequence[float]) -> bool:
    """Tell whether the medians of consecutive blocks fall, apart from rises small relative to the total fall."""
    size = max(1, len(losses) // NUM_BLOCKS)
    blocks = [statistics.median(losses[start : start + size]) for start in range(0, len(losses) - size + 1, size)]
    if len(blocks) < 2 or not blocks[-1] < blocks[0]:
        return False
    tolerated = TOLERATED_RISE * (blocks[0] - min(blocks))
    return all(later <= earlier + tolerated for earlier, later in itertools.pairwise(blocks))


def struck_share(events: Events, faults: Sequence[Fault], chaos: Window) -> float:
    """Return the share of the trainers' time in which a fault kept one of them from contributing.

    A slow link prevents nobody from contributing, and a killed trainer is struck until it has rejoined.
    """
    struck = 0.0
    for number, trainer in enumerate(sorted(events)):
        stretches = [
            _struck_stretch(fault, events[trainer], chaos)
            for fault in faults
            if fault.peer == number != NO_PEER and fault.kind != FaultKind.SLOW_LINK
        ]
        struck += sum(chaos.overlap(begin, end) for begin, end in _merged(stretches))
    return struck / (len(events) * chaos.seconds)


def _struck_stretch(fault: Fault, events: Sequence[Mapping[str, Any]], chaos: Window) -> tuple[float, float]:
    begin, end = chaos.begin + fault.at_seconds, chaos.begin + fault.ends_at_seconds
    if fault.kind in (FaultKind.KILL, FaultKind.CHILD):
        joined = [event["time"] for event in events if event["event"] == "joined" and event["time"] > begin]
        end = min(joined, default=chaos.end)
    return begin, end


def _merged(stretches: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    merged: list[tuple[float, float]] = []
    for begin, end in sorted(stretches):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged


def _epoch_events(events: Events) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for trainer, its_events in events.items():
        yield from ((trainer, event) for event in its_events if event["event"] == "epoch")
