"""Complaints about servers: what auditors have found, signed by them. Claims, which nobody has to believe.

Nothing in this package acts upon the complaints of others: an auditor avoids whom it has found itself. They are shown,
so that people can look for themselves.
"""

from collections.abc import Mapping
from dataclasses import dataclass

# hivemind's schemas are made of pydantic 1 models; a pydantic 2 model fails inside its validator.
from pydantic.v1 import BaseModel, conint, conlist, constr

from pipelines.core.swarm.peer_records import Count, Measured
from pipelines.core.swarm.records import RecordKind

COMPLAINT_SECONDS = 21_600.0
"""Lifetime of a complaint: longer than its auditor stays."""

MOST_COMPLAINTS = 8
"""Of one auditor; the newest are kept."""

MOST_SHOWN = 32
"""Accused servers that are shown, those with the most accusers first."""


class ServerComplaint(BaseModel):
    """One finding about one server; the prompt stays private."""

    server: constr(max_length=96)
    """libp2p id, in base 58."""

    revision: constr(regex="^[0-9a-f]{64}$")
    precision: constr(regex="^(float32|bfloat16|int8)$")
    num_audited: Count
    """Candidates over which `mean_excess` is taken; see `serving.draw.audits`."""

    mean_excess: Measured
    limit: Measured
    """The highest mean that the auditor believes to be honest."""

    seed: conint(ge=-(2**63), lt=2**63, strict=True)
    prompt: conint(ge=0, le=2**16, strict=True)
    """The prompt's place among those that were drawn together."""

    candidate: conint(ge=0, le=2**31, strict=True)
    excess: Measured
    """Of this candidate, the worst of those that were audited last."""


class ComplaintsRecord(BaseModel):
    """What one auditor has found."""

    peer_id: constr(max_length=96)
    username: constr(max_length=96)
    complaints: conlist(ServerComplaint, max_items=MOST_COMPLAINTS)


COMPLAINTS = RecordKind("complaints", ComplaintsRecord)


@dataclass(frozen=True, kw_only=True)
class Accused:
    """A server about which somebody complains."""

    server: str
    accusers: tuple[str, ...]
    """Users, in an open run peers; each counts once, with however many keys and complaints."""

    num_audited: int
    mean_excess: float
    limit: float
    """Of the complaint with the most audited candidates."""


def accused_servers(records: Mapping[bytes, ComplaintsRecord], *, names_users: bool) -> list[Accused]:
    """Return who is accused by whom, by records that count; `names_users`: an authority vouches for user names."""
    claims: dict[str, list[tuple[str, ServerComplaint]]] = {}
    for record in records.values():
        for one in record.complaints:
            claims.setdefault(one.server, []).append((record.username if names_users else record.peer_id, one))
    accused = []
    for server, made in claims.items():
        strongest = max((one for _, one in made), key=lambda one: one.num_audited)
        figures = {name: getattr(strongest, name) for name in ("num_audited", "mean_excess", "limit")}
        accused.append(Accused(server=server, accusers=tuple(sorted({accuser for accuser, _ in made})), **figures))
    return sorted(accused, key=lambda one: (-len(one.accusers), one.server))[:MOST_SHOWN]
