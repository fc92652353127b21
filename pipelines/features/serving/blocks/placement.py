"""Which layers a server serves, and when it moves. Pure, so that all servers that see the same come to the same.

A swarm is as fast as its slowest layer, whose rate is the sum of the rates of those that serve it.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from pipelines.features.serving.blocks.routing import ServedSpan

LEAST_GAIN = 1.10
"""A server moves only if the slowest layer becomes faster by this factor, because a move costs a download."""

LOOKS_TO_CONFIRM = 2
MOST_SERVERS = 64
"""With more of them nobody moves: one more or less matters little, and anybody may say that he serves."""

MOST_SERVERS_TO_LOOK_AHEAD = 24
"""With more of them some move alone helps; looking ahead at pairs of moves takes time with their number squared."""


@dataclass(frozen=True, kw_only=True)
class Move:
    """A server's better place."""

    peer: str
    start: int
    end: int
    gain: float
    """How many times as fast the slowest layer becomes; infinite if the move closes holes, at once or with the next."""


@dataclass(frozen=True, order=True)
class _Standing:
    """How well all layers are served; the larger the better."""

    neg_missing: int
    slowest: float
    sorted_rates: tuple[float, ...]


def choose_span(served: Iterable[ServedSpan], num_layers: int, length: int, layers_per_second: float) -> range:
    """Return the `length` layers that a new server helps most with: those that nobody serves, then the slowest."""
    length = min(length, num_layers)
    rates = _rates(served, num_layers)

    def standing(start: int) -> tuple[_Standing, int]:
        added = [
            rate + (layers_per_second if start <= layer < start + length else 0.0) for layer, rate in enumerate(rates)
        ]
        return _standing(added), -start

    start = max(range(num_layers - length + 1), key=standing)
    return range(start, start + length)


def best_move(served: Sequence[ServedSpan], num_layers: int) -> Move | None:
    """Return the one move that helps the swarm most, or None if none is worth it; all servers find the same one.

    Nobody moves while somebody is moving or joining. What is served by all without a mover stays served: without holes,
    every layer of the mover has another server; with holes, no new one appears.
    """
    if len(served) > MOST_SERVERS or any(not span.is_online for span in served):
        return None
    moves = [move for move, _ in _gainful_moves(served, num_layers)]
    if not moves and _missing(served, num_layers) and len(served) <= MOST_SERVERS_TO_LOOK_AHEAD:
        moves = list(_preparing_moves(served, num_layers))
    return max(moves, key=lambda move: (move.gain, move.peer, -move.start), default=None)


class MoveWatch:
    """Remembers what a server saw at its last looks, and lets it move only when it saw the same before."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self._seen: list[Move] = []

    def should_move(self, served: Sequence[ServedSpan], num_layers: int) -> Move | None:
        """Return the move of this server, if it is the best one in the swarm for the second time."""
        move = best_move(served, num_layers)
        if move is None or move.peer != self.peer:
            self._seen = []
            return None
        is_same = bool(self._seen) and (self._seen[-1].start, self._seen[-1].end) == (move.start, move.end)
        self._seen = [*self._seen, move] if is_same else [move]
        if len(self._seen) < LOOKS_TO_CONFIRM:
            return None
        self._seen = []
        return move


def _gainful_moves(served: Sequence[ServedSpan], num_layers: int) -> Iterator[tuple[Move, list[ServedSpan]]]:
    before, missing = _standing(_rates(served, num_layers)), _missing(served, num_layers)
    for move, after in _harmless_moves(served, num_layers):
        standing = _standing(_rates(after, num_layers))
        if missing:
            if standing.neg_missing > before.neg_missing:
                yield replace(move, gain=float("inf")), after
        elif standing.slowest > LEAST_GAIN * before.slowest:
            yield replace(move, gain=standing.slowest / before.slowest), after


def _preparing_moves(served: Sequence[ServedSpan], num_layers: int) -> Iterator[Move]:
    """Moves that close no hole by themselves, but let the next one close one."""
    for move, after in _harmless_moves(served, num_layers):
        if any(other.peer != move.peer for other, _ in _gainful_moves(after, num_layers)):
            yield replace(move, gain=float("inf"))


def _harmless_moves(served: Sequence[ServedSpan], num_layers: int) -> Iterator[tuple[Move, list[ServedSpan]]]:
    missing = _missing(served, num_layers)
    edges = {0, num_layers} | set(itertools.chain.from_iterable((span.start, span.end) for span in served))
    edges |= {edge for layer in missing for edge in (layer, layer + 1)}
    for mover in served:
        others = [span for span in served if span.peer != mover.peer]
        length = mover.end - mover.start
        if not missing and _missing(others, num_layers):
            continue  # while it loads its new layers nobody would serve its old ones
        for start in sorted(edges | {edge - length for edge in edges}):
            if start == mover.start or not 0 <= start <= num_layers - length:
                continue
            after = [*others, replace(mover, start=start, end=start + length)]
            if _missing(after, num_layers) <= missing:
                yield Move(peer=mover.peer, start=start, end=start + length, gain=1.0), after


def _rates(served: Iterable[ServedSpan], num_layers: int) -> list[float]:
    rates = [0.0] * num_layers
    for span in served:
        for layer in range(span.start, min(span.end, num_layers)):
            rates[layer] += span.layers_per_second / (span.end - span.start)
    return rates


def _missing(served: Iterable[ServedSpan], num_layers: int) -> set[int]:
    return {layer for layer, rate in enumerate(_rates(served, num_layers)) if rate == 0.0}


def _standing(rates: Sequence[float]) -> _Standing:
    return _Standing(-sum(rate == 0.0 for rate in rates), min(rates), tuple(sorted(rates)))
