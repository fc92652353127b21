"""The anchor: takes part in every round without a gradient, steps by itself, and signs the states that it has computed.

It signs a state as soon as the others bear it out (`StateSurvey.bears_out`), or some seconds later, and at the latest
with the third one: in a round that fell apart it may be the only one that has an average, and yields to most of the
others if they have named another state by then. Who is late has no say in it: it waits for the signature itself.

It signs no state that it has not computed from the last one that it signed, with one exception: having missed rounds,
or after a restart, it continues from a state of those whom it, or another anchor, has averaged with, if it is no worse
on held-out data than its own. Otherwise, and if it knows none of those who train, it signs its own again and says that
the run `returns` to it.

Bytes for each epoch: it receives the averaged gradient once, in the run's codec (1 byte a parameter with 8 bits), and
sends a few kB of requests and records.
"""

import logging
import time
from collections.abc import Callable, Sequence

from pipelines.core.epoch.optimizer import SwarmOptimizer
from pipelines.core.signing.publisher_keys import PublisherKey
from pipelines.core.state.anchors import EPOCHS_BEHIND, statement_of
from pipelines.core.state.digest import StateManifest
from pipelines.core.state.survey import StateSurvey
from pipelines.core.swarm.peer_records import ANCHOR_SECONDS, AnchorRecord
from pipelines.core.swarm.records import ANCHORS, SwarmRecords, sender_name
from pipelines.features.anchors.roster import Roster
from pipelines.features.publishing.metrics.credit.claims import RoundLog

logger = logging.getLogger(__name__)

SECONDS_TO_AGREE = 5.0
"""How long it waits for the others to name the same state before it signs its own."""

EPOCHS_TO_SIGN = 3
"""It does not wait with a state that is so many epochs ahead of what it has signed: epochs may be shorter than that."""

SECONDS_BETWEEN_LOOKS, SECONDS_BETWEEN_LOOKS_TO_SIGN = 1.0, 0.3
"""How often it asks the swarm what the others have; the second while it has a state to sign."""

RENEWAL_SECONDS = 20.0
"""How often an unchanged statement is dated anew."""

EPOCHS_WITHOUT_A_TEST = 4
"""A gap in the rounds up to this long is crossed without evaluating the state behind it: those vouch for it with whom
this anchor has just averaged. Longer ones, and restarts, are tested."""

SECONDS_TO_RETURN = 30.0
"""How long an anchor that finds a run going on, and nobody in it whom an anchor vouches for, looks for somebody."""

WORSE = 1.02
"""A held-out loss above this multiple of the own one is worse."""

Evaluate = Callable[[], float | None]
"""Returns the held-out loss of the state held now; None if it cannot be computed."""


def needs_a_test(gap: int, *, has_averaged: bool) -> bool:
    """Return whether a state so many epochs ahead is evaluated before it is followed; see the constants."""
    return not has_averaged or gap > EPOCHS_WITHOUT_A_TEST


def waits_for_others(*, seconds: float, num_epochs: int, is_borne_out: bool) -> bool:
    """Return whether a state that this anchor has computed is not signed yet.

    `seconds`: since it has the state; `num_epochs`: since the one that it has signed.
    """
    return not is_borne_out and seconds < SECONDS_TO_AGREE and num_epochs < EPOCHS_TO_SIGN


def is_worse(loss: float | None, own_loss: float | None) -> bool:
    """Return whether a held-out loss shows that a state is worse than the own one; without both nothing is shown."""
    return loss is not None and own_loss is not None and not loss <= WORSE * own_loss


def signed_record(
    key: PublisherKey,
    swarm_id: str,
    *,
    epoch: int,
    digest: str,
    roster: Sequence[str],
    returns: bool,
    time: float,
) -> AnchorRecord:
    """Return an anchor's signed statement; `time` is the swarm's, see `AnchorRecord`."""
    record = AnchorRecord(
        publisher_key=key.public,
        epoch=epoch,
        digest=digest,
        time=time,
        roster=roster,
        returns=returns,
        signature="",
    )
    return record.copy(update=dict(signature=key.sign(statement_of(record, swarm_id))))


