"""Which contributions count in a round, which list closes it, and when: pure functions, the same for everybody."""

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hub_tools.printing.printable import one_line
from pipelines.core.averaging.reduce.robust_aggregation import bounded_weights
from pipelines.features.hub_rounds.statements import Pointer, RoundList

NOT_DRAWN = "not drawn"
MOST_REASON = 200
MOST_NAME = 96
"""Letters of what a stranger calls himself or his run, as they are shown."""


@dataclass(frozen=True, kw_only=True)
class NextRound:
    """What a contribution must be of to count in a round."""

    swarm_id: str
    round: int
    state: str
    """Digest of the state before."""

    sizes: range
    """Bytes that a contribution of the run's model may have."""


def refusal(pointer: Pointer, user: str, terms: NextRound) -> str | None:
    """Return why what a user's pointer offers does not count in the round; None: it may."""
    if pointer.swarm_id != terms.swarm_id:
        return f"of {one_line(pointer.swarm_id, MOST_NAME)}; expected {terms.swarm_id}"
    if pointer.user != user:
        return f"signed for {one_line(pointer.user, MOST_NAME)}"
    if pointer.round != terms.round:
        return f"of round {pointer.round}; expected {terms.round}"
    if pointer.state != terms.state:
        return f"from the state {pointer.state[:12]}; expected {terms.state[:12]}"
    if pointer.size not in terms.sizes:
        return f"{pointer.size} bytes; expected {terms.sizes.start} to {terms.sizes.stop - 1}"
    return None


def drawn_order(state: str, users: Iterable[str]) -> list[str]:
    """Return the users in the order that the digest of the state before draws: nobody chooses or foresees it."""
    return sorted(users, key=lambda user: hashlib.sha256(f"{state} {user}".encode()).digest())


def weights_of(pointers: Sequence[Pointer], max_ratio: float) -> list[float]:
    """Return the weights of the contributions: their samples, nobody's more than so many times the median."""
    claimed = {number: float(pointer.samples) for number, pointer in enumerate(pointers)}
    return list(bounded_weights(claimed, {}, max_ratio).values())


def next_deadline(deadline: float, window_seconds: float, now: float) -> float:
    """Return when the round that nobody has closed ends: a window without a contribution is followed by another."""
    return deadline + window_seconds * max(0, math.ceil((now - deadline) / window_seconds))


def fault_of(closed: RoundList, terms: NextRound, most_members: int) -> str | None:
    """Return what is wrong with a list by itself, whatever the contributions are; None: nothing.

    Its members must be those that the state before draws, of all that the list says were there to be drawn.
    """
    if (closed.swarm_id, closed.round) != (terms.swarm_id, terms.round):
        return f"it is of round {closed.round} of {one_line(closed.swarm_id, MOST_NAME)}"
    users = [member.pointer.user for member in closed.members]
    if not 0 < len(users) <= most_members:
        return f"it has {len(users)} members; expected 1 to {most_members}"
    for member in closed.members:
        if (reason := refusal(member.pointer, member.pointer.user, terms)) is not None:
            return f"the contribution of {one_line(member.pointer.user, MOST_NAME)} is {reason}"
    if len({member.pointer.digest for member in closed.members}) < len(users):
        return "a contribution counts twice"
    undrawn = [one.user for one in closed.left_out if one.reason == NOT_DRAWN]
    if drawn_order(terms.state, [*users, *undrawn])[: len(users)] != users:
        return "its members are not those that the state before draws"
    return None


def takes_back(closed: RoundList, user: str) -> bool:
    """Return whether a user that a list leaves out sends again, in the next round, what was offered to this one.

    Not who was not drawn: when what all have taken back counts at last, others have long learnt the same. With 32 of
    64 drawn the loss is 1.008 times that of counting all, with 32 of 1,000 1.016 times; if all took back, 1.000 to
    1.03 and 1.08 times (`tests/benchmarks/drawn_contributions.py`).
    """
    return all(one.user != user or one.reason != NOT_DRAWN for one in closed.left_out)
