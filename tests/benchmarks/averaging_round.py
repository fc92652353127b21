"""Averaging rounds between real averagers in processes of their own on this machine, their links free or shaped.

Usage of a peer: python averaging_round.py NUMBER FOLDER ADDRESS ANNOUNCED SETTINGS.
"""

import json
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from peer_processes import run_peers

from pipelines.core.averaging.averager import AveragingRound
from pipelines.tools.chaos.chaos_processes import free_port
from pipelines.tools.chaos.faults.link_proxy import LinkLimits, LinkProxy, PortOwners


@dataclass(frozen=True, kw_only=True)
class RoundSettings:
    """What is averaged, and by whom."""

    num_parameters: int
    num_rounds: int
    num_peers: int = 2
    compression: str = "blockwise_8bit"
    measures: bool = True
    """Whether shares follow what is measured of the links; else all are equal."""

    has_helper: bool = False
    """Whether the last peer is an auxiliary one, which sends nothing."""


def run_rounds(settings: RoundSettings, limits: LinkLimits | None = None) -> list[AveragingRound]:
    """Average a gradient `num_rounds` times; return the first peer's figures after each round.

    With `limits`, every peer's link is shaped by a proxy between it and the others.
    """
    arguments = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        owners = PortOwners()
        proxy = stack.enter_context(LinkProxy(owners)) if limits is not None else None
        for number in range(settings.num_peers):
            port = announced = free_port()
            if proxy is not None:
                announced = proxy.add(str(number), port).proxy_port
                proxy.limit(str(number), limits)
            addresses = [f"/ip4/127.0.0.1/tcp/{own}" for own in (port, announced)]
            arguments.append([str(number), folder, *addresses, json.dumps(asdict(settings))])
        run_peers(
            __file__,
            arguments,
            Path(folder),
            seconds=600,
            on_start=lambda number, pid: owners.register(pid, str(number)),
        )
        rounds = json.loads((Path(folder) / "figures-0.json").read_text(encoding="utf-8"))
        return [AveragingRound(**figures) for figures in rounds]


def be_a_peer(number: int, folder: Path, address: str, announced: str, settings: RoundSettings) -> None:
    """Average random gradients with the others."""
    from pipelines.core.averaging.averager import SwarmAverager
    from pipelines.core.averaging.division import Division
    from pipelines.core.averaging.wire.codec import averaging_compression
    from pipelines.core.epoch.assembly import LISTENER
    from pipelines.core.run.training_run import TrainingRun
    from pipelines.core.swarm.network_options import NetworkOptions
    from pipelines.core.swarm.node import open_dht, visible_addresses
    from pipelines.features.bandwidth.measured_division import MeasuredDivision

    torch.set_num_threads(1)
    run = TrainingRun(
        run_id="bench", model_config={}, dataset_repository="a/b", dataset_revision="c",
        averaging_compression=settings.compression,
    )  # fmt: skip
    helps = settings.has_helper and number == settings.num_peers - 1
    entry = () if number == 0 else (_wait_for(folder / "address"),)
    options = NetworkOptions(host_addresses=(address,), announce_addresses=(announced,))
    vector = torch.zeros(settings.num_parameters // 1024, 1024)
    rounds = []
    with open_dht("bench/run", entry, options, admission=None) as dht:
        if number == 0:
            _write(folder / "address", visible_addresses(dht)[0])
        division = partial(MeasuredDivision, may_help=helps) if settings.measures else Division
        averager = SwarmAverager(
            [vector], dht=dht, admission=None, prefix="bench", compression=averaging_compression(run),
            target_group_size=settings.num_peers, min_matchmaking_time=4.0, request_timeout=1.5,
            allreduce_timeout=120.0, next_chunk_timeout=30.0, start=True,
            new_division=division, **(LISTENER if helps else {}),
        )  # fmt: skip
        while len(rounds) < settings.num_rounds:
            _meet(folder, number, len(rounds), settings.num_peers)
            if not helps:
                with averager.get_tensors() as (vector,):
                    vector.normal_()
            averager.step(timeout=240.0)
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
    be_a_peer(int(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:5], RoundSettings(**json.loads(sys.argv[5])))
