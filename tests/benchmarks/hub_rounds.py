"""What a run over the Hub costs: requests, time that peers compute, samples that count, loss, newcomers, and crowds.

    python tests/benchmarks/hub_rounds.py [requests|utilisation|goodput|loss|newcomer|crowd ...] [--quick]

Real peers and a real closer, each a process with a token of its own, and the embedded Hub, which counts the requests
and answers later where that is said. Where peers are many they idle: a micro-batch takes a fixed time, whoever else
computes. All of it takes about twenty minutes on two cores. A public Hub was not tried.

The peer of the loss is the swarm that `test_swarm_simulator.py` compares with peers that are processes and talk to each
other: as many rounds, of the same micro-batches of the same peers.
"""

import argparse
import itertools
import json
import statistics
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from hub_peers import CLOSER, LARGER, TINY, HubPlan, batches_of, held_out_loss
from measurement import Row, write_results
from peer_processes import run_peers
from swarm_simulator import SimulatedSwarm, SparseRounds

from hub_tools.local_hub import LocalHub
from pipelines.core.run.training_run import TrainingRun
from pipelines.core.signing.publisher_keys import PublisherKey
from pipelines.tasks.choice import open_task

SETTINGS = dict(
    window_seconds=12.0, num_epochs=12, num_warmup_epochs=1, local_steps=4, inner_batch_size=16, target_batch_size=64,
    inner_optimizer="adamw", peak_learning_rate=4e-3,
)  # fmt: skip
PROGRAM = str(Path(__file__).parent / "hub_peers.py")
RESOLVERS_IN_FIVE_MINUTES = 5000

Found = Mapping[str, Mapping[str, Any]]
"""What each process of a run has written, by its name."""


def measured(plan: HubPlan, kinds: Mapping[str, str], *, late: float = 0.0, seconds: float = 900) -> Found:
    """Run processes, of these kinds by their names, over a Hub whose answers are this late."""
    with tempfile.TemporaryDirectory() as place, LocalHub(Path(place) / "hub", controlled=True) as hub:
        folder = Path(place)
        hub.create_organization("org")
        key = PublisherKey.load_or_create(folder / f"{CLOSER}.pem")
        plan = replace(plan, control_token=hub.control_token, key=key.public)
        prefixes = []
        for name, kind in kinds.items():
            hub.create_user(name)
            hub.add_member("org", name, "contributor" if kind == "peer" else "write")
            environment = hub.environment(hub.create_token(name, name="own")) | {"OMP_NUM_THREADS": "1"}
            prefixes.append(("env", *(f"{variable}={value}" for variable, value in environment.items())))
            if kind not in ("peer", "closer"):
                key.save(folder / f"{name}.pem")
        plan.write(folder)
        if late:
            hub.controls.answer_late(late)
        arguments = [[kind, place, name] for name, kind in kinds.items()]
        run_peers(PROGRAM, arguments, folder, seconds=seconds, prefixes=prefixes)
        return {name: json.loads((folder / f"{name}.json").read_text(encoding="utf-8")) for name in kinds}


def trained(plan: HubPlan, *, late: float = 0.0) -> tuple[list[Mapping[str, Any]], Mapping[str, Any]]:
    """Train with a plan's peers; return what each of them has seen, and the closer."""
    peers = [f"peer{number}" for number in range(plan.num_peers)]
    found = measured(plan, {CLOSER: "closer", **dict.fromkeys(peers, "peer")}, late=late)
    return [found[name] for name in peers], found[CLOSER]


