"""Gradient averagers whose uplinks differ, each a process of its own; nobody is told what they carry.

Usage: python link_peers.py SETTINGS.json. `upload_mbit` gives the rate of each member; the member "helper" sends
nothing, and offers its link, and the member "anchor" only listens. With `dies` the helper is killed once it has given
its first answers in the first round, from that one on, in which it reduces. `rounds_of` says for a member in which
rounds it is there.
"""

import hashlib
import json
import os
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from averager_peers import fork_member, join, wait_for_events, write_event

from hub_tools.processes.process_group import guard_process_group
from pipelines.core.averaging.averager import SwarmAverager
from pipelines.core.averaging.reducing_end import ReducingEnd
from pipelines.core.averaging.runner import TrustedAllReduceRunner
from pipelines.core.averaging.wire.codec import averaging_compression
from pipelines.core.averaging.wire.streams import PART_BYTES
from pipelines.core.epoch.assembly import LISTENER
from pipelines.core.epoch.hivemind_options import averager_options
from pipelines.core.epoch.reduction import Reduction
from pipelines.core.run.training_run import TrainingRun
from pipelines.core.swarm.network_options import NetworkOptions
from pipelines.core.swarm.node import visible_addresses
from pipelines.core.swarm.upload_limit import UploadLimit
from pipelines.tools.process_table import is_running

NUM_VALUES = 2**19
HELPER, ANCHOR = "helper", "anchor"
ANSWERS_BEFORE_DEATH = 2


class WrittenDownAverager(SwarmAverager):
    """Writes down the share that each member reduces."""

    settings: dict

    async def _make_attempt(self, tensors: Any, group: Any, shares: Any, **options: Any) -> None:
        by_peer = {peer.to_base58(): share for peer, share in zip(group.peer_ids, shares, strict=True)}
        write_event(self.settings, event="shares", shares=by_peer, group=group.group_id.hex())
        await super()._make_attempt(tensors, group, shares, **options)


class DyingEnd(ReducingEnd):
    """Kills its whole peer in the middle of a round."""

    num_answers = 0

    def _signed(self, *args: Any) -> Any:
        DyingEnd.num_answers += 1
        if DyingEnd.num_answers > ANSWERS_BEFORE_DEATH:
            os.killpg(os.getpgrp(), signal.SIGKILL)
        return super()._signed(*args)


def make_averager(settings: dict, dht: Any) -> WrittenDownAverager:
    run, name = TrainingRun.from_mapping(settings["run"]), settings["name"]
    WrittenDownAverager.settings = settings
    if name in (HELPER, ANCHOR):
        special = dict(LISTENER)
    else:
        special = dict(upload_limit=UploadLimit(settings["upload_mbit"][name]))
    return Reduction(run, WrittenDownAverager).averager(
        averaged_tensors=[torch.zeros(NUM_VALUES // 1024, 1024)], dht=dht, admission=None, prefix="links",
        compression=averaging_compression(run), target_group_size=len(settings["members"]),
        min_matchmaking_time=run.matchmaking_seconds, allreduce_timeout=60.0, next_chunk_timeout=15.0,
        part_size_bytes=PART_BYTES, may_help=name == HELPER, start=True, **averager_options(run), **special,
    )  # fmt: skip


def direction(number: int) -> torch.Tensor:
    """Return what everybody's gradient in a round is a multiple of; no value is near 0."""
    random = torch.rand(NUM_VALUES // 1024, 1024, generator=torch.Generator().manual_seed(number))
    return 0.5 + random


def average(settings: dict, averager: WrittenDownAverager, number: int, members: list[str]) -> None:
    """Take part in a round and write down what came of it."""
    name, failure = settings["name"], ""
    if name not in (HELPER, ANCHOR):
        with averager.get_tensors() as (gradient,):
            gradient.copy_(direction(number) * (1 + settings["members"].index(name)))
    write_event(settings, event="prepared", number=number)
    wait_for_events(settings, members, "prepared", number=number)
    before = averager.last_round
    try:
        averager.step(timeout=settings.get("step_seconds", 120.0))
    except Exception as error:  # what failed, and in which way, is for the test to say
        failure = repr(error)
    figures = averager.last_round
    with averager.get_tensors() as tensors:
        multiple = (tensors[0] / direction(number)).mean().item()
        digest = hashlib.sha256(tensors[0].numpy().tobytes()).hexdigest()
    write_event(
        settings, event="averaged", number=number, multiple=multiple, digest=digest, failure=failure,
        share_averaged=figures.share_averaged, group_size=figures.group_size,
        num_incomplete=figures.num_incomplete_rounds - before.num_incomplete_rounds,
        num_attempts=figures.num_rounds - before.num_rounds, up_mbit=figures.up_mbit, seconds=figures.seconds,
        suspects=[[suspect.peer_id, suspect.offence.name] for suspect in figures.suspects],
    )  # fmt: skip


def take_part(settings: dict) -> None:
    """Be one member of the swarm from start to end."""
    torch.set_num_threads(1)
    members, name = list(settings["members"]), settings["name"]
    before = members[: members.index(name)]
    entry = [address for event in wait_for_events(settings, before, "ready")[:1] for address in event["addresses"]]
    options = NetworkOptions(host_addresses=("/ip4/127.0.0.1/tcp/0",), startup_timeout_seconds=300.0)
    if name == HELPER and settings.get("dies"):
        TrustedAllReduceRunner.reducing_type = DyingEnd
    with ExitStack() as stack:
        dht = join(stack, entry, options)
        averager = make_averager(settings, dht)
        write_event(
            settings, event="ready", addresses=visible_addresses(dht), peer_id=dht.peer_id.to_base58(), pid=os.getpid()
        )
        pids = {
            member: event["pid"]
            for member, event in zip(members, wait_for_events(settings, members, "ready"), strict=True)
        }
        for number in range(settings["num_rounds"]):
            members = [member for member in members if is_running(pids[member])]
            there = [
                m for m in members if number in settings.get("rounds_of", {}).get(m, range(settings["num_rounds"]))
            ]
            if name in there:
                average(settings, averager, number, there)
            wait_for_events(settings, [member for member in there if member != HELPER], "averaged", number=number)
        averager.shutdown()


def main(settings: dict) -> None:
    guard_process_group()
    write_event(settings, event="ready", addresses=[])
    children = [fork_member(settings | dict(name=name), take_part) for name in settings["members"]]
    codes = dict(
        zip(settings["members"], [os.waitstatus_to_exitcode(os.waitpid(c, 0)[1]) for c in children], strict=True)
    )
    write_event(settings, event="finished", codes=codes)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
