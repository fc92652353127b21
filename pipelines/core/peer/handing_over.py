"""The end of a run at a training peer: it keeps the last state until somebody else has it, says so, and leaves.

Who that is, is up to the run: an anchor, whose signature says so; in a run without anchors an auxiliary peer; where
there is none, the trainers that are behind. A checkpoint on the Hub is safe whoever is there: who watches the Hub
(`generation_watch`) leaves when it has the last epoch.
"""

import logging
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass

from pipelines.core.epoch.optimizer import OutOfStepError, SwarmOptimizer
from pipelines.core.swarm.records import AUXILIARIES, STATES, SwarmRecords

logger = logging.getLogger(__name__)

SECONDS_TO_HAND_OVER = 20.0
"""How long a peer waits for somebody to have the last state: an anchor needs 1 to 7 s."""

SECONDS_FOR_HEIRS = 150.0
"""How long it waits while somebody is downloading it, or an auxiliary peer that is behind shows that it is alive."""

SECONDS_BETWEEN_LOOKS = 0.5


@dataclass(frozen=True, kw_only=True)
class Heirs:
    """What a peer that has the last state sees of those who shall have it, too."""

    signed_epoch: int | None
    """The newest epoch that an anchor has signed; None: the run has no anchors."""

    held_epochs: Collection[int]
    """Epochs of the auxiliary peers' states, as they say."""

    num_without: int
    """Other trainers that do not name the same last state."""

    are_coming: bool
    """Whether somebody is downloading this peer's state, or an auxiliary peer without it shows that it is alive."""

    def have(self, last_epoch: int) -> bool:
        """Return whether the state of the last epoch is kept without this peer."""
        if self.signed_epoch is not None:
            return self.signed_epoch >= last_epoch
        if self.held_epochs:
            return max(self.held_epochs) >= last_epoch
        return not self.are_coming and self.num_without == 0

    def patience(self, seconds: float) -> float:
        """Return how many seconds they are waited for in all, after so many."""
        return SECONDS_FOR_HEIRS if self.are_coming and seconds >= SECONDS_TO_HAND_OVER else SECONDS_TO_HAND_OVER

    @property
    def wish(self) -> str:
        """What is waited for, in words."""
        if self.signed_epoch is not None:
            return "an anchor has signed the final state"
        return f"{'an auxiliary peer' if self.held_epochs else 'every trainer'} has the final state"


class HeirWatch:
    """Looks who has the last state; the first look is what later ones are compared with."""

    def __init__(self, optimizer: SwarmOptimizer, records: SwarmRecords) -> None:
        self._optimizer, self._records = optimizer, records
        self._first_terms = {owner: until for owner, (_, until) in records.read_dated(AUXILIARIES).items()}

    def look(self) -> Heirs:
        """Return what the swarm's records say now."""
        seen, last_epoch = self._optimizer.state_transfer.look_at_anchors(), self._optimizer.run.num_epochs
        held = self._records.read_dated(AUXILIARIES)
        behind = {owner: until for owner, (status, until) in held.items() if status.held_epoch < last_epoch}
        is_alive = any(until > self._first_terms.get(owner, 0.0) for owner, until in behind.items())  # has renewed it
        return Heirs(
            signed_epoch=seen.newest_epoch if seen.has_anchors else None,
            held_epochs=[int(status.held_epoch) for status, _ in held.values()],
            num_without=0 if seen.has_anchors or held else self._num_without(),
            are_coming=is_alive or self._optimizer.state.snapshot.is_held,
        )

    def _num_without(self) -> int:
        own, last = self._optimizer.state.snapshot.manifest(), self._optimizer.run.num_epochs
        digest = own.digest if own is not None and own.epoch == last else None
        states = self._records.read(STATES)
        have = {key for key, held in states.items() if held.epoch > last or (held.epoch, held.digest) == (last, digest)}
        return len(self._records.trainers() - have - {self._records.owner})


def hand_over(
    optimizer: SwarmOptimizer, records: SwarmRecords, stop: threading.Event, *, place: str = "", settles: bool = False
) -> bool:
    """Stay until somebody else has the state of the last epoch, `stop` is set, or nobody comes; return whether one has.

    `settles`: if the others have another last state, this peer takes it over: its owner goes on with the model.
    `place` is where the run is, for messages.
    """
    watch, last, started = HeirWatch(optimizer, records), optimizer.run.num_epochs, time.monotonic()
    said: set[float] = set()
    over = f"The run has reached its last epoch, {last}. "
    while not stop.is_set():
        heirs = watch.look()
        if settles and optimizer.is_out_of_step:
            _settle(optimizer)
        elif heirs.have(last):
            return True
        seconds = time.monotonic() - started
        if seconds >= (limit := heirs.patience(seconds)):
            logger.warning("%s", parting_words(heirs, last, limit, place))
            return False
        if limit not in said:
            logger.info("%sWaiting until %s (up to %.0f s).", "" if said else over, heirs.wish, limit)
            said.add(limit)
        stop.wait(SECONDS_BETWEEN_LOOKS)
    return False


def parting_words(heirs: Heirs, last_epoch: int, seconds: float, place: str) -> str:
    """Return what a peer says that leaves although nobody else has the last state."""
    waited = f"Waited {seconds:.0f} s in vain until {heirs.wish}; this peer leaves with that of epoch {last_epoch}."
    if not place:
        return waited
    return (
        f"{waited} Unless the Hub gets it nevertheless, the organiser starts the anchor again (dalle-collab run assist "
        f"{place}), and somebody joins for the epochs since the last checkpoint."
    )


def _settle(optimizer: SwarmOptimizer) -> None:
    try:
        optimizer.load_state_from_peers()
    except OutOfStepError as error:
        logger.warning("%s", error)
