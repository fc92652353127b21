"""What a probe of the swarm means for a peer that wants to join: pure decisions about a `SwarmFinding`."""

import statistics
from collections.abc import Iterable, Mapping

from hub_tools.counted import counted
from pipelines.core.swarm.dialling import parse_address
from pipelines.features.servers.server_record import SERVERS
from pipelines.tools.doctor.check_result import CheckResult, fail, ok, unknown, warn
from pipelines.tools.doctor.probing.probe_result import EntryFinding, SwarmFinding

LARGEST_CLOCK_OFFSET = 3.0
"""hivemind refuses peers whose clocks differ by more (`MAX_DHT_TIME_DISCREPANCY_SECONDS`)."""

COMFORTABLE_CLOCK_OFFSET = 1.0
SLOW_START_SECONDS = 15.0
"""hivemind's own time-out for its daemon."""

SIGNS_OF_A_BAD_HOST = ("failed to listen", "failed to parse multiaddr")
"""The libp2p daemon's messages for an address it cannot use."""

CAUSES = {
    "refused": "The machine is there, but no peer listens: the run's auxiliary peer is down or has another port.",
    "silent": "A firewall drops the packets, there or here, or the machine is off.",
    "no way": "This machine has no route there: check its network, and IPv6 if it is an IPv6 address.",
    "no such name": "The name does not resolve: check the name server of this machine, or the name.",
    "no peer": "Another program has taken the port, or a proxy answers instead of the peer.",
    "other peer": "The peer was started with another key: its organiser keeps it with --identity-file.",
    "malformed": "The run's training_run.json has a damaged address.",
    "failed": "The connection was cut: a proxy or firewall may block libp2p.",
}


def check_daemon(finding: SwarmFinding) -> CheckResult:
    """The libp2p daemon must start, which takes long on a busy machine."""
    name = "libp2p daemon"
    if finding.daemon_seconds is not None:
        seen = f"started in {finding.daemon_seconds:.1f} s"
        if finding.num_daemon_starts == 1:
            return ok(name, seen, f"less than {SLOW_START_SECONDS:.0f} s")
        return warn(
            name,
            f"{seen}, at attempt {finding.num_daemon_starts}",
            f"less than {SLOW_START_SECONDS:.0f} s",
            "This machine is very busy: close other programs. A peer waits longer with --startup-timeout 180.",
        )
    said = finding.daemon_error.replace("Daemon failed to start", "").strip(": ")
    said = "was killed, or ended, without a word" if said in ("", "None") else said
    if any(sign in finding.daemon_error for sign in SIGNS_OF_A_BAD_HOST):
        return fail(
            name,
            f"cannot listen ({said})",
            "an address of this machine and a free port",
            "Choose another one: --host /ip4/0.0.0.0/tcp/PORT, or port 0 for any.",
        )
    return fail(
        name,
        f"did not start after {counted(finding.num_daemon_starts, 'attempt')}, the last one {said}",
        "a daemon that starts",
        "Close other programs and try again. If it never starts, reinstall it: pip install --force-reinstall hivemind",
    )


def check_entries(repository: str, finding: SwarmFinding) -> list[CheckResult]:
    """Judge every entry address separately: a dead one is a warning as long as another one answers."""
    if not finding.entries:
        return [
            fail(
                "entry addresses",
                "the run names none",
                "at least one",
                f"Its organiser starts the auxiliary peer, which announces one: dalle-collab run assist {repository}",
            )
        ]
    some_answer = any(entry.answers for entry in finding.entries)
    return [_check_entry(repository, entry, some_answer) for entry in finding.entries]


def _check_entry(repository: str, entry: EntryFinding, some_answer: bool) -> CheckResult:
    name = f"entry address {_short(entry.call.address)}"
    if entry.answers:
        trainers = (
            "" if entry.num_trainers is None else f", {counted(entry.num_trainers, 'training peer')} seen through it"
        )
        servers = f", {counted(len(found), 'server')} of its model" if (found := entry.records.get(SERVERS)) else ""
        return ok(name, f"answers in {1000 * (entry.ping_seconds or 0.0):.0f} ms{trainers}{servers}")
    if entry.call.outcome == "answered":
        seen = f"connects, but the peer refuses or does not answer calls ({entry.refusal})"
        cause = "It may require a token of this run's members, or hang: see `admission service` and `clock`."
    else:
        seen = f"{entry.call.outcome} ({entry.call.detail})"
        cause = CAUSES.get(entry.call.outcome, "")
    cure = f"{cause} Its organiser starts it again with: dalle-collab run assist {repository}"
    return (warn if some_answer else fail)(name, seen, "an answering peer", cure)