def requests(*, is_quick: bool) -> list[Row]:
    """Return what a peer asks of the Hub in a round of the usual window; the floor is what may not be exceeded."""
    settings = dict(SETTINGS, window_seconds=8.0 if is_quick else 30.0, num_epochs=3 if is_quick else 8)
    plan = HubPlan(model=TINY, settings=settings, num_peers=4, seconds_of_batch=(0.5,) * 4)
    peers, _ = trained(plan, late=0.1)
    case = f"4 peers, windows of {settings['window_seconds']:.0f} s, answers 0.1 s late"
    # The first one begins somewhere in a window, and has asked for the state before.
    rounds = [one for peer in peers for one in peer["rounds"][1:]]
    metrics: Mapping[str, tuple[Callable[[Mapping[str, Any]], int], int]] = {
        "API requests of a peer and round": (lambda one: one["api"], 10),
        "resolver requests besides one a member": (lambda one: one["resolvers"] - one["members"], 5),
    }
    rows = []
    for metric, (number, most) in metrics.items():
        found = [number(one) for one in rounds]
        rows.append(Row(case=case, metric=f"{metric}, median", unit="requests", ours=statistics.median(found)))
        rows.append(Row(case=case, metric=f"{metric}, most", unit="requests", ours=max(found), floor=most))
    return rows


def utilisation(*, is_quick: bool) -> list[Row]:
    """Return the share of time in which a peer computes that has a core of its own; the floor is a ceiling."""
    settings = dict(SETTINGS, window_seconds=8.0 if is_quick else 30.0, num_epochs=2 if is_quick else 6)
    plan = HubPlan(model=LARGER, settings=settings, num_peers=2, seconds_of_batch=(0.0, 1.0))
    (peer, _), _ = trained(plan, late=0.3)
    case = f"3.2 million parameters, windows of {settings['window_seconds']:.0f} s, answers 0.3 s late"
    shares = {"computing": "time in micro-batches and local steps", "offering": "time offering",
              "following": "time following"}  # fmt: skip
    rows = [
        Row(case=case, metric=metric, unit="share", ours=peer["seconds"].get(name, 0.0) / peer["wall"],
            floor=1.0 if name == "computing" else None)
        for name, metric in shares.items()
    ]  # fmt: skip
    return [*rows, Row(case=case, metric="longest pause", unit="s", ours=peer["longest"]["rounds"])]


def goodput(*, is_quick: bool) -> list[Row]:
    """Return which share of the samples that peers of unequal speed have computed counts in lists."""
    settings = dict(SETTINGS, window_seconds=8.0 if is_quick else 12.0, num_epochs=3 if is_quick else 12)
    seconds = tuple(itertools.islice(itertools.cycle((0.5, 0.75, 1.0, 1.5)), 8))
    plan = HubPlan(model=TINY, settings=settings, num_peers=8, seconds_of_batch=seconds)
    peers, closer = trained(plan, late=0.1)
    counted = sum(sum(one.values()) for one in closer["rounds"])
    computed = sum(peer["offered"] for peer in peers)
    case = f"8 peers, {settings['num_epochs']} rounds of {settings['window_seconds']:.0f} s, answers 0.1 s late"
    metric = "samples that count, of those computed before the last offer"
    return [Row(case=case, metric=metric, unit="share", ours=counted / computed, floor=1.0)]


def loss(*, is_quick: bool) -> list[Row]:
    """Return the held-out loss of a run, beside peers that talk to each other and train on the same samples."""
    settings = dict(SETTINGS, window_seconds=8.0 if is_quick else 30.0, num_epochs=3 if is_quick else 16)
    plan = HubPlan(model=TINY, settings=settings, num_peers=4, seconds_of_batch=(0.2,) * 4)
    _, closer = trained(plan)
    rounds = closer["rounds"]
    case = f"4 peers, {len(rounds)} rounds of {settings['window_seconds']:.0f} s"
    metric, ours = "held-out loss", closer["loss"]
    rows = [Row(case=case, metric=metric, unit="nat", ours=ours, peer=loss_of_swarm(plan, rounds))]
    start = held_out_loss(task := open_task(plan.run(), "bench"), task.new_model())
    return [*rows, Row(case=case, metric="held-out loss at the beginning", unit="nat", ours=start)]


