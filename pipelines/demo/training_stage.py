"""The demo's training: an auxiliary peer and trainers as processes, and their reports on the terminal."""

import contextlib
import json
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from hub_tools.counted import counted
from pipelines.demo.demo_plan import Accounts, DemoPlan
from pipelines.demo.stages import StageError, Stages, stop_group

LOOPBACK = "/ip4/127.0.0.1/tcp/0"
SECONDS_TO_MEET = 180.0


def train_together(stages: Stages, plan: DemoPlan, accounts: Accounts, console: Console) -> None:
    """Start the auxiliary peer, then the trainers; wait until the auxiliary peer has published the last epoch."""
    events = plan.work / "auxiliary.jsonl"
    with contextlib.ExitStack() as stack:
        auxiliary = stages.start(
            "dalle-collab", "run", "assist", plan.repository(), "--host", LOOPBACK,
            "--events", str(events), token=accounts.organiser, log_name="auxiliary",
        )  # fmt: skip
        stack.callback(stop_group, auxiliary)
        _wait_for_first_event(stages, auxiliary, events)
        trainers = []
        for number, token in enumerate(accounts.volunteers):
            trainer = stages.start(
                "dalle-collab", "join", plan.repository(), "--host", LOOPBACK, "--cpu-threads", "1",
                "--micro-batch-size", str(plan.micro_batch_size), "--device", "cpu",
                "--events", str(plan.work / f"trainer-{number}.jsonl"), token=token, log_name=f"trainer-{number}",
            )  # fmt: skip
            stack.callback(stop_group, trainer)
            trainers.append(trainer)
        for report in _follow(events, auxiliary, trainers, stages, plan, console):
            if report["published_epoch"] >= plan.num_epochs:
                break
        for process in (*trainers, auxiliary):
            process.wait(timeout=SECONDS_TO_MEET)


def _wait_for_first_event(stages: Stages, auxiliary: subprocess.Popen[str], events: Path) -> None:
    deadline = time.monotonic() + SECONDS_TO_MEET
    while not events.exists():
        if auxiliary.poll() is not None:
            raise StageError(stages.failure(("dalle-collab", "run", "assist"), auxiliary.returncode, "auxiliary"))
        if time.monotonic() > deadline:
            raise StageError(f"The auxiliary peer was not up within {SECONDS_TO_MEET:.0f} s; see logs/auxiliary.log.")
        time.sleep(0.2)


def _follow(
    events: Path,
    auxiliary: subprocess.Popen[str],
    trainers: list[subprocess.Popen[str]],
    stages: Stages,
    plan: DemoPlan,
    console: Console,
) -> Iterator[dict[str, Any]]:
    columns = (
        TextColumn("  epoch {task.completed:.0f}/{task.total:.0f}"),
        BarColumn(),
        TextColumn("{task.fields[text]}"),
    )
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        task = progress.add_task("training", total=plan.num_epochs, text="peers are starting")
        position, report = 0, {"held_epoch": 0}
        while True:
            lines = events.read_text(encoding="utf-8").splitlines(keepends=True)
            for line in lines[position:]:
                if line.endswith("\n"):
                    position += 1
                    report = json.loads(line)
                    progress.update(task, completed=report["swarm_epoch"], text=_training_text(report))
                    yield report
            if auxiliary.poll() is not None:
                if auxiliary.returncode != 0:
                    raise StageError(
                        stages.failure(("dalle-collab", "run", "assist"), auxiliary.returncode, "auxiliary")
                    )
                return
            if all(trainer.poll() is not None for trainer in trainers):
                _check_end(stages, plan, trainers, report)
            time.sleep(0.5)


def _check_end(
    stages: Stages, plan: DemoPlan, trainers: list[subprocess.Popen[str]], report: Mapping[str, Any]
) -> None:
    """Raise StageError if the trainers have exited and nobody has the run's last state."""
    if report["held_epoch"] < plan.num_epochs:
        code = next((trainer.returncode for trainer in trainers if trainer.returncode != 0), 0)
        raise StageError(stages.failure(("dalle-collab", "join", plan.repository()), code, "trainer-0"))


def _training_text(report: Mapping[str, Any]) -> str:
    summary = report["summary"]
    if summary is None:
        return counted(report["num_trainers"], "trainer")
    return (
        f"loss {summary['loss']:.3f}, {counted(summary['num_peers'], 'peer')}, "
        f"{summary['samples_per_second']:.0f} samples/s, {summary['share_averaged']:.0%} averaged"
    )
