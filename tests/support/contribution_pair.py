"""Two real averagers in one process average contributions that are larger than a socket's buffer.

Usage: python contribution_pair.py. Prints as JSON how many bytes each sent, and whether both have the expected mean.
"""

import json

import torch

from hub_tools.processes.process_group import guard_process_group
from pipelines.core.swarm.network_options import NetworkOptions
from pipelines.core.swarm.node import open_dht, visible_addresses
from pipelines.features.sparse.averager import SparseAverager
from pipelines.features.sparse.mean import mean

LOOPBACK = NetworkOptions(host_addresses=("/ip4/127.0.0.1/tcp/0",))
SHAPE = (2**10, 2**11)


NUM_SAMPLES = (15, 1)


def contribution_of(averager: SparseAverager, seed: int) -> bytes:
    """Progress that is as long as its samples say."""
    values = NUM_SAMPLES[seed] * torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed))
    return averager.codec.encode([values], NUM_SAMPLES[seed])


def main() -> None:
    with (
        open_dht("test/run", (), LOOPBACK, admission=None) as entry,
        open_dht("test/run", visible_addresses(entry), LOOPBACK, admission=None) as other,
    ):
        averagers = [
            SparseAverager(
                [torch.zeros(SHAPE)], values_per_chunk=4096, dht=dht, admission=None,
                prefix="pair", target_group_size=2, min_matchmaking_time=2.0,
                request_timeout=0.8, start=True,
            )
            for dht in (entry, other)
        ]  # fmt: skip
        contents = [contribution_of(averager, seed) for seed, averager in enumerate(averagers)]
        for averager, content in zip(averagers, contents, strict=True):
            averager.epoch_to_average = 0
            averager.contribute(content)
        for control in [averager.step(wait=False, timeout=120.0) for averager in averagers]:
            control.result(120.0)
        codec = averagers[0].codec
        (expected,) = mean(codec, [codec.decode(content) for content in contents], NUM_SAMPLES)
        results = []
        for averager in averagers:
            with averager.get_tensors() as (result,):
                results.append(torch.equal(result, expected))
        sent = [averager.last_round.bytes_sent for averager in averagers]
        for averager in averagers:
            averager.shutdown()
        whole = torch.zeros(SHAPE).reshape(-1)
        for content, num_samples in zip(contents, NUM_SAMPLES, strict=True):
            codec.add_to(whole, codec.decode(content), num_samples / sum(NUM_SAMPLES))
        is_weighted = torch.allclose(expected.reshape(-1), whole, rtol=1e-5, atol=0)
    print(json.dumps(dict(
        sent=sent, sizes=[len(content) for content in contents], are_equal=results, is_weighted=is_weighted
    )))  # fmt: skip


if __name__ == "__main__":
    guard_process_group()
    torch.set_num_threads(1)
    main()
