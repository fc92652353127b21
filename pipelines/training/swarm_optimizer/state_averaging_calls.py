"""Calls for averaging the state, after a round that did not average everything.

hivemind takes such a round for a success, and the peers' parameters stay apart until the next regular averaging of the
state. A peer that averages them alone with another that noticed would only put more of them apart, so all are called:
the call is a signed record in the DHT that names the epoch at whose beginning everybody averages the state.
"""

import logging

from hivemind.utils import MPFuture

from pipelines.swarm.records import SwarmRecords

logger = logging.getLogger(__name__)


class StateAveragingCalls:
    """The calls that this peer has made or heard of."""

    def __init__(self, records: SwarmRecords, lifetime_seconds: float) -> None:
        """A call can be read for `lifetime_seconds`."""
        self._records, self._lifetime_seconds = records, lifetime_seconds
        self._epoch_read = -1
        self._answer: MPFuture | None = None
        self.epochs: frozenset[int] = frozenset()
        """At the beginning of which all peers average the state."""

    def call(self, epoch: int) -> None:
        """Call all peers, this one too."""
        logger.error("A round was incomplete; all peers are to average their parameters at epoch %d.", epoch)
        self.epochs |= {epoch}
        self._records.call_for_state_averaging(epoch, self._lifetime_seconds)

    def read(self, local_epoch: int) -> None:
        """Read others' calls, once an epoch and in the background."""
        if self._answer is not None and self._answer.done():
            self.epochs |= self._records.state_averaging_calls(self._answer)
            self._answer = None
        if self._epoch_read != local_epoch:
            self._epoch_read = local_epoch
            self.epochs = frozenset(epoch for epoch in self.epochs if epoch > local_epoch)
            self._answer = self._records.ask_for_state_averaging_calls()
