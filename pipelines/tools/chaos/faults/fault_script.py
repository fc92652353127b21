"""Which faults a chaos run injects, when and into whom: a pure function of script, seed and duration.

Attacks of `attacks.table` are faults, too: of no peer, and never drawn.
"""

import itertools
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from pipelines.tools.chaos.attacks.table import ATTACKS

NO_PEER = -1
"""The `peer` of faults that strike no single trainer: the Hub's and the auxiliary peer's."""


class FaultKind(StrEnum):
    """What can go wrong."""

    KILL = "kill"
    """SIGKILL to all processes of a peer; its volunteer restarts it after the duration."""

    STOP = "stop"
    """SIGSTOP to all processes of a peer, SIGCONT after the duration: a sleeping laptop."""

    PARTITION = "partition"
    """No data passes between a peer and all others; connections stay open."""

    SLOW_LINK = "slow_link"
    """A peer's link is limited and delayed."""

    NAN = "nan"
    """A peer sends NaN gradients, past its own checks."""

    LIAR = "liar"
    """A peer sends its gradient times -1000."""

    HUB_OUTAGE = "hub_outage"
    """The Hub does not answer."""

    CLOCK_SKEW = "clock_skew"
    """A peer's clock is wrong by more than hivemind tolerates."""

    DISK_FULL = "disk_full"
    """The auxiliary peer cannot write large files."""

    CHILD = "child"
    """SIGKILL to one of hivemind's processes of a peer, each time another one: the peer ends by itself, and its
    volunteer restarts it after the duration. Never drawn: each seed would mean something else."""

    NOISE = "noise"
    """A peer trains on image codes that are drawn by lot. Never drawn, either."""


class ServingFault(StrEnum):
    """What can go wrong with those who serve the model; never drawn, because what serves is started for them alone."""

    SERVER = "server"
    """SIGKILL to a drawing server, which is started again after the duration; each second time SIGSTOP and SIGCONT."""

    HOLE = "hole"
    """SIGKILL to all servers of some layers, which are started again after the duration."""

    FALSE_SERVER = "false_server"
    """One more server, which draws with other weights than it says."""


class RoundFault(StrEnum):
    """What can go wrong besides where the Hub is the only wire; drawn there alone."""

    CLOSER_KILLED = "closer_killed"
    """SIGKILL to the first auxiliary peer, which is started again after the duration: the second one closes rounds."""

    CLOSER_FROZEN = "closer_frozen"
    """SIGSTOP to the first auxiliary peer until the second one has closed a round, then SIGCONT: both close it."""

    TOO_MANY_REQUESTS = "too_many_requests"
    """The Hub answers a peer 429, and to come back in 5 seconds."""

    SLOW_HUB = "slow_hub"
    """The Hub answers everybody two seconds late."""

    BROKEN_UPLOADS = "broken_uploads"
    """Half of what a peer puts arrives, and then the connection ends."""

    BUCKET_FULL = "bucket_full"
    """A peer's bucket takes no more files."""

    TOKEN_EXPIRED = "token_expired"
    """The Hub answers a peer 401."""


DURATIONS: dict[str, tuple[float, float]] = {
    FaultKind.KILL: (6.0, 12.0),
    FaultKind.STOP: (4.0, 12.0),
    FaultKind.PARTITION: (4.0, 12.0),
    FaultKind.SLOW_LINK: (8.0, 16.0),
    FaultKind.NAN: (4.0, 10.0),
    FaultKind.LIAR: (4.0, 10.0),
    FaultKind.HUB_OUTAGE: (8.0, 20.0),
    FaultKind.CLOCK_SKEW: (6.0, 12.0),
    FaultKind.DISK_FULL: (8.0, 20.0),
    FaultKind.CHILD: (6.0, 12.0),
    FaultKind.NOISE: (20.0, 30.0),
    ServingFault.SERVER: (10.0, 15.0),
    ServingFault.HOLE: (45.0, 50.0),
    ServingFault.FALSE_SERVER: (40.0, 45.0),
    RoundFault.CLOSER_KILLED: (8.0, 25.0),
    RoundFault.CLOSER_FROZEN: (30.0, 40.0),
    RoundFault.TOO_MANY_REQUESTS: (15.0, 30.0),
    RoundFault.SLOW_HUB: (15.0, 30.0),
    RoundFault.BROKEN_UPLOADS: (15.0, 30.0),
    RoundFault.BUCKET_FULL: (15.0, 30.0),
    RoundFault.TOKEN_EXPIRED: (15.0, 30.0),
}
"""Range of a fault's duration in seconds; all outlast several rounds of the chaos run, and records of who is gone."""