def check_one_swarm(repository: str, finding: SwarmFinding) -> CheckResult | None:
    """Entry peers that do not know each other lead to separate swarms (hivemind's issue 624)."""
    entries = [entry for entry in finding.entries if entry.answers]
    groups = connected_groups(entries)
    if not entries:
        return None
    if len(groups) == 1:
        return ok("one swarm", f"{len(groups[0])} entry peers know each other", "entry peers that know each other")
    sides = "; ".join(_side(group, entries) for group in groups)
    return fail(
        "one swarm",
        f"{len(groups)} swarms that do not know each other: {sides}",
        "one",
        "Peers would train separately. The organiser restarts the entry peers of the smaller swarm, which "
        f"then join the other one: dalle-collab run assist {repository}",
    )


def connected_groups(entries: Iterable[EntryFinding]) -> list[set[str]]:
    """Group entry peers of which one knows the other, directly or through a third."""
    groups: list[set[str]] = []
    for entry in entries:
        linked = [group for group in groups if group & entry.knows]
        groups = [group for group in groups if not group & entry.knows]
        groups.append(set(entry.knows).union(*linked))
    return sorted(groups, key=len, reverse=True)


def _side(group: set[str], entries: list[EntryFinding]) -> str:
    here = [entry for entry in entries if entry.peer_id in group]
    trainers = max((entry.num_trainers or 0 for entry in here), default=0)
    return f"{', '.join(_short(entry.call.address) for entry in here)} ({counted(trainers, 'training peer')})"


def clock_sources(finding: SwarmFinding) -> dict[str, float]:
    """Return how far each entry peer's clock is ahead of this machine's, by the peer's address."""
    return {
        _short(entry.call.address): entry.clock_offset for entry in finding.entries if entry.clock_offset is not None
    }


def check_clock(peers: Mapping[str, float], hub_offset: float | None) -> CheckResult:
    """Compare this machine's clock with the entry peers' and the Hub's.

    `peers` and `hub_offset` are seconds by which the others are ahead. Clocks that differ from the majority are named.
    """
    name, expected = "clock", f"within {LARGEST_CLOCK_OFFSET:.0f} s of the swarm's"
    sources = dict(peers) | ({} if hub_offset is None else {"the Hub": hub_offset})
    if not sources:
        return unknown(name, "neither the Hub nor an entry peer tells the time")
    away = {source: offset for source, offset in sources.items() if abs(offset) > LARGEST_CLOCK_OFFSET}
    seen = "; ".join(f"{source} {offset:+.1f} s" for source, offset in sources.items())
    if not away:
        worst = max(map(abs, peers.values()), default=0.0)
        if worst > COMFORTABLE_CLOCK_OFFSET:
            return warn(
                name,
                f"others' clocks beside this one: {seen}",
                expected,
                _set_the_clock(-statistics.median(peers.values())),
            )
        return ok(name, f"others' clocks beside this one: {seen}", expected)
    if 2 * len(away) > len(sources):
        ahead = -statistics.median(away.values())
        direction = "ahead" if ahead > 0 else "behind"
        return fail(
            name, f"this machine's clock is {abs(ahead):.1f} s {direction} ({seen})", expected, _set_the_clock(ahead)
        )
    odd = ", ".join(f"{source} ({offset:+.1f} s)" for source, offset in away.items())
    cure = "Its organiser sets that machine's clock: sudo timedatectl set-ntp true"
    judge = fail if away.keys() & peers.keys() else warn
    return judge(name, f"this machine agrees with the others, but not {odd}", expected, cure)


def _set_the_clock(ahead: float) -> str:
    direction = "back" if ahead > 0 else "forward"
    return f"Set it {direction} by {abs(ahead):.1f} s: sudo timedatectl set-ntp true, or: sudo chronyc makestep"


def check_reachability(finding: SwarmFinding, *, client_mode: bool) -> CheckResult:
    """Others must be able to reach an averaging peer, or they lose its part of every round."""
    name, expected = "own address", "an address that others can call"
    if client_mode:
        return ok(name, "not needed in client mode")
    if finding.calls_back is None:
        return unknown(
            name,
            "no peer offers to call back",
            "Behind a firewall or router join with --client-mode, or forward a port and name it with --announce.",
        )
    answered = [call for call in finding.calls_back if call.outcome == "answered"]
    if answered:
        return ok(name, f"{_short(answered[0].address)} answers a peer's call", expected)
    tried = "; ".join(f"{_short(call.address)} {call.outcome} ({call.detail})" for call in finding.calls_back)
    return fail(
        name,
        f"a peer sees this machine at {_short(finding.seen_as)}, but its calls fail: {tried}",
        expected,
        "Open the port in the firewall, forward it in the router and name it (--host /ip4/0.0.0.0/tcp/PORT --announce "
        "/ip4/YOUR-IP/tcp/PORT), or join with --client-mode.",
    )


def _short(text: str) -> str:
    try:
        address = parse_address(text)
    except ValueError:
        return text
    return f"[{address.host}]:{address.port}" if address.kind == "ip6" else f"{address.host}:{address.port}"
