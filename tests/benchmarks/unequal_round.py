"""Rounds of real averagers behind links of unequal rates; nobody is told the rates.

Usage of a peer: python unequal_round.py NUMBER FOLDER ADDRESS ANNOUNCED SETTINGS.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from peer_processes import run_peers
from shaped_links import ShapedLinks

from pipelines.chaos.chaos_processes import free_port
from pipelines.chaos.faults.link_proxy import LinkLimits, LinkProxy, PortOwners
from pipelines.swarm.upload_limit import BYTES_PER_MEGABIT

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
        run_peers(
            __file__,
            [[str(number), folder, *addresses[number], json.dumps(asdict(settings))] for number in numbers],
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


def be_a_peer(number: int, folder: Path, address: str, announced: str, settings: UnequalSettings) -> None:
    """Average random gradients with the others, in 8 bits."""
    from hivemind.utils import MSGPackSerializer

    from pipelines.swarm.network_options import NetworkOptions
    from pipelines.swarm.node import open_dht, visible_addresses
    from pipelines.training.averaging.bandwidth.division import Division
    from pipelines.training.averaging.wire.codec import averaging_compression
    from pipelines.training.run.training_run import TrainingRun
    from pipelines.training.swarm_optimizer.assembly import LISTENER
    from pipelines.training.swarm_optimizer.gradient_averager import SwarmGradientAverager

    class EqualDivision(Division):
        """Says nothing of its link, so that everybody reduces the same."""

        def told(self, gathered: bytes) -> bytes:
            _, mode, message = MSGPackSerializer.loads(gathered)
            return MSGPackSerializer.dumps([None, mode, message])

    class EqualAverager(SwarmGradientAverager):
        async def _step(self, **kwargs: Any) -> None:
            self._division = self._division or EqualDivision(None, None, may_help=False)
            await super()._step(**kwargs)

    torch.set_num_threads(1)
    run = TrainingRun(
        run_id="bench", model_config={}, dataset_repository="a/b", dataset_revision="c",
        averaging_compression="blockwise_8bit",
    )  # fmt: skip
    helps = settings.has_helper and number == len(settings.megabits) - 1
    entry = () if number == 0 else (_wait_for(folder / "address"),)
    options = NetworkOptions(host_addresses=(address,), announce_addresses=(announced,))
    parameter = torch.nn.Parameter(torch.randn(settings.num_parameters // 1024, 1024))
    rounds = []
    with open_dht("bench/run", entry, options, admission=None) as dht:
        if number == 0:
            _write(folder / "address", visible_addresses(dht)[0])
        kind = SwarmGradientAverager if settings.measures else EqualAverager
        averager = kind(
            [parameter], dht=dht, admission=None, prefix="bench", compression=averaging_compression(run),
            target_group_size=len(settings.megabits), min_matchmaking_time=4.0, request_timeout=1.5,
            allreduce_timeout=120.0, next_chunk_timeout=30.0, start=True,
            **(dict(LISTENER, may_help=True) if helps else {}),
        )  # fmt: skip
        while len(rounds) < settings.num_rounds:
            _meet(folder, number, len(rounds), len(settings.megabits))
            if not helps:
                parameter.grad = torch.randn_like(parameter)
                averager.accumulate_grads_(batch_size=1)
            averager.step(timeout=240.0)
            averager.notify_used_averaged_gradients()
            rounds.append(asdict(averager.last_round))
        averager.shutdown()
        _write(folder / f"figures-{number}.json", json.dumps(rounds))


def _meet(folder: Path, number: int, round_number: int, num_peers: int) -> None:
    """Wait until all peers are about to begin a round."""
    (folder / f"ready-{round_number}-{number}").touch()
    while len(list(folder.glob(f"ready-{round_number}-*"))) < num_peers:
        time.sleep(0.05)


def _write(path: Path, text: str) -> None:
    temporary = path.with_suffix(".partial")
    temporary.write_text(text, encoding="utf-8")
    temporary.rename(path)


def _wait_for(path: Path) -> str:
    while not path.exists():
        time.sleep(0.1)
    return path.read_text(encoding="utf-8")


if __name__ == "__main__":
    be_a_peer(int(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:5], UnequalSettings(**json.loads(sys.argv[5])))
