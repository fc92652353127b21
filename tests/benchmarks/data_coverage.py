"""How much of the data a pass's worth of samples covers: with the ledger, without it, and with `datasets`' resuming."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from measurement import Row
from virtual_swarm import ROWS, VirtualSwarm, order

from pipelines.training.run.span_source import WholeDataset
from pipelines.training.run.training_run import stable_seed
from pipelines.training.tasks.streaming import prepare_streaming

GROUPS_PER_SHARD = 8
NUM_RESTARTS = 10
SHUFFLE_BUFFER = 1000


def measure_coverage(folder: Path, quick: bool) -> Iterator[Row]:
    """Swarms in virtual time with joins and deaths over three passes, and a peer that is restarted again and again."""
    for num_peers, num_shards, batch in ((2, 10, 512), (5, 10, 512), (1000, 20 if quick else 100, 8192)):
        yield from _ledger_rows(num_peers, num_shards, batch)
    restarted = 100 * _restarted_in_own_order()
    case = f"one peer restarted {NUM_RESTARTS} times"
    yield Row(
        case=case, metric="coverage of a pass without the ledger, peer: datasets, shuffled and resumed", unit="%",
        ours=restarted, peer=100 * _restarted_datasets(folder), floor=100.0,
    )  # fmt: skip
    yield Row(case=case, metric="coverage of a pass", unit="%", ours=100 * _restarted_with_ledger(), peer=restarted)


def _ledger_rows(num_peers: int, num_shards: int, batch: int) -> Iterator[Row]:
    swarm = _three_passes(num_peers, num_shards, batch)
    size = num_shards * GROUPS_PER_SHARD * ROWS
    booked = sum(1 for key in swarm.booked if key[0] < 3) / (3 * size)
    case = f"{num_peers} peers with joins and deaths, three passes"
    yield Row(
        case=case, metric="coverage of a pass, peer: without the ledger", unit="%", ours=100 * booked,
        peer=100 * _in_own_orders(num_peers, num_shards), floor=100.0,
    )  # fmt: skip
    twice = sum(times - 1 for times in swarm.trained.values())
    yield Row(
        case=case, metric="records trained on twice, floor: in flight when peers died", unit="1", ours=twice,
        floor=swarm.in_flight,
    )  # fmt: skip


def _three_passes(num_peers: int, num_shards: int, batch: int) -> VirtualSwarm:
    swarm, epoch = VirtualSwarm(num_peers, num_shards, batch, deaths=0.02, seed=1), 0
    while len(swarm.ledger.finished_passes) < 3:
        swarm.run_epoch(epoch)
        epoch += 1
    return swarm


def _in_own_orders(num_peers: int, num_shards: int) -> float:
    """The share of records that peers have seen which together read as many as there are, each in its own order."""
    num_shards = max(num_shards, num_peers)  # several blocks for each peer, or all would read a block's same records
    size = num_shards * GROUPS_PER_SHARD * ROWS
    seen: set[tuple[int, ...]] = set()
    for peer in range(num_peers):
        share = size * (peer + 1) // num_peers - size * peer // num_peers
        seen |= _first_in_own_order(num_shards, stable_seed(0, f"peer {peer}"), share)
    return len(seen) / size


def _first_in_own_order(num_shards: int, seed: int, num_records: int) -> set[tuple[int, ...]]:
    spans = WholeDataset(order(num_shards, GROUPS_PER_SHARD, seed))
    found: set[tuple[int, ...]] = set()
    while len(found) < num_records:
        span = spans.next_span()
        stop = min(span.stop, span.start + num_records - len(found))
        found |= {(span.shard, span.group, place) for place in range(span.start, stop)}
    return found


def _restarted_in_own_order() -> float:
    """The share that a peer has seen which begins with the same records after each restart."""
    size = 10 * GROUPS_PER_SHARD * ROWS
    return len(_first_in_own_order(10, 0, size // NUM_RESTARTS)) / size


def _restarted_with_ledger() -> float:
    swarm, epoch = VirtualSwarm(1, 10, 512, deaths=0.0, seed=1, restart_every=1), 0
    while not swarm.ledger.finished_passes:
        swarm.run_epoch(epoch)
        epoch += 1
    return sum(1 for key in swarm.booked if key[0] == 0) / swarm.ledger.finished_passes[0]


def _restarted_datasets(folder: Path) -> float:
    """The share that `datasets` has given out which is resumed from its state, with a shuffle buffer."""
    size = 10 * GROUPS_PER_SHARD * ROWS
    prepare_streaming()
    folder.mkdir(parents=True)
    for shard, numbers in enumerate(np.split(np.arange(size), 10)):
        pq.write_table(pa.table(dict(number=numbers)), folder / f"{shard:05d}.parquet", row_group_size=ROWS)
    seen: set[int] = set()
    state = None
    for _ in range(NUM_RESTARTS):
        files = sorted(map(str, folder.glob("*.parquet")))
        stream = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)
        stream = stream.shuffle(seed=0, buffer_size=SHUFFLE_BUFFER)
        if state is not None:
            stream.load_state_dict(state)
        seen |= {row["number"] for row in itertools.islice(stream, size // NUM_RESTARTS)}
        state = stream.state_dict()
    return len(seen) / size
