"""Calls to average the state, after a round that did not average everything.

hivemind counts such a round as a success, and the peers' parameters stay different until the next regular averaging of
the state. If only the peers that noticed averaged them, more would differ, so all are called: the call is a signed
record in the DHT that names the epoch at whose start everybody averages the state.
"""

import logging

from hivemind.utils import MPFuture

from pipelines.swarm.records import SwarmRecords

logger = logging.getLogger(__name__)


class StateAveragingCalls:
    """The calls made or received by this peer."""

    def __init__(self, records: SwarmRecords, lifetime_seconds: float) -> None:
        """A call expires after `lifetime_seconds`."""
        self._records, self._lifetime_seconds = records, lifetime_seconds
        self._epoch_read = -1
        self._answer: MPFuture | None = None
        self.epochs: frozenset[int] = frozenset()
        """At the start of this epoch all peers average the state."""

    def call(self, epoch: int) -> None:
        """Call all peers, including this one."""
        logger.error("A round was incomplete; all peers will average their parameters at epoch %d.", epoch)
        self.epochs |= {epoch}
        self._records.call_for_state_averaging(epoch, self._lifetime_seconds)

    def read(self, local_epoch: int) -> None:
        """Read others' calls, once per epoch and in the background."""
        if self._answer is not None and self._answer.done():
            self.epochs |= self._records.state_averaging_calls(self._answer)
            self._answer = None
        if self._epoch_read != local_epoch:
            self._epoch_read = local_epoch
            self.epochs = frozenset(epoch for epoch in self.epochs if epoch > local_epoch)
            self._answer = self._records.ask_for_state_averaging_calls()
