"""Auditing a run's drawing servers as a library call: a drawing like anybody's, of which every candidate is checked."""

from collections import Counter
from dataclasses import dataclass

from pipelines.serving.draw.asking_run import open_studio
from pipelines.serving.draw.audits import Complaint
from pipelines.swarm.network_options import NetworkOptions
from pipelines.training.peer.joining import Hear, hear_nothing


@dataclass(frozen=True, kw_only=True)
class AuditedServer:
    """A server that has drawn what it was asked for."""

    peer: str
    username: str
    num_right: int
    """Candidates that it has drawn, all of which were checked."""


@dataclass(frozen=True, kw_only=True)
class AuditReport:
    """What came of an audit."""

    servers: tuple[AuditedServer, ...]
    complaints: tuple[Complaint, ...]


def audit_servers(
    repository: str,
    caption: str,
    *,
    num_candidates: int,
    seed: int,
    precision: str = "float32",
    patience_seconds: float = 60.0,
    network: NetworkOptions = NetworkOptions(client_mode=True),
    hear: Hear = hear_nothing,
) -> AuditReport:
    """Have a caption drawn over a run's servers, as anybody would, and check every candidate.

    Call it in the main thread of a process that has no other threads: hivemind forks.

    Raises:
        ValueError, ConnectionError: see `open_studio`.
        NobodyDrawsError: no server of this precision draws.
    """
    with open_studio(
        repository,
        precision=precision,
        audits=True,
        share_audited=1.0,
        patience_seconds=patience_seconds,
        network=network,
        hear=hear,
    ) as studio:
        drawn = studio.draw(studio.wish(caption, seed=seed), range(num_candidates))
    number = Counter(one.server for one in drawn.candidates if one.is_audited)
    found = [AuditedServer(peer=one.peer, username=one.name, num_right=count) for one, count in number.items()]
    return AuditReport(servers=tuple(sorted(found, key=lambda one: -one.num_right)), complaints=drawn.complaints)
