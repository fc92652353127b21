"""Who serves the run's model: pure decisions about what servers say of themselves."""

from collections.abc import Sequence

from hub_tools.counted import counted
from hub_tools.printing.printable import printable
from pipelines.features.servers.complaints import Accused
from pipelines.features.servers.layers import fill_command, missing_layers
from pipelines.features.servers.server_record import ServerRecord
from pipelines.tools.doctor.check_result import CheckResult, ok, unknown, warn

MOST_NAMED = 4
NONE = "nobody serves the model yet; it still trains"


def check_servers(
    repository: str, servers: Sequence[ServerRecord], revision: str | None, num_layers: int | None, *, is_over: bool
) -> list[CheckResult]:
    """Judge who serves: nobody after the last epoch, another checkpoint than the newest, layers that nobody has.

    `revision` and `num_layers` are those of the newest checkpoint; None: there is none, or it cannot be read.
    """
    if revision is None:
        return [unknown("servers", "there is no checkpoint that could be served")]
    if not servers:
        expected, cure = "somebody who draws or computes", f"dalle-collab serve {repository}"
        return (
            [warn("servers", "nobody serves this finished run", expected, cure)] if is_over else [ok("servers", NONE)]
        )
    newest = [one for one in servers if one.revision == revision]
    results = [_check_rates(servers), _check_revisions(servers, revision)]
    if any(one.first_layer < one.end_layer for one in servers) and num_layers is not None:
        results.append(_check_layers(repository, newest, num_layers))
    return results


def check_complaints(repository: str, accused: Sequence[Accused], servers: Sequence[ServerRecord]) -> CheckResult:
    """Say about whom others complain, as what it is: a claim, which nobody has to believe."""
    name = "complaints"
    if not accused:
        return ok(name, "nobody complains about a server")
    names = {one.peer_id: printable(one.username).strip() for one in servers}
    said = "; ".join(
        f"{names.get(one.server) or printable(one.server)[-8:]} by {len(one.accusers)}, who say that {one.num_audited} "
        f"candidates are off by {one.mean_excess:.1e}, honest ones by at most {one.limit:.1e}"
        for one in accused[:MOST_NAMED]
    )
    more = f", and {len(accused) - MOST_NAMED} more" if len(accused) > MOST_NAMED else ""
    cure = f'Claims are no proof. To look yourself: dalle-collab generate, or write, {repository} "..." --swarm --audit'
    return unknown(name, f"about {said}{more}", cure)


def _check_rates(servers: Sequence[ServerRecord]) -> CheckResult:
    drawing = [one for one in servers if one.draw_rate > 0]
    computing = [one for one in servers if one.first_layer < one.end_layer]
    codes = sum(one.draw_rate for one in drawing)
    parts = [f"{len(drawing)} drawing {codes:.0f} codes a second together"] if drawing else []
    parts += [f"{ranking} of them ranking pictures"] if (ranking := sum(one.ranks for one in drawing)) else []
    parts += [f"{len(computing)} computing layers"] if computing else []
    parts += [f"{len(servers) - len(drawing) - len(computing)} starting"] if not parts else []
    return ok("servers", f"{', '.join(parts)} ({_named(servers)}), as they say themselves")


def _check_revisions(servers: Sequence[ServerRecord], revision: str) -> CheckResult:
    name, expected = "served checkpoint", "the newest one, a minute after it was published"
    old = [one for one in servers if one.revision != revision]
    if not old:
        return ok(name, "all servers have the newest one", expected)
    epochs = f"epoch {', '.join(map(str, sorted({one.epoch for one in old})[:MOST_NAMED]))}"
    seen = f"another one at {len(old)} of {counted(len(servers), 'server')} ({_named(old)}: {epochs})"
    return warn(name, seen, expected, "Whoever runs it starts it again if it stays so: it may not reach the Hub.")


def _check_layers(repository: str, newest: Sequence[ServerRecord], num_layers: int) -> CheckResult:
    name, expected = "served layers", f"all {num_layers} at the newest checkpoint"
    spans = [range(one.first_layer, one.end_layer) for one in newest if one.state != "draining"]
    if not (holes := missing_layers(spans, range(num_layers))):
        return ok(name, f"all {num_layers}", expected)
    missing = ", ".join(f"{hole.start}:{hole.stop}" for hole in holes[:MOST_NAMED])
    commands = " ; ".join(fill_command(repository, hole) for hole in holes[:MOST_NAMED])
    return warn(name, f"nobody serves layers {missing}", expected, commands)


def _named(servers: Sequence[ServerRecord]) -> str:
    names = list(dict.fromkeys(printable(one.username).strip() or one.peer_id[-8:] for one in servers))
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more
