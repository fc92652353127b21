"""Which servers a client's chain goes through. Pure: no clock, no network, no randomness."""

import heapq
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from hub_tools.counted import counted
from pipelines.features.servers.layers import fill_command, missing_layers

DEFAULT_ROUND_TRIP_SECONDS = 0.1
"""Of a server that nobody has measured."""


@dataclass(frozen=True, kw_only=True)
class ServedSpan:
    """What a server says that it serves, and how far it is from here."""

    peer: str
    start: int
    end: int
    revision: str
    """SHA-256 of the weights' file."""

    layers_per_second: float
    """Layers through which it takes one place of one sample in a second; measured by itself at its start."""

    round_trip_seconds: float = DEFAULT_ROUND_TRIP_SECONDS
    precision: str = "float32"
    """In which the server computes."""

    is_online: bool = True
    """False while it loads weights, or leaves."""

    user: str = ""
    """Whom the run's authority has admitted with this peer; nobody in an open run."""

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end:
            raise ValueError(f"A span from {self.start} to {self.end} has no layers, expected 0 <= start < end.")
        if not (self.layers_per_second > 0 and self.round_trip_seconds >= 0):
            raise ValueError(f"{self.peer} has a rate of {self.layers_per_second}, expected a number above 0.")


@dataclass(frozen=True, kw_only=True, order=True)
class Hop:
    """One server's part of a chain."""

    peer: str
    start: int
    end: int
    user: str = ""
    """See `ServedSpan.user`."""


class NoChainError(ConnectionError):
    """Nobody serves some layers."""

    def __init__(self, repository: str, revision: str, missing: Sequence[range], other_revisions: int) -> None:
        self.missing = tuple(missing)
        named = ", ".join(f"{hole.start}:{hole.stop}" for hole in missing)
        others = (
            f" Of other revisions, which are never mixed: {counted(other_revisions, 'server')}. Open the model again."
            if other_revisions
            else ""
        )
        super().__init__(
            f"Nobody serves layers {named} of {repository} at revision {revision[:12]}.{others} "
            f"Serve them: {' ; '.join(fill_command(repository, hole) for hole in missing)}"
        )


def choose_chain(
    served: Iterable[ServedSpan],
    layers: range,
    revision: str,
    *,
    repository: str,
    avoid: Collection[str] = (),
) -> list[Hop]:
    """Return the chain through these layers that takes a place through them in the shortest time.

    A hop costs a round trip and its layers at its server's rate; it may be any part of what its server serves. Servers
    to `avoid` are passed by while there is another chain.

    Raises:
        NoChainError: nobody serves some of the layers at this revision.
    """
    online = [span for span in served if span.is_online]
    usable = [span for span in online if span.revision == revision]
    for candidates in ([span for span in usable if span.peer not in avoid], usable):
        if (chain := _shortest(candidates, layers)) is not None:
            return chain
    raise NoChainError(repository, revision, holes(usable, layers), len(online) - len(usable))


def _shortest(served: Sequence[ServedSpan], layers: range) -> list[Hop] | None:
    """Dijkstra's algorithm; the places are the boundaries between layers."""
    boundaries = sorted({span.start for span in served if span.start in layers} | {layers.stop})
    reached: dict[int, float] = {}
    # Ties are broken by the number of hops, then by the names of the peers, so that the answer is always the same.
    waiting: list[tuple[float, int, tuple[str, ...], int, tuple[Hop, ...]]] = [(0.0, 0, (), layers.start, ())]
    done: set[int] = set()
    while waiting:
        seconds, num_hops, peers, at, chain = heapq.heappop(waiting)
        if at == layers.stop:
            return list(chain)
        if at in done:
            continue
        done.add(at)
        for span in served:
            if not span.start <= at < span.end:
                continue
            ends = {end for end in boundaries if at < end <= span.end} | {min(span.end, layers.stop)}
            for end in sorted(ends):
                total = seconds + span.round_trip_seconds + (end - at) / span.layers_per_second
                if total <= reached.get(end, total):
                    reached[end] = total
                    hop = Hop(peer=span.peer, start=at, end=end, user=span.user)
                    heapq.heappush(waiting, (total, num_hops + 1, (*peers, span.peer), end, (*chain, hop)))
    return None


def holes(served: Iterable[ServedSpan], layers: range) -> list[range]:
    """Return the runs of layers that nobody serves."""
    return missing_layers((range(span.start, span.end) for span in served), layers)
