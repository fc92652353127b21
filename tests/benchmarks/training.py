"""Training together: how soon a peer counts, a step's time, bytes of a round, 8-bit LAMB, a slow link, goodput.

Usage: python tests/benchmarks/training.py [--quick] [--case NAME ...]
"""

import argparse
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from averaging_round import RoundSettings, run_rounds
from measurement import Row, median_seconds, write_results
from rich.console import Console
from thread_rates import measure_thread_rates
from training_steps import measure_step_times
from unequal_round import UnequalSettings, run_unequal_rounds

from pipelines.core.averaging.division import Link
from pipelines.core.optimizers.lamb import Lamb
from pipelines.core.swarm.upload_limit import BYTES_PER_MEGABIT
from pipelines.features.bandwidth.shares import Member, duration_of, shares_of
from pipelines.tools.chaos.chaos_run import ChaosPlan, run_chaos
from pipelines.tools.chaos.chaos_swarm import SwarmPlan
from pipelines.tools.chaos.faults.fault_script import Fault, FaultKind
from pipelines.tools.chaos.faults.link_proxy import LinkLimits

SMALL_MODEL = dict(
    text_vocab_size=256, codebook_size=1024, text_sequence_length=16, image_grid_size=8, hidden_size=256,
    num_hidden_layers=8, num_attention_heads=4, head_dim=64, recompute="none",
)  # fmt: skip
LINK_BYTES_PER_SECOND = 100e6 / 8
ROUND_TRIP_SECONDS = 0.05


def measure_steps(quick: bool) -> list[Row]:
    """Split an epoch of two peers into computing, averaging, the optimizer and waiting."""
    times = measure_step_times(SMALL_MODEL, target_batch_size=64 if quick else 256, num_epochs=3 if quick else 8)
    case = "2 peers, hidden 256, 8 layers, 4 samples a step"
    parts = dict(computing=times.compute, averaging=times.averaging, optimizer=times.optimizer, waiting=times.waiting)
    return [
        Row(case=case, metric="epoch", unit="s", ours=times.epoch, floor=times.compute),
        *(
            Row(case=case, metric=f"share of {name}", unit="1", ours=seconds / times.epoch)
            for name, seconds in parts.items()
        ),
        Row(case=case, metric="computing of a step", unit="s", ours=times.compute / times.num_steps),
    ]


def measure_bytes(quick: bool) -> Iterator[Row]:
    """Bytes that a peer sends in a round, 8-bit beside float32, and the least that any all-reduce needs."""
    num_parameters = 2**20 if quick else 2**23
    for num_peers in (2, 4):
        ours, peer = (
            run_rounds(
                RoundSettings(compression=compression, num_parameters=num_parameters, num_rounds=3, num_peers=num_peers)
            )
            for compression in ("blockwise_8bit", "none")
        )
        whole = [
            [r for r in rounds if r.share_averaged == 1.0 and r.group_size == num_peers] for rounds in (ours, peer)
        ]
        case = f"{num_peers} peers, {num_parameters / 1e6:.0f} M parameters"
        sent = [rounds[-1].bytes_sent / rounds[-1].num_rounds / num_parameters for rounds in (ours, peer)]
        yield Row(
            case=case, metric="bytes sent by a peer per round", unit="B/parameter", ours=sent[0], peer=sent[1],
            floor=2 * (num_peers - 1) / num_peers,
        )  # fmt: skip
        times = [_median_round(rounds) for rounds in whole]
        yield Row(case=case, metric="all-reduce", unit="s", ours=times[0], peer=times[1])