def loss_of_swarm(plan: HubPlan, rounds: list[Mapping[str, int]]) -> float:
    """Return the loss of peers of the other wire whose micro-batches are those of these rounds."""
    run = TrainingRun(
        run_id="bench", model_config=dict(plan.model), dataset_repository="made/up", dataset_revision="none",
        synchronisation="sparse", aggregation_rule="mean", outer_momentum=0, optimizer_bits=32,
        authorization_service="", delay_optimizer_step=False, **plan.settings,
    )  # fmt: skip
    task, batches = open_task(run, "bench"), [batches_of(run, n, plan.micro_batch) for n in range(plan.num_peers)]
    averaging = SparseRounds(run.sparse_values_per_chunk, run.sparse_error_decay)
    with SimulatedSwarm(task, plan.num_peers, averaging) as swarm:
        for one in rounds:
            numbers = [one.get(f"peer{number}", 0) // plan.micro_batch for number in range(plan.num_peers)]
            swarm.epoch([list(itertools.islice(own, count)) for own, count in zip(batches, numbers, strict=True)])
        return held_out_loss(task, swarm.model)


def newcomer(*, is_quick: bool) -> list[Row]:
    """Return the seconds until a newcomer has the newest state, by how many rounds it repeats."""
    rows = []
    for name, model in {"0.1 million": TINY, "3.2 million": LARGER}.items():
        numbers = (1, 2) if is_quick else (5, 20, 60)
        plan = HubPlan(model=model, settings=dict(SETTINGS, num_epochs=100), num_peers=8, num_rounds=numbers)
        for one in measured(plan, {"newcomer": "newcomer"})["newcomer"]["figures"]:
            case = f"{one['rounds']} rounds of 8 members, {name} parameters, answers {one['late']:.1f} s late"
            rows.append(Row(case=case, metric="until a newcomer has the state", unit="s", ours=one["seconds"]))
            rows.append(Row(case=case, metric="its resolver requests", unit="requests", ours=one["resolvers"]))
    return rows


def crowd(*, is_quick: bool) -> list[Row]:
    """Return what it takes to close a round of many volunteers."""
    rows = []
    for number in (50,) if is_quick else (100, 1000):
        plan = HubPlan(model=LARGER, settings=dict(SETTINGS, window_seconds=60.0), num_peers=number)
        found = measured(plan, {"crowd": "crowd"})["crowd"]
        case = f"{number} volunteers, {found['members']} drawn, answers {found['late']:.1f} s late"
        asked = found["asked"]["crowd"]
        figures = {
            "from the deadline to the list": ("s", found["seconds"]),
            "processor time of it": ("s", found["cpu"]),
            "peak memory besides what it had before": ("MB", found["memory"] - found["memory_before"]),
            "API requests": ("requests", asked.get("api", 0)),
            "resolver requests": ("requests", asked.get("resolvers", 0)),
            "shortest window within 5,000 resolver requests in 5 minutes": (
                "s", 300 * asked.get("resolvers", 0) / RESOLVERS_IN_FIVE_MINUTES,
            ),
        }  # fmt: skip
        rows += [Row(case=case, metric=metric, unit=unit, ours=ours) for metric, (unit, ours) in figures.items()]
    return rows


PARTS = dict(
    requests=requests, utilisation=utilisation, goodput=goodput, loss=loss, newcomer=newcomer, crowd=crowd
)  # fmt: skip


def main() -> None:
    """Measure the parts that are named, or all; print their tables, write their results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"some of {', '.join(PARTS)}; all without one")
    parser.add_argument("--quick", action="store_true", help="few rounds, short windows")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; expected some of {', '.join(PARTS)}")
    torch.set_num_threads(1)
    for part in arguments.parts or PARTS:
        rows = PARTS[part](is_quick=arguments.quick)
        print(f"written to {write_results(f'hub_rounds_{part}', rows, is_quick=arguments.quick)}")


if __name__ == "__main__":
    main()
