"""The contributions that a peer holds for others: of the last two rounds, bounded in number and size."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from hivemind.p2p import PeerID

MOST_GIFTS = 128
"""Contributions of one round that this peer takes for others to fetch; each of at most the run's largest size."""

MOST_TAKEN = 4
"""How often one peer may take one contribution: it may be cut off, and try again."""

SECONDS_TO_COME = 2.0
"""How long a contribution is waited for that this peer does not expect: those who ask may be ahead of who gives it."""


@dataclass(frozen=True, kw_only=True)
class _Held:
    content: bytes
    epoch: int


class ContributionCache:
    """Contributions by digest; in one event loop."""

    def __init__(self, sizes: range) -> None:
        """`sizes`: those that a contribution can have, in bytes."""
        self.sizes = sizes
        self.epoch = -1
        """Epoch of this peer's newest round."""

        self._held: dict[bytes, _Held] = {}
        self._gifts: set[tuple[int, PeerID]] = set()
        self._num_taken: Counter[tuple[bytes, PeerID]] = Counter()
        self._coming: Counter[bytes] = Counter()
        self._changed = asyncio.Event()

    def begin_round(self, epoch: int) -> None:
        """Keep what is of this round and the one before."""
        self.epoch = epoch
        self._held = {digest: held for digest, held in self._held.items() if self._is_recent(held.epoch)}
        self._gifts = {gift for gift in self._gifts if self._is_recent(gift[0])}
        self._num_taken = Counter({key: n for key, n in self._num_taken.items() if key[0] in self._held})

    def put(self, digest: bytes, content: bytes, epoch: int) -> None:
        """Hold a contribution whose digest has been checked."""
        self._held[digest] = _Held(content=content, epoch=epoch)
        self._wake()

    def get(self, digest: bytes) -> bytes | None:
        """Return a contribution if it is here."""
        held = self._held.get(digest)
        return None if held is None else held.content

    def accept(self, giver: PeerID, num_bytes: int, epoch: int) -> bool:
        """Return whether to take a peer's contribution to a round for others to fetch, and count it if so."""
        of_round = [gift for gift in self._gifts if gift[0] == epoch]
        is_new = (epoch, giver) not in self._gifts and len(of_round) < MOST_GIFTS
        if not (is_new and num_bytes in self.sizes and self._is_recent(epoch)):
            return False
        self._gifts.add((epoch, giver))
        return True

    def may_take(self, taker: PeerID, digest: bytes) -> bool:
        """Return whether a peer may take a contribution (once more), and count it."""
        self._num_taken[digest, taker] += 1
        return self._num_taken[digest, taker] <= MOST_TAKEN

    @contextlib.contextmanager
    def coming(self, digest: bytes) -> Iterator[None]:
        """Within this block, this peer is getting a contribution, and those who ask for it patiently wait."""
        self._coming[digest] += 1
        self._wake()
        try:
            yield
        finally:
            self._coming[digest] -= 1
            if not self._coming[digest]:
                del self._coming[digest]
            self._wake()

    async def find(self, digest: bytes, seconds: float) -> bytes | None:
        """Return a contribution; if it is not here, wait for at most so many seconds while it is coming."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(seconds, SECONDS_TO_COME)):
                while digest not in self._held and digest not in self._coming:
                    await self._changed.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while digest not in self._held and digest in self._coming:
                    await self._changed.wait()
        return self.get(digest)

    def _is_recent(self, epoch: int) -> bool:
        # A giver may have begun the next round before this peer has; who has begun none takes nothing.
        return self.epoch >= 0 and self.epoch - 1 <= epoch <= self.epoch + 1

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
