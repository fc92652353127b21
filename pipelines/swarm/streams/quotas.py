"""What others may take of a server at most: bytes or places, of one peer and in all."""

from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from pipelines.swarm.streams.refusals import Refusal


class Quota:
    """Counts what is taken; for use in one thread."""

    def __init__(self, what: str, *, per_peer: int, in_all: int, code: str = "no room") -> None:
        """`what` names the unit in refusals, as in "bytes of messages"; `code` is that of the refusals."""
        self.what, self.per_peer, self.in_all, self.code = what, per_peer, in_all, code
        self._taken: Counter[Hashable] = Counter()
        self.taken = 0
        """By all peers together."""

    @property
    def free(self) -> int:
        """What nobody has taken."""
        return self.in_all - self.taken

    @property
    def num_peers(self) -> int:
        """How many peers have taken something."""
        return len(self._taken)

    def taken_by(self, peer: Hashable) -> int:
        """Return what one peer has taken."""
        return self._taken.get(peer, 0)

    def take(self, peer: Hashable, number: int) -> None:
        """Count `number` as taken by a peer, until it is given back.

        Raises:
            Refusal: there is not so much left, for this peer or in all.
        """
        if self._taken[peer] + number > self.per_peer:
            limit, text = self.per_peer, "for one peer"
        elif self.taken + number > self.in_all:
            limit, text = self.in_all, "for all together"
        else:
            self._taken[peer] += number
            self.taken += number
            return
        self._forget_idle(peer)
        raise Refusal(self.code, f"{number} more {self.what} would be above {limit} {text}.")

    def give_back(self, peer: Hashable, number: int) -> None:
        """Count what a peer has taken as free again."""
        self._taken[peer] -= number
        self.taken -= number
        self._forget_idle(peer)

    @contextmanager
    def taken_during(self, peer: Hashable, number: int) -> Iterator[None]:
        """Take `number` for the duration of a block; raises as `take`."""
        self.take(peer, number)
        try:
            yield
        finally:
            self.give_back(peer, number)

    def _forget_idle(self, peer: Hashable) -> None:
        if not self._taken[peer]:
            del self._taken[peer]