DRAWN_KINDS = tuple(kind for kind in FaultKind if kind not in (FaultKind.CHILD, FaultKind.NOISE))
DRAWN_KINDS_OVER_THE_HUB = (
    *(FaultKind.KILL, FaultKind.STOP, FaultKind.LIAR, FaultKind.HUB_OUTAGE, FaultKind.CLOCK_SKEW),
    *RoundFault,
)
KINDS_OVER_THE_HUB = tuple(kind for kind in (*FaultKind, *RoundFault) if kind != FaultKind.CHILD)
FACTOR_OVER_THE_HUB = 2.5
"""By which faults of `FaultKind` last longer where the Hub is the only wire: rounds do, too."""

KINDS_WITHOUT_PEER = (
    *(FaultKind.HUB_OUTAGE, FaultKind.DISK_FULL, *ServingFault, *ATTACKS),
    *(RoundFault.CLOSER_KILLED, RoundFault.CLOSER_FROZEN, RoundFault.SLOW_HUB),
)
DURATION_OF_AN_ATTACK = (20.0, 30.0)
SECONDS_BETWEEN_SERVING_FAULTS = 5.0
QUIET_SHARE = 0.15
"""Share at the end of the duration that is free of drawn faults: the recovery is measured there."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault of a run."""

    kind: str
    """A `FaultKind`, a `RoundFault`, a `ServingFault`, or the name of an attack."""

    at_seconds: float
    """When it starts, in seconds from the start of the faults."""

    duration_seconds: float
    peer: int = NO_PEER
    """Number of the trainer that it strikes; `NO_PEER` for the Hub's and the auxiliary peer's faults."""

    def __post_init__(self) -> None:
        if self.kind not in (*ATTACKS, *ServingFault, *RoundFault):
            object.__setattr__(self, "kind", FaultKind(self.kind))
        if not (0 <= self.at_seconds < float("inf") and 0 < self.duration_seconds < float("inf")):
            raise ValueError(
                f"Fault {self.kind} starts at {self.at_seconds} s and lasts {self.duration_seconds} s; expected a "
                "start of at least 0 and a duration above 0."
            )

    @property
    def ends_at_seconds(self) -> float:
        """When it ends."""
        return self.at_seconds + self.duration_seconds

    def describe(self) -> str:
        """Return the fault in words."""
        whom = "" if self.peer == NO_PEER else f" of trainer {self.peer}"
        return f"{self.kind}{whom} at {self.at_seconds:.1f} s for {self.duration_seconds:.1f} s"


def attack_in_the_middle(name: str, duration_seconds: float) -> Fault:
    """Return the fault that one attack is, from a tenth of the duration on, until what is quiet at the end."""
    begin = duration_seconds / 10
    return Fault(kind=name, at_seconds=begin, duration_seconds=duration_seconds * (1 - QUIET_SHARE) - begin)


def serving_faults_in_turn(kinds: Sequence[str], duration_seconds: float) -> tuple[Fault, ...]:
    """Return faults of servers, one after the other, each as long as it may be.

    Raises:
        ValueError: they take longer than there is.
    """
    faults: list[Fault] = []
    for kind in kinds:
        begin = faults[-1].ends_at_seconds + SECONDS_BETWEEN_SERVING_FAULTS if faults else 1.0
        faults.append(Fault(kind=kind, at_seconds=begin, duration_seconds=DURATIONS[kind][1]))
    if faults[-1].ends_at_seconds > duration_seconds * (1 - QUIET_SHARE):
        needed = faults[-1].ends_at_seconds / (1 - QUIET_SHARE) / 60
        raise ValueError(
            f"{', '.join(kinds)} do not end in {duration_seconds / 60:.1f} minutes. Use --minutes {needed + 0.05:.1f}"
        )
    return tuple(faults)


def draw_faults(
    *, seed: int, duration_seconds: float, num_faults: int, num_peers: int, wire: str = "p2p"
) -> tuple[Fault, ...]:
    """Return faults spread over the duration, every kind before one repeats; equal arguments give equal faults."""
    if num_faults == 0:
        return ()
    random_numbers = random.Random(f"chaos {seed}")
    kinds = _kinds_in_turn(random_numbers, num_faults, DRAWN_KINDS if wire == "p2p" else DRAWN_KINDS_OVER_THE_HUB)
    slot = duration_seconds * (1 - QUIET_SHARE) / num_faults
    return tuple(
        _draw_fault(
            random_numbers,
            {"kind": kind, "at_seconds": (number + random_numbers.uniform(0.0, 0.6)) * slot},
            last_end=duration_seconds * (1 - QUIET_SHARE),
            num_peers=num_peers,
            wire=wire,
        )
        for number, kind in enumerate(kinds)
    )


