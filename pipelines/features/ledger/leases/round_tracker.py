"""What becomes of a peer's gradients, from their computation to the anchor's books. No network, one thread at a time.

Batches wait for a round (`gather`), are in one (`begin_round`), and then averaged (`average`), or wait again
(`take_back`), or are lost (`lose_round`, `lose_all`).
"""

from collections.abc import Iterable, Iterator, Mapping

from pipelines.core.run.spans import Span
from pipelines.features.ledger.batch_gradients import BatchGradient
from pipelines.features.ledger.records import MOST_EPOCHS_REPORTED

MOST_EPOCHS_SIGNED = 8
"""Of these the peer says which gradients it had, also when they are booked: the anchor may hear of that first."""


class RoundTracker:
    """The batches of the gradients that a peer has computed."""

    def __init__(self) -> None:
        self._gathered: list[BatchGradient] = []
        self._in_round: list[BatchGradient] = []
        self.averaged: dict[int, list[BatchGradient]] = {}
        """By the epoch of the state after the round's step; what is booked is left out, and what is too old to be
        reported: somebody trains on it again."""

        self.recent: dict[int, list[BatchGradient]] = {}
        """The same of the last epochs, booked or not."""

    def __iter__(self) -> Iterator[BatchGradient]:
        """What waits for a round or is in one."""
        return iter((*self._in_round, *self._gathered))

    @property
    def averaged_spans(self) -> Iterable[Span]:
        """The records that were averaged and are not booked."""
        return (span for batches in self.averaged.values() for batch in batches for span in batch.spans)

    def gather(self, batch: BatchGradient) -> None:
        """Note that the gradients which wait for a round hold this one."""
        self._gathered.append(batch)

    def begin_round(self) -> None:
        """Note that the gathered gradients go into a round."""
        self._in_round, self._gathered = [*self._in_round, *self._gathered], []

    def take_back(self) -> None:
        """Note that nobody has averaged the gradients of the round: they wait for the next one."""
        self._gathered, self._in_round = [*self._in_round, *self._gathered], []

    def lose_round(self) -> list[BatchGradient]:
        """Note that the gradients of the round are lost, those gathered since then are not; return the lost ones."""
        lost, self._in_round = self._in_round, []
        return lost

    def lose_all(self) -> list[BatchGradient]:
        """Note that all gradients are lost, gathered ones and those of a round; return them."""
        lost = [*self._in_round, *self._gathered]
        self._in_round, self._gathered = [], []
        return lost

    def average(self, epoch: int) -> list[BatchGradient]:
        """Note that a round has averaged its gradients, and return them."""
        done, self._in_round = self._in_round, []
        if done:
            self.averaged = _with(self.averaged, epoch, done, MOST_EPOCHS_REPORTED)
            self.recent = _with(self.recent, epoch, done, MOST_EPOCHS_SIGNED)
        return done

    def forget_until(self, booked_epoch: int) -> None:
        """Leave out what is booked."""
        self.averaged = {epoch: batches for epoch, batches in self.averaged.items() if epoch > booked_epoch}


def _with(
    held: Mapping[int, list[BatchGradient]], epoch: int, batches: Iterable[BatchGradient], most_epochs: int
) -> dict[int, list[BatchGradient]]:
    found = {**held, epoch: [*held.get(epoch, ()), *batches]}
    return {number: found[number] for number in sorted(found)[-most_epochs:]}
