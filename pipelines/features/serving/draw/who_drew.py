"""Who has drawn what, in words and values for terminals, pages and programs."""

from collections import Counter
from collections.abc import Sequence

from hub_tools.counted import counted
from pipelines.features.serving.draw.client import Drawn, DrawnCandidate

MOST_NAMED = 12
"""Servers that a line names."""


def origin_of(candidate: DrawnCandidate) -> dict[str, object]:
    """Return who has drawn a candidate, with which weights, and whether it was checked."""
    server = candidate.server
    return dict(
        server=server.name,
        peer=server.peer,
        revision=server.revision,
        epoch=server.epoch,
        precision=server.precision,
        audited=candidate.is_audited,
    )


def what_came(drawn: Sequence[Drawn], *, is_audited: bool) -> list[str]:
    """Return lines that say who has drawn, what was lost on the way, and what checks have found.

    The names in them are strangers' text.
    """
    candidates = [candidate for one in drawn for candidate in one.candidates]
    by_whom: Counter[tuple[str, int, str]] = Counter(
        (c.server.name, c.server.epoch, c.server.precision) for c in candidates
    )
    told = [f"{name} {n} (epoch {epoch}, {kind})" for (name, epoch, kind), n in by_whom.most_common(MOST_NAMED)]
    told += [counted(len(by_whom) - MOST_NAMED, "other")] * (len(by_whom) > MOST_NAMED)
    lines = [f"{counted(len(candidates), 'candidate')} drawn by {', '.join(told)}."]
    if lost := sum(one.num_lost for one in drawn):
        lines.append(f"{lost} were drawn a second time, because a server did not finish or drew something else.")
    lines += [str(complaint) for one in drawn for complaint in one.complaints]
    if is_audited:
        lines.append(f"Checked: {sum(c.is_audited for c in candidates)} of {len(candidates)}, at random.")
    else:
        lines.append("Unchecked: drawings are checked with the model's weights.")
    return lines
