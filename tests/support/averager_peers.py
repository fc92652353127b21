"""Gradient averagers without a model, each a process of its own, honest or hostile, through a script of rounds.

Usage: python averager_peers.py SETTINGS.json. All go through the same rounds together; a round in which not all of them
met is repeated with new gradients. Each writes events and, per round, the averaged gradient. They are forks of one
process that has nothing running, so that imports are paid once.
"""

import contextlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import hivemind
import torch
from safetensors.torch import save_file

from hub_tools.processes.event_files import read_events
from hub_tools.processes.process_group import guard_process_group
from pipelines.core.averaging.averager import SwarmAverager
from pipelines.core.averaging.wire import streams
from pipelines.core.averaging.wire.codec import averaging_compression
from pipelines.core.epoch.hivemind_options import averager_options
from pipelines.core.epoch.reduction import Reduction
from pipelines.core.run.training_run import TrainingRun
from pipelines.core.swarm.network_options import NetworkOptions
from pipelines.core.swarm.node import SwarmUnreachableError, open_dht, visible_addresses
from pipelines.tools.chaos.faults.hostile_peers import Attack, HostileAverager

SHAPES = ((300, 100), (20_000,), (77,))
PART_BYTES = 2**11
NUM_SAMPLES = 16
NOISE = 0.2
MAX_ATTEMPTS = 5


def signal_and_noise(number: int, attempt: int, index: int) -> list[torch.Tensor]:
    """Return a peer's gradient in one attempt at a round: the round's own direction and the peer's sampling noise."""
    common = torch.Generator().manual_seed(1000 * number + attempt)
    own = torch.Generator().manual_seed(1_000_000 * (index + 1) + 1000 * number + attempt)
    return [torch.randn(shape, generator=common) + NOISE * torch.randn(shape, generator=own) for shape in SHAPES]


def write_event(settings: dict, **values: object) -> None:
    with (Path(settings["folder"]) / f"{settings['name']}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(dict(values, time=time.time())) + "\n")


def events_of(folder: Path, name: str, kind: str, **values: object) -> list[dict]:
    """Return the events of a kind, with these values, that a member has written so far."""
    events = read_events(folder / f"{name}.jsonl")
    return [e for e in events if e["event"] == kind and all(e[key] == value for key, value in values.items())]


def wait_for_events(settings: dict, names: list[str], kind: str, **values: object) -> list[dict]:
    """Wait until every one of these members has written such an event, and return these."""
    while True:
        found = [events_of(Path(settings["folder"]), name, kind, **values) for name in names]
        if all(found):
            return [events[0] for events in found]
        time.sleep(0.1)


def make_averager(settings: dict, dht: object) -> SwarmAverager:
    run = TrainingRun.from_mapping(settings["run"])
    kind = HostileAverager if settings["name"] == "hostile" else SwarmAverager
    return Reduction(run, kind).averager(
        averaged_tensors=[torch.zeros(shape) for shape in SHAPES], dht=dht, admission=None,
        prefix="attacked", compression=averaging_compression(run),
        part_size_bytes=PART_BYTES, target_group_size=len(settings["members"]),
        min_matchmaking_time=run.matchmaking_seconds, allreduce_timeout=60.0, next_chunk_timeout=15.0,
        client_mode=settings["name"] == "client", auxiliary=settings["name"] == "helper", start=True,
        **averager_options(run),
    )  # fmt: skip


def average(settings: dict, averager: SwarmAverager, number: int, attempt: int) -> None:
    """Take part in one attempt at a round and write down what came of it."""
    gradient = signal_and_noise(number, attempt, settings["members"].index(settings["name"]))
    with averager.get_tensors() as tensors:
        for tensor, values in zip(tensors, gradient, strict=True):
            tensor.copy_(values)
    write_event(settings, event="prepared", number=number, attempt=attempt)
    wait_for_events(settings, settings["members"], "prepared", number=number, attempt=attempt)
    before = averager.last_round
    try:
        averager.step(NUM_SAMPLES, timeout=20.0, allow_retries=False)
        failure = ""
    except Exception as error:  # what failed, and in which way, is for the test to say
        failure = repr(error)
    figures = averager.last_round
    with averager.get_tensors() as tensors:
        result = {str(index): tensor.clone() for index, tensor in enumerate(tensors)}
    save_file(result, str(Path(settings["folder"]) / f"{settings['name']}-{number}-{attempt}.safetensors"))
    took_part = figures.num_rounds > before.num_rounds
    write_event(
        settings, event="averaged", number=number, attempt=attempt, failure=failure, seconds=figures.seconds,
        group_size=figures.group_size if took_part else 0, share_averaged=figures.share_averaged,
        suspects=[[suspect.peer_id, suspect.offence.name, suspect.num_rounds] for suspect in figures.suspects],
    )  # fmt: skip


def join(stack: contextlib.ExitStack, entry: list[str], options: NetworkOptions) -> hivemind.DHT:
    """Enter the swarm; on a busy machine the entry peer may answer the first newcomers too late."""
    for attempt in range(1, MAX_ATTEMPTS + 1):
        try:
            return stack.enter_context(open_dht("test/run", entry, options, admission=None))
        except SwarmUnreachableError:
            if attempt == MAX_ATTEMPTS:
                raise
    raise AssertionError


def take_part(settings: dict) -> None:
    """Be one member of the swarm from start to end."""
    torch.set_num_threads(1)
    members, name = settings["members"], settings["name"]
    before = members[: members.index(name)]  # one after the other: on a busy machine a crowd of newcomers times out
    entry = [address for event in wait_for_events(settings, before, "ready")[:1] for address in event["addresses"]]
    options = NetworkOptions(
        host_addresses=("/ip4/127.0.0.1/tcp/0",), client_mode=name == "client", startup_timeout_seconds=300.0
    )
    with contextlib.ExitStack() as stack:
        dht = join(stack, entry, options)
        averager = make_averager(settings, dht)
        addresses = [] if options.client_mode else visible_addresses(dht)
        ids = dict(peer_id=dht.peer_id.to_base58(), peer_id_bytes=dht.peer_id.to_bytes().hex())
        write_event(settings, event="ready", addresses=addresses, **ids)
        everybody = wait_for_events(settings, members, "ready")
        averager.expect_samples({bytes.fromhex(e["peer_id_bytes"]): 2.0 * NUM_SAMPLES for e in everybody})
        for number, attack in enumerate(settings["attacks"]):
            if name == "hostile":
                averager.attack = Attack(attack)
            for attempt in range(MAX_ATTEMPTS):
                average(settings, averager, number, attempt)
                outcomes = wait_for_events(settings, members, "averaged", number=number, attempt=attempt)
                if all(outcome["group_size"] == len(outcomes) - 1 for outcome in outcomes):  # the helper sends nothing
                    break
        averager.shutdown()


def fork_member(settings: dict, take_part: Callable[[dict], None]) -> int:
    if child := os.fork():
        return child
    code = 1
    os.setsid()  # a peer is a process group of its own, and ends with the process that started it
    guard_process_group()
    try:
        take_part(settings)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def main(settings: dict) -> None:
    streams.MIN_VALUES_PER_STREAM = 1  # two streams to every reducer, as for a long vector
    guard_process_group()
    write_event(settings, event="ready", addresses=[])
    children = [fork_member(settings | dict(name=name), take_part) for name in settings["members"]]
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert codes == [0] * len(children), codes
    write_event(settings, event="finished")


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
