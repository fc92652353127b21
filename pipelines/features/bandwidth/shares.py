"""How much of the vector each member reduces, so that a round ends as early as the members' links allow.

This is DeDLOC's linear programme (Diskin et al. 2021, section 3.2) with a link's two directions apart and with members
that only take answers. A member that reduces the share w, in units of the vector, in a group of n members of which s
send, transfers

    up:   (1 - w if it sends) + (n - 1) w          its parts, and its answers to everybody
    down: (1 - w) + (s - 1 if it sends, else s) w  the others' answers, and the parts that it reduces

and the longest of these, each divided by what the link carries, is to be short. Each bound concerns one member alone:
at a given duration every member can take a share of its own, and the shortest duration is the one at which these add up
to the vector. That needs no solver, and plain arithmetic comes to the same bits on all machines: who divides the vector
in another way than the others cannot take part. Where a member's own vector takes longest whatever it reduces, the
others share the rest evenly by their links.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pipelines.core.averaging.division import Link

SLOWEST_MBIT, FASTEST_MBIT = 0.01, 100_000.0
"""What links are taken for at least and at most."""

NUM_HALVINGS = 100
"""Enough for every bit of the duration."""

MIN_OF_EQUAL_SHARE = 0.05
"""A smaller part of the equal share is not worth the streams: it goes to the others."""


@dataclass(frozen=True, kw_only=True)
class Member:
    """A member of a group, as its part in the work is concerned."""

    sends: bool
    """Whether it has a vector of its own to send."""

    reduces: bool
    """Whether it can reduce: not clients, nor those that only listen."""

    link: Link
    is_proven: bool = True
    """Whether the others have seen what its link carries."""

    seen_mbit: float | None = None
    """At what rate most of the others have seen it deliver, so that they wait as long as it needs; None: not yet."""


def bounded(rate: float) -> float:
    """Return what a link of this rate, in Mbit/s, is taken for."""
    return min(FASTEST_MBIT, max(SLOWEST_MBIT, rate))


def shares_of(members: Sequence[Member]) -> tuple[float, ...]:
    """Return the share of the vector that each member reduces, in [0, 1]; they add up to 1.

    All that are not proven together reduce at most as much as if everybody reduced the same; who was never seen to
    deliver reduces nothing beside a majority that was, so that a newcomer that fails takes only its own vector along.

    Raises:
        ValueError: nobody can reduce.
    """
    reducers = [index for index, member in enumerate(members) if member.reduces]
    if not reducers:
        raise ValueError("Nobody in the group can reduce: all are clients or listeners.")
    seen = [index for index in reducers if members[index].seen_mbit is not None]
    reducers = seen if 2 * len(seen) > len(reducers) else reducers
    shares = _filled(members, reducers, 1.0)
    unproven = [index for index in reducers if not members[index].is_proven]
    most = len(unproven) / len(reducers)
    if sum(shares[index] for index in unproven) > most:
        proven = [index for index in reducers if members[index].is_proven]
        shares = [
            one + other
            for one, other in zip(_filled(members, unproven, most), _filled(members, proven, 1 - most), strict=True)
        ]
    least = MIN_OF_EQUAL_SHARE / len(reducers)
    worth = [share if share >= least else 0.0 for share in shares]
    total = sum(worth)
    return tuple(share / total for share in worth)


def divided(num_values: int, shares: Sequence[float]) -> tuple[int, ...]:
    """Return how many of the vector's values each share comes to, all together `num_values`."""
    bounds, reached = [0], 0.0
    for share in shares:
        reached += share
        bounds.append(min(num_values, round(num_values * reached)))
    last = max(index for index, share in enumerate(shares) if share)
    bounds[last + 1 :] = [num_values] * (len(bounds) - last - 1)
    return tuple(end - begin for begin, end in itertools.pairwise(bounds))


def duration_of(members: Sequence[Member], shares: Sequence[float]) -> float:
    """Return how long a round takes by the links alone, in seconds for each Mbit of the vector on the wire.

    Nobody waits for who only listens.
    """
    return max(
        (base + slope * share) / rate
        for member, share in zip(members, shares, strict=True)
        if member.sends or share
        for base, slope, rate in _loads(members, member)
    )


def seen_in_time(members: Sequence[Member], num_mbit: float, most_seconds: float) -> list[Member]:
    """Return the members that the others have seen deliver, with links of the rates that were seen.

    Left out is who could not even send its own vector, of so many Mbit on the wire, in the time that a round may take.
    """
    return [
        replace(member, link=Link(up=rate, down=rate))
        for member in members
        if (rate := member.seen_mbit) is not None and num_mbit <= bounded(rate) * most_seconds
    ]


def seconds_needed(members: Sequence[Member], num_mbit: float, most_seconds: float) -> float | None:
    """Return how long a round of a vector of so many Mbit takes by the links of all that are `seen_in_time`.

    What others announce makes nobody wait. One that alone was seen sends its own vector, at least. None: nobody was.
    """
    seen = [member for member in seen_in_time(members, num_mbit, most_seconds) if member.sends or member.reduces]
    if len(seen) < 2 or not any(member.reduces for member in seen):
        return max((num_mbit / bounded(member.link.up) for member in seen if member.sends), default=None)
    return num_mbit * duration_of(seen, shares_of(seen))


def _loads(members: Sequence[Member], member: Member) -> tuple[tuple[float, float, float], ...]:
    """Return for each direction the load without a share, the load for each share, and the rate."""
    sends, num_senders = int(member.sends), sum(other.sends for other in members)
    up, down = bounded(member.link.up), bounded(member.link.down)
    return (sends, len(members) - 1 - sends, up), (1, num_senders - sends - 1, down)


def _filled(members: Sequence[Member], reducers: Sequence[int], total: float) -> list[float]:
    """Return the shares at the shortest duration at which these reducers can take this much together."""
    shares = [0.0] * len(members)
    if not reducers or not total:
        return shares
    loads = [_loads(members, members[index]) for index in reducers]

    def possible(duration: float) -> list[float]:
        return [min(_possible(*load, duration) for load in both) for both in loads]

    longest = 1.0
    while sum(possible(longest)) < total:
        longest *= 2
    shortest = 0.0
    for _ in range(NUM_HALVINGS):
        middle = (shortest + longest) / 2
        if sum(possible(middle)) < total:
            shortest = middle
        else:
            longest = middle
    found = possible(longest)
    factor = total / sum(found)
    for index, share in zip(reducers, found, strict=True):
        shares[index] = share * factor
    return shares


def _possible(base: float, slope: float, rate: float, duration: float) -> float:
    """Return the largest share, at most 1, that one direction of a link can take in a round of this duration."""
    room = duration * rate - base
    if room < 0:
        return 0.0
    return 1.0 if room >= slope else room / slope
