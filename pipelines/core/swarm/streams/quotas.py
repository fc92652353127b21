"""What others may take of a server at most: bytes or places, of one peer, of one address and in all."""

from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from pipelines.core.swarm.streams.refusals import Refusal
from pipelines.core.swarm.streams.stream_clients import UNKNOWN, StreamClient

SHARE_OF_THE_RELAYED = 0.5
"""Of everything, for all together whose address is not known: those who are known always have the rest."""


class Quota:
    """Counts what is taken; for use in one thread."""

    def __init__(
        self, what: str, *, per_peer: int, in_all: int, per_address: int | None = None, code: str = "no room"
    ) -> None:
        """`what` names the unit in refusals, as in "bytes of messages"; `code` is that of the refusals.

        `per_address` is for all peers at one address; None: half of everything, or as much as one peer.
        """
        half = int(SHARE_OF_THE_RELAYED * in_all)
        self.what, self.per_peer, self.in_all, self.code = what, per_peer, in_all, code
        self.per_address = max(per_peer, half) if per_address is None else per_address
        self.of_the_relayed = max(self.per_address, half)
        self._taken: Counter[Hashable] = Counter()
        self._taken_at: Counter[str] = Counter()
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

    def take(self, client: StreamClient, number: int) -> None:
        """Count `number` as taken, until it is given back.

        Raises:
            Refusal: there is not so much left, for this peer, for its address or in all.
        """
        for limit, taken, whom in (
            (self.per_peer, self._taken[client.peer], "for one peer"),
            (self._limit_at(client.address), self._taken_at[client.address], _in_words(client.address)),
            (self.in_all, self.taken, "for all together"),
        ):
            if taken + number > limit:
                self._forget_idle(client)
                raise Refusal(self.code, f"{number} more {self.what} would be above {limit} {whom}.")
        self._count(client, number)

    def give_back(self, client: StreamClient, number: int) -> None:
        """Count what a peer has taken as free again."""
        self._count(client, -number)
        self._forget_idle(client)

    @contextmanager
    def taken_during(self, client: StreamClient, number: int) -> Iterator[None]:
        """Take `number` for the duration of a block; raises as `take`."""
        self.take(client, number)
        try:
            yield
        finally:
            self.give_back(client, number)

    def _limit_at(self, address: str) -> int:
        return self.of_the_relayed if address == UNKNOWN else self.per_address

    def _count(self, client: StreamClient, number: int) -> None:
        self._taken[client.peer] += number
        self._taken_at[client.address] += number
        self.taken += number

    def _forget_idle(self, client: StreamClient) -> None:
        if not self._taken[client.peer]:
            del self._taken[client.peer]
        if not self._taken_at[client.address]:
            del self._taken_at[client.address]


def _in_words(address: str) -> str:
    return "for all who come through relays" if address == UNKNOWN else "for one address"
