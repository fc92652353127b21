"""A chaos run: a fault-free period, the faults, then all trainers to one epoch, where parameters are compared."""

import contextlib
import itertools
import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from hub_tools.printing.consoles import open_progress
from pipelines.tools.chaos.attacks.table import ATTACKS
from pipelines.tools.chaos.chaos_report import ChaosReport, Events, Window, make_report
from pipelines.tools.chaos.chaos_swarm import ChaosSwarm, SwarmPlan
from pipelines.tools.chaos.chaotic_peer import Control, parameters_file
from pipelines.tools.chaos.fault_injection import SLOW_LINK, FaultInjection
from pipelines.tools.chaos.faults.fault_script import Fault, script_text
from pipelines.tools.chaos.faults.link_proxy import LinkLimits
from pipelines.tools.demo.stages import StageError
from pipelines.tools.process_table import processor_ticks

MARKER_FILE = ".dalle-collab-chaos"
NUM_WARMUP_EPOCHS = 2
SECONDS_TO_FINISH = 120.0
SECONDS_FOR_ONE_ROUND = 60.0
EPOCHS_TO_FINISH = 2
"""After a round of all, for who has left it with another state to see so and to take the others'."""


@dataclass(frozen=True, kw_only=True)
class ChaosPlan:
    """The plan of a run."""

    swarm: SwarmPlan
    faults: tuple[Fault, ...]
    duration_seconds: float
    """Duration of the faults."""

    reference_seconds: float
    """Duration of the fault-free period before them, in the same swarm."""

    slow_link: LinkLimits = SLOW_LINK
    """What faults make of a peer's link when they slow it."""


def run_chaos(plan: ChaosPlan, console: Console) -> ChaosReport:
    """Run it, write `report.json`, `faults.json` and `timeline.png` to the plan's folder, and return the report.

    Raises:
        StageError: the swarm did not come up, or a command of it failed.
    """
    folder = plan.swarm.folder
    _prepare(folder)
    (folder / "faults.json").write_text(script_text(plan.faults), encoding="utf-8")
    with ChaosSwarm(plan.swarm, console) as swarm, _progress(console) as progress:
        task = progress.add_task("starting the swarm", total=None)
        swarm.wait_until(lambda: _all_past(swarm, NUM_WARMUP_EPOCHS), "the trainers' first epochs together")
        swarm.start_serving()
        reference = _let_pass(swarm, plan.reference_seconds, progress, "without faults")
        injection = FaultInjection(swarm, plan.faults, plan.slow_link)

        def inject(seconds: float) -> None:
            for line in injection.advance(seconds):
                progress.console.print(f"[dim]{seconds:6.1f} s[/dim] {escape(line)}", markup=True)

        memory = _memory(swarm)
        chaos = _let_pass(swarm, plan.duration_seconds, progress, "with faults", inject)
        growth = [after - memory[group] for group, after in _memory(swarm).items() if group in memory]
        progress.update(task, description="stopping at one epoch", total=None)
        injection.end_all()
        difference = _finish(swarm)
        has_false_lists = plan.swarm.is_over_the_hub and not swarm.lists_are_right()
        events = {trainer.name: trainer.events() for trainer in swarm.trainers}
        names = [fault.kind for fault in plan.faults if fault.kind in ATTACKS]
        serving = swarm.scene.figures() if swarm.scene is not None else {}
        attackers = {name: event["peer_id"] for name in names for event in swarm.attack_events(name)[:1]}
    report = make_report(
        events,
        plan.faults,
        reference=reference,
        chaos=chaos,
        parameter_difference=difference,
        num_orphans=len(swarm.orphans),
        num_unexpected_exits=sum(trainer.num_unexpected_exits for trainer in swarm.trainers),
        num_checkpoints=sum(look["published"] is not None for look in swarm.auxiliary_reports),
        attackers=attackers,
        serving=serving,
        memory_growth_bytes=max(growth, default=0),
        has_false_lists=has_false_lists,
    )
    _write(folder, report, events, plan.faults, reference, chaos)
    return report


def _prepare(folder: Path) -> None:
    """Empty the folder of an earlier run; raises ValueError for any other folder."""
    if folder.exists() and any(folder.iterdir()) and not (folder / MARKER_FILE).exists():
        raise ValueError(f"{folder} is not empty and not of an earlier chaos run. Name another with --output.")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / MARKER_FILE).touch()


