"""Rounds of real averagers behind links of unequal rates; nobody is told the rates."""

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import averaging_round
from averaging_round import RoundSettings
from peer_processes import run_peers
from shaped_links import ShapedLinks

from pipelines.core.swarm.upload_limit import BYTES_PER_MEGABIT
from pipelines.tools.chaos.chaos_processes import free_port
from pipelines.tools.chaos.faults.link_proxy import LinkLimits, LinkProxy, PortOwners

PORT = 4001


@dataclass(frozen=True, kw_only=True)
class UnequalSettings:
    """What is averaged, and over which links."""

    megabits: tuple[float, ...]
    """The rate of each peer's link; with `has_helper` the last one is that of an auxiliary peer."""

    num_parameters: int
    num_rounds: int
    measures: bool = True
    """Whether shares follow what is measured; else all are equal."""

    has_helper: bool = False


@dataclass(frozen=True, kw_only=True)
class UnequalRound:
    """One round, as all peers that send saw it."""

    seconds: float
    """Until the last of them had its average."""

    is_whole: bool
    """Whether all were in one group and had all of the average."""


def run_unequal_rounds(settings: UnequalSettings) -> list[UnequalRound]:
    """Average a gradient `num_rounds` times over shaped links."""
    numbers = range(len(settings.megabits))
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        try:
            links = stack.enter_context(ShapedLinks(f"unequal{os.getpid()}", settings.megabits))
            addresses = [(f"/ip4/{address}/tcp/{PORT}",) * 2 for address in links.addresses]
            prefixes, owners = [links.command(number) for number in numbers], None
        except (OSError, RuntimeError) as error:
            print(f"No network namespaces here ({error}): proxies shape the links.", file=sys.stderr)
            owners = PortOwners()
            addresses, prefixes = _proxied(stack.enter_context(LinkProxy(owners)), settings.megabits), None
        told = RoundSettings(
            num_parameters=settings.num_parameters, num_rounds=settings.num_rounds, num_peers=len(numbers),
            measures=settings.measures, has_helper=settings.has_helper,
        )  # fmt: skip
        run_peers(
            averaging_round.__file__,
            [[str(number), folder, *addresses[number], json.dumps(asdict(told))] for number in numbers],
            Path(folder),
            seconds=900,
            on_start=lambda number, pid: owners.register(pid, str(number)) if owners is not None else None,
            prefixes=prefixes,
        )
        senders = numbers[:-1] if settings.has_helper else numbers
        figures = [json.loads((Path(folder) / f"figures-{n}.json").read_text(encoding="utf-8")) for n in senders]
    return [
        UnequalRound(
            seconds=max(f["seconds"] for f in rounds),
            is_whole=all(f["share_averaged"] == 1.0 and f["group_size"] == len(senders) for f in rounds),
        )
        for rounds in zip(*figures, strict=True)
    ]


def _proxied(proxy: LinkProxy, megabits: Sequence[float]) -> list[tuple[str, str]]:
    """Return what each peer listens on, and what it announces: a proxy that shapes its link."""
    addresses = []
    for number, rate in enumerate(megabits):
        port = free_port()
        announced = proxy.add(str(number), port).proxy_port
        proxy.limit(str(number), LinkLimits(bytes_per_second=rate * BYTES_PER_MEGABIT))
        addresses.append((f"/ip4/127.0.0.1/tcp/{port}", f"/ip4/127.0.0.1/tcp/{announced}"))
    return addresses
