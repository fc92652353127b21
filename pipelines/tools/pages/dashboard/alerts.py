"""What an organiser should look at: pure functions from figures to sentences."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hub_tools.counted import counted, duration, nats
from pipelines.core.run.training_run import TrainingRun
from pipelines.features.publishing.metrics.run_state import RunPhase
from pipelines.features.publishing.metrics.stalls import is_stalled, usual_seconds
from pipelines.tools.pages.dashboard.history_columns import HistoryColumns
from pipelines.tools.pages.dashboard.peer_table import PeerState, TrackedPeer, alive, names_by_peer_id, swarm_epoch
from pipelines.tools.pages.dashboard.swarm.swarm_snapshot import StateVerdict

NUM_NEWEST = 3
"""Epochs that have to look wrong: less mends itself."""

NUM_BEFORE = 50
"""Epochs that the newest are compared with."""

SPIKE_DEVIATIONS = 8.0
"""Median absolute deviations above the median; a loss that falls as usual stays far below."""

SMALLEST_SPIKE = 0.1
"""And at least this share of the median."""

SHRUNK_TO = 0.5
FEWEST_TO_SHRINK = 4
"""With only three peers, one more or less is normal."""

MOST_NAMED = 5


@dataclass(frozen=True, kw_only=True)
class Alert:
    """Something that is wrong. The text may contain untrusted names."""

    kind: str
    text: str
    is_serious: bool = True


def find_alerts(
    run: TrainingRun,
    history: HistoryColumns,
    peers: Mapping[str, TrackedPeer],
    verdict: StateVerdict | None,
    *,
    state: RunPhase,
    disagreeing_since: float | None = None,
    is_live: bool,
    num_auxiliaries: int,
    now: float,
) -> list[Alert]:
    """Return all alerts, serious ones first; `is_live` says whether `peers` come from a fresh snapshot.

    Of a run that is over, or where nobody is, the newest rounds say nothing of now. `disagreeing_since` is when peers
    were first seen to hold different states, in seconds since 1970.
    """
    found = [impossible_figures(history.num_impossible, peers)]
    if state in (RunPhase.ALIVE, RunPhase.STALLED):
        found += [
            loss_spike(history.columns["loss"]),
            poor_averaging(history.columns["share_averaged"], run.min_share_averaged),
        ]
    if is_live and state in (RunPhase.ALIVE, RunPhase.STALLED):
        usual = usual_seconds(history.columns["epoch_seconds"].tolist())
        lasts = disagreeing_since is not None and is_stalled(now - disagreeing_since, usual)
        found += [
            stalled_epoch(history, swarm_epoch(alive(peers)), len(alive(peers)), now),
            shrinking_swarm(history.columns["num_peers"], len(alive(peers))),
            disagreeing_states(verdict, names_by_peer_id(peers), lasts=lasts),
            None if num_auxiliaries else no_auxiliary(run),
            left_behind(peers),
            suspected_peers(peers),
        ]
    return sorted((alert for alert in found if alert is not None), key=lambda alert: not alert.is_serious)


def loss_spike(losses: Sequence[float] | np.ndarray) -> Alert | None:
    """Alert if the newest losses are all far above those before them: a single one comes down by itself."""
    before, last = losses[-NUM_BEFORE - NUM_NEWEST : -NUM_NEWEST], losses[-NUM_NEWEST:]
    if len(before) < 5:
        return None
    newest = min(last)
    median = statistics.median(before)
    deviation = statistics.median(abs(loss - median) for loss in before)
    if newest <= median + max(SPIKE_DEVIATIONS * deviation, SMALLEST_SPIKE * median):
        return None
    return Alert(
        kind="loss spike",
        text=f"The loss has been above {nats(newest)} for {NUM_NEWEST} epochs; the median of the {len(before)} before "
        f"is {nats(median)}. If it does not come down again, roll back: dalle-collab run rollback",
    )


def stalled_epoch(history: HistoryColumns, epoch: int, num_alive: int, now: float) -> Alert | None:
    """Alert if the current epoch takes much longer than those before it; `epoch` is that of the peers."""
    if not len(history) or epoch > history.newest_epoch:
        return None  # the Hub's data is old: the start of the epoch is unknown
    seconds = history.columns["epoch_seconds"].tolist()
    usual, waited = usual_seconds(seconds), now - history.columns["time"][-1]
    if not is_stalled(waited, usual):
        return None
    who = f"{counted(num_alive, 'peer')} training" if num_alive else "nobody is training"
    return Alert(
        kind="stalled epoch",
        text=f"No epoch has ended for {duration(waited)}; usually one takes {duration(usual)}; {who}.",
    )


def no_auxiliary(run: TrainingRun) -> Alert:
    """Alert that nobody keeps the run: of one over the Hub, all peers wait then."""
    what = "publishes the run" if run.wire == "p2p" else "closes the rounds, for which all peers wait"
    return Alert(
        kind="no auxiliary peer",
        text=f"Nobody {what}. Its organiser starts the auxiliary peer with: dalle-collab run assist",
        is_serious=run.wire != "p2p",
    )


def shrinking_swarm(num_peers: Sequence[float] | np.ndarray, num_alive: int) -> Alert | None:
    """Alert if far fewer peers are training than recently."""
    if not len(num_peers):
        return None
    usual = statistics.median(num_peers[-NUM_BEFORE:])
    if usual < FEWEST_TO_SHRINK or num_alive > SHRUNK_TO * usual:
        return None
    return Alert(
        kind="fewer peers",
        text=f"{counted(num_alive, 'peer')} here; recently there were {usual:.0f}. The run goes on, more slowly.",
        is_serious=False,
    )


def poor_averaging(shares: Sequence[float] | np.ndarray, smallest: float) -> Alert | None:
    """Alert if the newest rounds averaged too little of the gradient."""
    newest = shares[-5:]
    if not len(newest) or newest[-1] >= smallest or (typical := statistics.median(newest)) >= smallest:
        return None
    return Alert(
        kind="incomplete rounds",
        text=f"The latest rounds averaged {typical:.0%} of the gradient, the run requires {smallest:.0%}: links are "
        "slow, or peers leave mid-round.",
    )


def impossible_figures(num_points: int, peers: Mapping[str, TrackedPeer]) -> Alert | None:
    """Alert if somebody reports impossible figures: not finite, negative, absurdly large, in the future."""
    liars = [one for one in peers.values() if one.peer.num_impossible]
    if not liars and not num_points:
        return None
    parts = [f"{counted(len(liars), 'peer')} ({_named(liars)})"] if liars else []
    parts += [f"{counted(num_points, 'point')} of the history"] if num_points else []
    text = f"Impossible figures are left out, of {' and of '.join(parts)}."
    return Alert(kind="impossible figures", text=text, is_serious=False)


def disagreeing_states(verdict: StateVerdict | None, names: Mapping[str, str], *, lasts: bool) -> Alert | None:
    """Alert if peers hold a different training state from most; serious if that `lasts`."""
    if verdict is None or not verdict.outvoted:
        return None
    named = ", ".join(names.get(peer_id) or f"…{peer_id[-8:]}" for peer_id in verdict.outvoted[:MOST_NAMED])
    more = len(verdict.outvoted) - MOST_NAMED
    who = f"{named} and {more} more" if more > 0 else named
    verb, have = ("holds", "has") if len(verdict.outvoted) == 1 else ("hold", "have")
    what_next = (
        f"It has not mended itself: {who} {have} to start again."
        if lasts
        else "They take the others' state by themselves, within a round or two."
        if len(verdict.outvoted) > 1
        else "It takes the others' state by itself, within a round or two."
    )
    return Alert(
        kind="different states",
        text=f"{who} {verb} another model after epoch {verdict.epoch:,} than "
        f"{counted(verdict.num_votes, 'other peer')}. {what_next}",
        is_serious=lasts,
    )


def left_behind(peers: Mapping[str, TrackedPeer]) -> Alert | None:
    """Alert if many peers do not follow the swarm's epoch: a sign of a split swarm."""
    behind = [one for one in alive(peers) if one.state is PeerState.CATCHING_UP]
    if len(behind) < 2 or 5 * len(behind) < len(alive(peers)):
        return None
    return Alert(
        kind="peers left behind",
        text=f"{len(behind)} of {len(alive(peers))} peers are epochs behind the others: {_named(behind)}.",
        is_serious=False,
    )


def suspected_peers(peers: Mapping[str, TrackedPeer]) -> Alert | None:
    """Alert if several peers have seen a peer misbehave in ways that honest, healthy peers do not."""
    accusers = Counter(
        name
        for one in alive(peers)
        if one.peer.figures is not None
        for name in {suspect.peer_id for suspect in one.peer.figures.suspects}
    )
    several = [(name, number) for name, number in accusers.most_common() if number >= 2]
    if not several:
        return None
    names = names_by_peer_id(peers)
    named = ", ".join(f"{names.get(name) or f'…{name[-8:]}'} by {number}" for name, number in several[:MOST_NAMED])
    return Alert(kind="suspects", text=f"Peers whose contributions others clip or reject: {named}.", is_serious=False)


def _named(peers: Sequence[TrackedPeer]) -> str:
    named = [one.peer.username or f"…{one.peer.peer_id[-8:]}" for one in peers[:MOST_NAMED]]
    more = len(peers) - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")
