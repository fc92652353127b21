"""Complaints about servers: what auditors have found, signed by them. Claims, which nobody has to believe.

Nothing in this package acts upon the complaints of others: an auditor avoids whom it has found itself. They are shown,
so that people can look for themselves.
"""

from collections.abc import Mapping
from dataclasses import dataclass

# hivemind's schemas are made of pydantic 1 models; a pydantic 2 model fails inside its validator.
from pydantic.v1 import BaseModel, conint, conlist, constr

from pipelines.swarm.servers.server_record import Count, Measured

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
    accusers: dict[str, set[str]] = {}
    strongest: dict[str, ServerComplaint] = {}
    for record in records.values():
        for one in record.complaints:
            accusers.setdefault(one.server, set()).add(record.username if names_users else record.peer_id)
            known = strongest.get(one.server)
            if known is None or one.num_audited > known.num_audited:
                strongest[one.server] = one
    shown = sorted(accusers, key=lambda server: (-len(accusers[server]), server))[:MOST_SHOWN]
    return [
        Accused(
            server=server,
            accusers=tuple(sorted(accusers[server])),
            num_audited=strongest[server].num_audited,
            mean_excess=strongest[server].mean_excess,
            limit=strongest[server].limit,
        )
        for server in shown
    ]