def _all_past(swarm: ChaosSwarm, num_epochs: int) -> bool:
    """Tell whether all trainers have gone through some epochs in which all of them averaged."""
    for trainer in swarm.trainers:
        whole = [e for e in trainer.events() if e["event"] == "epoch" and e["group_size"] == len(swarm.trainers)]
        if len(whole) < num_epochs:
            return False
    return True


def _let_pass(
    swarm: ChaosSwarm,
    seconds: float,
    progress: Progress,
    description: str,
    act: Callable[[float], None] = lambda _seconds: None,
) -> Window:
    begin, started, ticks = time.time(), time.monotonic(), processor_ticks()
    task = progress.task_ids[0]
    progress.reset(task, total=seconds, description=description)
    while (passed := time.monotonic() - started) < seconds:
        act(passed)
        swarm.tick()
        progress.update(task, completed=passed, description=f"{description}, epoch {newest_epoch(swarm)}")
        time.sleep(0.1)
    busy, available = (after - before for after, before in zip(processor_ticks(), ticks, strict=True))
    return Window(begin=begin, end=time.time(), busy_share=busy / max(1, available))


def _memory(swarm: ChaosSwarm) -> dict[int, int]:
    return {trainer.group: trainer.memory_bytes() for trainer in swarm.trainers if trainer.is_alive()}


def newest_epoch(swarm: ChaosSwarm) -> int:
    """Return the newest epoch that an auxiliary peer has seen the swarm in; 0 before its first look."""
    return max((report["swarm_epoch"] for report in swarm.auxiliary_reports), default=0)


def _finish(swarm: ChaosSwarm) -> float:
    """Let all trainers stop at the same epoch; return how much their parameters differ."""
    try:
        swarm.wait_until(lambda: _all_in_step(swarm), "the trainers to be in step again", SECONDS_TO_FINISH)
        with contextlib.suppress(StageError):  # who avoids an attacker may need longer, and need not
            swarm.wait_until(lambda: _all_in_one_round(swarm), "a round of all trainers", SECONDS_FOR_ONE_ROUND)
        last = max(_epoch_of(trainer.events()) for trainer in swarm.trainers) + EPOCHS_TO_FINISH
        for trainer in swarm.trainers:
            trainer.control(Control(finish_at_epoch=last))
        files = [parameters_file(swarm.plan.folder, trainer.name) for trainer in swarm.trainers]
        swarm.wait_until(lambda: all(file.exists() for file in files), "the trainers' last epoch", SECONDS_TO_FINISH)
    except StageError:
        return float("inf")
    return largest_difference(files)


def _all_in_step(swarm: ChaosSwarm) -> bool:
    epochs = [_epoch_of(trainer.events()) for trainer in swarm.trainers]
    return all(trainer.is_alive() for trainer in swarm.trainers) and max(epochs) - min(epochs) <= 1 and min(epochs) > 0


def _all_in_one_round(swarm: ChaosSwarm) -> bool:
    """Tell whether the newest round of each trainer was one of all: no one has just gone on alone."""
    newest = [next((e for e in reversed(trainer.events()) if e["event"] == "epoch"), {}) for trainer in swarm.trainers]
    return all(e.get("group_size", 0) >= len(newest) and e["share_averaged"] == 1.0 for e in newest)


def _epoch_of(events: Sequence[dict]) -> int:
    """Return the epoch that a trainer has reached since its last start."""
    for event in reversed(events):
        if event["event"] in ("started", "joined", "epoch"):
            return int(event.get("new_epoch", event.get("epoch", 0)))
    return 0


def largest_difference(files: Sequence[Path]) -> float:
    """Return the largest L2 difference of two peers' parameters, relative to their norm."""
    import numpy as np
    from safetensors.numpy import load_file

    vectors = []
    for file in files:
        tensors = load_file(file)
        vectors.append(np.concatenate([tensors[name].ravel().astype(np.float64) for name in sorted(tensors)]))
    differences = [
        float(np.linalg.norm(first - second) / np.linalg.norm(first))
        for first, second in itertools.combinations(vectors, 2)
    ]
    finite = all(np.isfinite(vector).all() for vector in vectors)
    return max(differences, default=0.0) if finite else float("inf")


def _write(
    folder: Path, report: ChaosReport, events: Events, faults: Sequence[Fault], reference: Window, chaos: Window
) -> None:
    from pipelines.tools.chaos.timeline_picture import draw_timeline

    (folder / "report.json").write_text(json.dumps(report.to_json(), indent=1) + "\n", encoding="utf-8")
    draw_timeline(folder / "timeline.png", events, faults, reference=reference, chaos=chaos)


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    return open_progress(*columns, console=console, transient=True)