def measure_optimizer(quick: bool) -> list[Row]:
    """CPU time and bytes of 8-bit LAMB's statistics per parameter, beside the same formula in float32."""
    num_parameters = 2**20 if quick else 2**24
    figures = {}
    for bits in (8, 32):
        parameter = torch.nn.Parameter(torch.randn(num_parameters // 1024, 1024) * 0.02)
        optimizer = Lamb([parameter], lr=1e-3, bits=bits, weight_decay=0.01)
        parameter.grad = torch.randn_like(parameter) * 1e-3
        seconds = median_seconds(optimizer.step, 3 if quick else 5, cpu=True)
        state = optimizer.state[parameter]
        num_bytes = sum(t.numel() * t.element_size() for name, t in state.items() if name != "step")
        figures[bits] = (seconds / num_parameters * 1e9, num_bytes / num_parameters)
    case = f"LAMB, {num_parameters / 1e6:.0f} M parameters"
    return [
        Row(case=case, metric="CPU time per parameter", unit="ns", ours=figures[8][0], peer=figures[32][0]),
        Row(case=case, metric="statistics", unit="B/parameter", ours=figures[8][1], peer=figures[32][1], floor=2.0),
    ]


def measure_slow_link(quick: bool) -> Iterator[Row]:
    """Rounds of two peers whose links carry 100 Mbit/s each way with 50 ms there and back, beside the link's limit.

    A small model's, in which opening the streams counts, and one of the paper's size (1.1 B, shared to an eighth).
    """
    limits = LinkLimits(bytes_per_second=LINK_BYTES_PER_SECOND, delay_seconds=ROUND_TRIP_SECONDS / 4)
    for num_parameters in (2**22,) if quick else (2**24, 2**27):
        settings = RoundSettings(compression="blockwise_8bit", num_parameters=num_parameters, num_rounds=4)
        rounds = run_rounds(settings, limits)
        whole = [r for r in rounds if r.share_averaged == 1.0]
        sent = rounds[-1].bytes_sent / rounds[-1].num_rounds
        yield Row(
            case=f"2 peers, {num_parameters / 1e6:.0f} M parameters, 100 Mbit/s, 50 ms", metric="all-reduce",
            unit="s", ours=_median_round(whole), floor=sent / LINK_BYTES_PER_SECOND + ROUND_TRIP_SECONDS,
        )  # fmt: skip


def measure_unequal_links(quick: bool) -> Iterator[Row]:
    """Rounds over links of unequal rates, which nobody types: shares as measured, and equal ones as the peer.

    The floor is the linear programme's optimum for the links' rates, of the bytes in the vector alone.
    """
    num_parameters, num_rounds = (2**21, 6) if quick else (2**23, 10)
    fast, slow = 100.0, 10.0
    settings = UnequalSettings(megabits=(fast, fast, fast, slow), num_parameters=num_parameters, num_rounds=num_rounds)
    ours, peer = (_settled(replace(settings, measures=measures)) for measures in (True, False))
    yield Row(
        case=f"links of 100, 100, 100, 10 Mbit/s, {num_parameters / 1e6:.0f} M parameters", metric="all-reduce",
        unit="s", ours=ours, peer=peer, floor=_optimum(settings),
    )  # fmt: skip
    homes = replace(settings, megabits=(15.0,) * 4)
    helped = replace(homes, megabits=(*homes.megabits, 200.0), has_helper=True)
    yield Row(
        case=f"4 uplinks of 15 Mbit/s with a fast auxiliary peer, {num_parameters / 1e6:.0f} M parameters",
        metric="all-reduce", unit="s", ours=_settled(helped), peer=_settled(homes), floor=_optimum(helped),
    )  # fmt: skip


def _settled(settings: UnequalSettings) -> float:
    """The median of the rounds from the fifth on."""
    rounds = [r for r in run_unequal_rounds(settings)[4:] if r.is_whole]
    return statistics.median(r.seconds for r in rounds)


def _optimum(settings: UnequalSettings) -> float:
    senders = [Member(sends=True, reduces=True, link=Link(up=rate, down=rate)) for rate in settings.megabits]
    members = [*senders[:-1], replace(senders[-1], sends=not settings.has_helper)]
    return duration_of(members, shares_of(members)) * settings.num_parameters / BYTES_PER_MEGABIT


def measure_goodput(quick: bool) -> Iterator[Row]:
    """Samples per second that reach the common model, beside what the peers' paces add up to.

    And how busy the processors were: close to 1, the loss is this machine's and not the swarm's.
    """
    for num_peers in (2, 4) if quick else (2, 4, 8):
        with tempfile.TemporaryDirectory() as folder:
            # Eight trainers have to fit on two cores, so all of them are as slow as that needs.
            swarm = SwarmPlan(
                folder=Path(folder) / "swarm", num_peers=num_peers, seconds_per_batch=1.0, seconds_per_epoch=8.0
            )
            seconds = 24.0 if quick else 64.0
            plan = ChaosPlan(swarm=swarm, faults=(), duration_seconds=1.0, reference_seconds=seconds)
            report = run_chaos(plan, Console(stderr=True))
        ideal = num_peers * swarm.micro_batch_size / swarm.seconds_per_batch
        case = f"{num_peers} peers, epochs of {swarm.seconds_per_epoch:.0f} s"
        yield Row(case=case, metric="goodput", unit="1/s", ours=report.reference_samples_per_second, floor=ideal)
        yield Row(case=case, metric="processors busy", unit="1", ours=report.reference_busy_share)


def measure_sparse_goodput(quick: bool) -> Iterator[Row]:
    """Goodput of four sparse peers whose links are all slow, beside the same swarm's with free links.

    An epoch takes a few seconds, so that a round is a larger part of it than in a real run's epoch of minutes.
    """
    num_peers, local_steps, seconds = 4, 4, 40.0 if quick else 150.0
    settings = dict(
        synchronisation="sparse", local_steps=local_steps, inner_optimizer="adamw", peak_learning_rate=1e-3,
        aggregation_rule="mean", outer_momentum=0, hidden_size=256, num_attention_heads=4, head_dim=64,
        matchmaking_seconds=3.0, averaging_timeout_seconds=80.0, progress_expiration_seconds=30.0,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        swarm = SwarmPlan(
            folder=Path(folder) / "swarm", num_peers=num_peers, seconds_per_batch=0.5, seconds_per_epoch=12.0
        )
        batch = swarm.target_batch_size // local_steps
        settings |= dict(target_batch_size=batch, inner_batch_size=batch // num_peers)
        swarm = replace(swarm, settings=settings)
        plan = ChaosPlan(
            swarm=swarm,
            faults=tuple(
                Fault(kind=FaultKind.SLOW_LINK, at_seconds=0.0, duration_seconds=seconds, peer=peer)
                for peer in range(num_peers)
            ),
            duration_seconds=seconds,
            reference_seconds=seconds,
            slow_link=LinkLimits(bytes_per_second=2 * BYTES_PER_MEGABIT, delay_seconds=ROUND_TRIP_SECONDS / 4),
        )
        report = run_chaos(plan, Console(stderr=True))
    ideal = num_peers * swarm.micro_batch_size / swarm.seconds_per_batch
    rate = report.reference_samples_per_second
    case = f"4 sparse peers, epochs of {swarm.seconds_per_epoch:.0f} s"
    yield Row(
        case=case, metric="goodput, links of 2 Mbit/s and 50 ms beside free ones", unit="1/s",
        ours=report.goodput * rate, peer=rate, floor=ideal,
    )  # fmt: skip
    yield Row(case=case, metric="processors busy", unit="1", ours=report.reference_busy_share)


def measure_threads(quick: bool) -> Iterator[Row]:
    """Samples per second with the number of threads that follows the machine, beside the best fixed number."""
    for rates in measure_thread_rates(quick):
        case = f"hidden 128, 8 layers, micro-batches of 4, {rates.situation}"
        best = max(rates.fixed.values())
        yield Row(
            case=case, metric="adaptive threads beside the best number", unit="1/s", ours=rates.adaptive, peer=best
        )
        for number, found in rates.fixed.items():
            yield Row(case=case, metric=f"{number} thread{'s' * (number > 1)}", unit="1/s", ours=found)


def _median_round(rounds: list) -> float:
    return statistics.median(r.seconds for r in rounds[1:] or rounds)


CASES = dict(
    optimizer=measure_optimizer,
    steps=measure_steps,
    bytes=measure_bytes,
    slow_link=measure_slow_link,
    unequal_links=measure_unequal_links,
    threads=measure_threads,
    goodput=measure_goodput,
    sparse_goodput=measure_sparse_goodput,
)


def main() -> None:
    """Measure all or some cases, print the table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller sizes: minutes instead of a quarter of an hour")
    parser.add_argument("--case", nargs="+", choices=CASES, default=list(CASES), help="only these")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[Row] = []
    is_whole = False
    try:
        for name in arguments.case:
            for row in CASES[name](arguments.quick):
                print(f"{row.case}: {row.metric} {row.ours:.4g} {row.unit}", flush=True)
                rows.append(row)
        is_whole = len(arguments.case) == len(CASES)
    finally:  # what was measured before something failed is kept
        print(f"written to {write_results('training', rows, is_whole=is_whole, is_quick=arguments.quick)}")


if __name__ == "__main__":
    main()
