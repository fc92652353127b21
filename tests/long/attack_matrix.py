"""Each attack of `chaos` in an open run and in one that admits users, compared with a bystander that only computes.

Writes `results/attacks.json` after each cell. Cells that were measured with this version of the package and the same
seconds are not measured again; those that failed are.
Usage: python tests/long/attack_matrix.py [--seconds N] [--only NAME ...].
"""

import argparse
import itertools
import json
import tempfile
from pathlib import Path

from rich.console import Console

from hub_tools.atomic_files import write_text_whole
from pipelines.core.run.versions import package_version
from pipelines.features.ledger.ledger_files import STATE_FILE, read_state
from pipelines.tools.chaos.attacks.table import ATTACKS
from pipelines.tools.chaos.chaos_processes import read_events
from pipelines.tools.chaos.chaos_run import ChaosPlan, run_chaos
from pipelines.tools.chaos.chaos_swarm import SwarmPlan
from pipelines.tools.chaos.chaotic_peer import events_file
from pipelines.tools.chaos.ending import ends_on_signals
from pipelines.tools.chaos.faults.fault_script import Fault, FaultKind, attack_in_the_middle
from pipelines.tools.demo.stages import StageError

RESULTS = Path(__file__).with_name("results") / "attacks.json"
CONTROL = "bystander"
NEEDS_A_NEWCOMER = ("false_votes", "endless_manifest")
REFERENCE_SECONDS = 15.0


def planned_faults(name: str, seconds: float) -> tuple[Fault, ...]:
    attack = attack_in_the_middle(name, seconds)
    restart = Fault(kind=FaultKind.KILL, at_seconds=attack.at_seconds + 10, duration_seconds=2.0, peer=2)
    return (attack, restart) if name in NEEDS_A_NEWCOMER else (attack,)


def measured(name: str, has_authority: bool, seconds: float, folder: Path, console: Console) -> dict[str, object]:
    swarm = SwarmPlan(folder=folder, num_peers=3, seed=1, has_authority=has_authority)
    plan = ChaosPlan(
        swarm=swarm,
        faults=planned_faults(name, seconds),
        duration_seconds=seconds,
        reference_seconds=REFERENCE_SECONDS,
    )
    report = run_chaos(plan, console)
    lies = [event for event in read_events(events_file(folder, name)) if event["event"] == "lied"]
    if not lies:
        raise StageError(f"The attacker did nothing, so this says nothing about {name}.")
    spent, passed = ((lies[-1][key] - lies[0][key] if lies else 0.0) for key in ("cpu_seconds", "time"))
    return dict(
        epochs_per_minute=round(report.epochs_per_minute, 2),
        goodput=round(report.goodput, 3),
        final_loss=round(list(report.evaluation_losses.values())[-1], 3),
        # Trainers that never met at one epoch have none, and JSON has no infinity.
        parameter_difference=round(report.parameter_difference, 6) if report.parameter_difference < 1e9 else None,
        memory_growth_mb=round(report.memory_growth_bytes / 1e6, 1),
        named=report.attacks.get(name, False),
        num_unexpected_exits=report.num_unexpected_exits,
        num_lies=len(lies),
        **ledger_figures(folder),
        attacker_cores=round(spent / passed, 2) if passed else 0.0,
    )


def ledger_figures(folder: Path) -> dict[str, int]:
    """What the anchor has booked, and for how many peers: an attacker trains on nothing."""
    # Copies wait in the spool for their checkpoint.
    state = read_state(max(folder.rglob(STATE_FILE), key=lambda path: path.stat().st_mtime))
    done = [num_done for _, _, _, num_done, _, _ in state["accounts"]]
    return dict(
        num_booked=sum(done),
        num_peers_booked=sum(number > 0 for number in done),
        num_repeated=state["num_repeated"],
        num_strange=state["num_strange"],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each cell, besides start and end")
    parser.add_argument("--only", nargs="*", default=[CONTROL, *(name for name in ATTACKS if name != CONTROL)])
    options = parser.parse_args()
    console = Console(stderr=True)
    cells = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    for has_authority, name in itertools.product((False, True), options.only):
        cell, made_with = f"{name}, {'admitted' if has_authority else 'open'}", [package_version(), options.seconds]
        if cells.get(cell, {}).get("made_with") == made_with and "failed" not in cells[cell]:
            continue
        console.print(cell)
        with tempfile.TemporaryDirectory(prefix="attack-") as folder, ends_on_signals():
            try:
                figures = measured(name, has_authority, options.seconds, Path(folder), console)
            except StageError as error:
                figures = dict(failed=str(error).splitlines()[0].replace(folder, ""))
        cells[cell] = dict(figures, made_with=made_with)
        RESULTS.parent.mkdir(exist_ok=True)
        write_text_whole(RESULTS, json.dumps(cells, indent=1, sort_keys=True) + "\n")
        console.print_json(data=cells[cell])


if __name__ == "__main__":
    main()