class Anchor:
    """Keeps an auxiliary peer in step with the swarm, and signs; see the module. Not thread-safe."""

    def __init__(
        self,
        optimizer: SwarmOptimizer,
        records: SwarmRecords,
        key: PublisherKey,
        *,
        may_sign: Callable[[], bool],
        evaluate: Evaluate,
    ) -> None:
        """`may_sign`: whether this peer's key is one of the run's anchors."""
        self._optimizer, self._records, self._key = optimizer, records, key
        self._may_sign, self._evaluate = may_sign, evaluate
        self._swarm_id = optimizer.run.swarm_id
        self._roster = Roster()
        self.rounds = RoundLog()
        self._former_roster: tuple[str, ...] = ()
        """That of the newest statement from before this process was in a round."""

        self._num_rounds = 0
        self._seen: tuple[int, str, bool] | None = None
        self._signed: tuple[int, str, bool] | None = None
        self._seen_at = self._signed_at = self._next_look = float("-inf")
        self._returns = False
        self._survey: StateSurvey | None = None
        self._has_averaged = False
        """Whether this process has been in a round: before that it only knows what it has read."""

        self._among_strangers_since: float | None = None
        self._out_of_step_since: float | None = None

    def keep_up(self) -> None:
        """Take part in a round if one is due, catch up if one was missed, sign what is new; call it often."""
        optimizer = self._optimizer
        optimizer.listen()
        newest = optimizer.averager.last_round
        if newest.num_rounds != self._num_rounds:
            self._num_rounds = newest.num_rounds
            if newest.share_averaged > 0:
                self._has_averaged, self._returns = True, False
                self._roster.note_round(newest.senders)
                self.rounds.note(self._held_epoch, map(sender_name, newest.senders))
        if optimizer.is_out_of_step or time.monotonic() >= self._next_look:
            self._look_around()
        self._sign()

    def _look_around(self) -> None:
        """Catch up if the run has gone on without this anchor; note whether it is among strangers."""
        is_signed = self._seen == self._signed
        self._next_look = time.monotonic() + (SECONDS_BETWEEN_LOOKS if is_signed else SECONDS_BETWEEN_LOOKS_TO_SIGN)
        self._survey = seen = self._optimizer.state_transfer.look()
        self._returns |= self._has_come_back_to_strangers(seen)
        # After the last epoch no round follows in which it would see that its own word is out of date.
        newest = seen.newest_epoch(is_overdue=self._optimizer.tracker.global_epoch >= self._optimizer.run.num_epochs)
        if self._optimizer.is_out_of_step or newest > self._held_epoch + 1:
            self._catch_up(newest)
        else:
            self._out_of_step_since = None

    def _has_come_back_to_strangers(self, seen: StateSurvey) -> bool:
        """Return whether the run has long gone on without this anchor, and there is nobody in it to believe."""
        has_gone_on = max(seen.epochs.values(), default=0) > self._held_epoch + 1
        if self._has_averaged or not has_gone_on or not seen.is_among_strangers:
            self._among_strangers_since = None
            return False
        self._among_strangers_since = self._among_strangers_since or time.monotonic()
        if self._returns or time.monotonic() <= self._among_strangers_since + SECONDS_TO_RETURN:
            return False
        logger.warning(
            "The run has gone on to epoch %d without this anchor, which knows nobody in it: it returns to epoch %d. If "
            "this happens again, the epochs are too short for the machine of this auxiliary peer.",
            max(seen.epochs.values()),
            self._held_epoch,
        )
        return True

    @property
    def _held_epoch(self) -> int:
        return self._optimizer.state.state_epoch

    def _catch_up(self, newest: int) -> None:
        """Continue from a later state of those who can be believed, of epoch `newest`, unless it is worse."""
        state, epoch = self._optimizer.state, self._held_epoch
        if self._returns or (newest <= epoch and not self._optimizer.state_transfer.is_outvoted):
            # The others come back to it, or have failed as well, or have left: who comes next trains with it. What
            # they have reached is known some seconds after the round.
            self._out_of_step_since = self._out_of_step_since or time.monotonic()
            if self._returns or time.monotonic() > self._out_of_step_since + SECONDS_TO_AGREE:
                self._optimizer.look_for_rounds_again()
            return
        is_tested = needs_a_test(newest - epoch, has_averaged=self._has_averaged)
        kept = {name: tensor.clone() for name, tensor in state.named_state().items()} if is_tested else None
        before = self._evaluate() if is_tested else None
        self._optimizer.load_state_from_peers()
        if kept is None or self._held_epoch == epoch or not is_worse(after := self._evaluate(), before):
            return
        logger.error(
            "The state of epoch %d has a held-out loss of %.4f, that of epoch %d had %.4f: it is not followed. The run "
            "returns to epoch %d.", self._held_epoch, after, epoch, before, epoch,
        )  # fmt: skip
        state.restore_state(kept, epoch)
        self._optimizer.begin_epoch()
        self._returns = True

    def _sign(self) -> None:
        manifest = self._optimizer.state.snapshot.manifest()
        # Hashing may take longer than an epoch does: then the state before is signed, which anchors may be behind.
        if manifest is None or not 0 <= self._held_epoch - manifest.epoch <= EPOCHS_BEHIND or not self._may_sign():
            return
        if self._optimizer.state_transfer.is_outvoted and not self._returns:
            return  # the others' state takes its place
        said = (manifest.epoch, manifest.digest, self._returns)
        if said != self._seen:
            self._seen, self._seen_at, self._next_look = said, time.monotonic(), float("-inf")
        if said != self._signed:
            if self._waits_for_others(manifest):
                return
        elif time.monotonic() < self._signed_at + RENEWAL_SECONDS:
            return
        if not self._roster.names:
            roster = self._optimizer.state_transfer.look_at_anchors().roster
            self._former_roster = self._former_roster or tuple(sorted(roster))
        self._signed, self._signed_at = said, time.monotonic()
        record = signed_record(
            self._key, self._swarm_id, epoch=manifest.epoch, digest=manifest.digest,
            roster=self._roster.names or self._former_roster, returns=self._returns, time=self._records.now,
        )  # fmt: skip
        self._records.publish(ANCHORS, record, ANCHOR_SECONDS)

    def _waits_for_others(self, manifest: StateManifest) -> bool:
        if not self._has_averaged or self._optimizer.state_transfer.is_judged:
            return False
        senders = self.rounds.senders(manifest.epoch)
        return waits_for_others(
            seconds=time.monotonic() - self._seen_at,
            num_epochs=0 if self._signed is None else manifest.epoch - self._signed[0],
            is_borne_out=self._survey is not None and self._survey.bears_out(manifest.epoch, manifest.digest, senders),
        )
