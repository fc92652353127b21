"""Two honest averagers, and a hostile one that always leads and never begins: python stalling_leader.py.

Prints as JSON how many rounds each honest one has had before and during the attack, and whether it has named the
leader.
"""

import contextlib
import json

import torch

from hub_tools.processes.process_group import guard_process_group
from pipelines.core.averaging.averager import SwarmAverager
from pipelines.core.averaging.reduce.suspects import Misbehaviour
from pipelines.core.swarm.network_options import NetworkOptions
from pipelines.core.swarm.node import open_dht, visible_addresses
from pipelines.tools.chaos.attacks.hostile_averagers import StallingLeader

LOOPBACK = NetworkOptions(host_addresses=("/ip4/127.0.0.1/tcp/0",))
MATCHMAKING_SECONDS = 2.0
NUM_ROUNDS = 6


def try_rounds(averagers, num_rounds: int) -> list[int]:
    """Have the averagers try this many rounds together; return how many of them each has had."""
    before = [averager.last_round.num_rounds for averager in averagers]
    for _ in range(num_rounds):
        for averager in averagers:
            with averager.get_tensors() as (gradient,):
                gradient.normal_()
        controls = [averager.step(8, wait=False, timeout=15.0, allow_retries=True) for averager in averagers]
        for control in controls:
            with contextlib.suppress(Exception):  # a round that does not happen is not counted
                control.result(20.0)
    return [averager.last_round.num_rounds - number for averager, number in zip(averagers, before, strict=True)]


def main() -> None:
    with contextlib.ExitStack() as stack:
        nodes = [stack.enter_context(open_dht("test/run", (), LOOPBACK, admission=None))]
        for _ in range(2):
            nodes.append(
                stack.enter_context(open_dht("test/run", visible_addresses(nodes[0]), LOOPBACK, admission=None))
            )
        *honest, hostile = (
            kind(
                [torch.zeros(64)], dht=dht, admission=None, prefix="stalled",
                min_matchmaking_time=MATCHMAKING_SECONDS, request_timeout=0.8, allreduce_timeout=20.0,
                next_chunk_timeout=8.0, start=True,
            )
            for kind, dht in zip((SwarmAverager, SwarmAverager, StallingLeader), nodes, strict=True)
        )  # fmt: skip
        before = try_rounds(honest, 1)
        hostile.lead()
        during = try_rounds(honest, NUM_ROUNDS)
        named = {
            suspect.peer_id for averager in honest for suspect in averager.last_round.suspects
            if suspect.offence is Misbehaviour.STALLED
        }  # fmt: skip
        print(json.dumps(dict(
            before=before, during=during, num_rounds_tried=NUM_ROUNDS, named=named == {hostile.peer_id.to_base58()}
        )))  # fmt: skip
        for averager in (*honest, hostile):
            averager.shutdown()


if __name__ == "__main__":
    guard_process_group()
    torch.set_num_threads(1)
    main()