def read_script(
    path: Path, *, seed: int, duration_seconds: float, num_peers: int, wire: str = "p2p"
) -> tuple[Fault, ...]:
    """Return the faults of a script: a JSON list of objects, in which only `kind` is required.

    Missing values (`at_seconds`, `duration_seconds`, `peer`) are drawn from the seed. Raises ValueError for
    anything that is not such a script.
    """
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is not a fault script ({error}); expected a JSON list of {{'kind': ...}}.") from error
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f"{path} is not a fault script: expected a JSON list of objects, each with a 'kind'.")
    random_numbers = random.Random(f"chaos script {seed}")
    faults = [_fault_of_entry(random_numbers, entry, duration_seconds, num_peers, path, wire) for entry in entries]
    return tuple(sorted(faults, key=lambda fault: fault.at_seconds))


def script_text(faults: Sequence[Fault]) -> str:
    """Return the script that gives exactly these faults, whatever the seed."""
    return json.dumps([asdict(fault) for fault in faults], indent=1) + "\n"


def _kinds_in_turn(random_numbers: random.Random, num_faults: int, drawn: Sequence[str]) -> list[str]:
    def shuffled() -> list[str]:
        return random_numbers.sample(drawn, len(drawn))

    rounds = itertools.chain.from_iterable(shuffled() for _ in itertools.count())
    return list(itertools.islice(rounds, num_faults))


def _fault_of_entry(
    random_numbers: random.Random,
    entry: Mapping[str, object],
    duration_seconds: float,
    num_peers: int,
    path: Path,
    wire: str,
) -> Fault:
    known = {"kind", "at_seconds", "duration_seconds", "peer"}
    if unknown := sorted(set(entry) - known):
        raise ValueError(f"{path} has a fault with unknown {', '.join(unknown)}; expected {', '.join(sorted(known))}.")
    kinds = KINDS_OVER_THE_HUB if wire == "hub" else (*FaultKind, *ServingFault, *ATTACKS)
    if entry.get("kind") not in kinds:
        raise ValueError(f"{path} has a fault of kind {entry.get('kind')!r}; expected one of {', '.join(kinds)}.")
    numbers = [entry[name] for name in known - {"kind"} if name in entry]
    if not all(isinstance(number, (int, float)) for number in numbers):
        raise ValueError(f"{path} has {numbers} in a fault of kind {entry['kind']}; expected numbers.")
    values = {"at_seconds": random_numbers.uniform(0.0, duration_seconds * (1 - QUIET_SHARE)), **entry}
    fault = _draw_fault(random_numbers, values, last_end=duration_seconds, num_peers=num_peers, wire=wire)
    if fault.kind not in KINDS_WITHOUT_PEER and not 0 <= fault.peer < num_peers:
        raise ValueError(f"{path} has a {fault.kind} of peer {fault.peer}; expected 0 to {num_peers - 1}.")
    if fault.ends_at_seconds > duration_seconds:
        raise ValueError(
            f"{path}: {fault.describe()} outlasts the run of {duration_seconds:.0f} s; use more --minutes."
        )
    return fault


def _draw_fault(
    random_numbers: random.Random, values: Mapping[str, Any], *, last_end: float, num_peers: int, wire: str
) -> Fault:
    """Complete a fault; all its numbers are always drawn, so that a given value does not shift the later ones."""
    kind = values["kind"]
    length = random_numbers.uniform(*DURATIONS.get(kind, DURATION_OF_AN_ATTACK))
    if wire == "hub" and kind in (*FaultKind,):
        length *= FACTOR_OVER_THE_HUB
    peer = random_numbers.randrange(num_peers)
    at_seconds = float(values["at_seconds"])
    return Fault(
        kind=kind,
        at_seconds=round(at_seconds, 3),
        duration_seconds=round(float(values.get("duration_seconds", max(1.0, min(length, last_end - at_seconds)))), 3),
        peer=NO_PEER if kind in KINDS_WITHOUT_PEER else int(values.get("peer", peer)),
    )
