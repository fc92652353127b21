"""What grows while a swarm trains for long: files, mappings, threads and memory of every process of every peer.

Three tiny trainers and an auxiliary peer go through thousands of short epochs. Writes `results/soak.json` as it goes.
The verdict leaves out the first epochs, in which caches fill.
Usage: python tests/long/soak.py [--epochs N] [--warmup N] [--interval N] [--output FILE].
"""

import argparse
import contextlib
import json
import math
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from hub_tools.atomic_files import write_text_whole
from pipelines.core.run.versions import package_version
from pipelines.tools.chaos.chaos_run import newest_epoch
from pipelines.tools.chaos.chaos_swarm import AUXILIARY, ChaosSwarm, SwarmPlan
from pipelines.tools.chaos.ending import ends_on_signals
from pipelines.tools.process_table import group_members

RESULTS = Path(__file__).with_name("results") / "soak.json"
SETTINGS = dict(matchmaking_seconds=1.0, checkpoint_interval_epochs=100, peak_learning_rate=1e-4)
"""Of a run with short epochs, which must not diverge within thousands of them."""

SECONDS_WITHOUT_AN_EPOCH = 180.0
KINDS = {"socket:": "sockets", "pipe:": "pipes", "anon_inode:": "events", "/memfd:": "memfds", "/dev/shm/": "shm files"}
FIGURES = (
    *KINDS.values(), "other files", "files", "threads", "mappings", "shm mappings", "resident KiB", "memory KiB",
    "private KiB", "anonymous KiB",
)  # fmt: skip
"""`memory` counts once what several processes share; `resident` and `anonymous` count it in each of them. Forks share
less and less with their parents, and files are read bit by bit: the anonymous part is what says how much is held."""

MOST_GROWTH = {"resident KiB": math.inf, "memory KiB": math.inf, "private KiB": math.inf, "anonymous KiB": 4096}
MOST_COUNTED = 3
"""What a figure may grow by between warm-up and end and still be called flat; the second is for all that is counted."""

SURE = 4.0
"""Standard errors above zero of a slope that counts: files and sockets come and go."""


def figures_of(pid: int) -> dict[str, int]:
    """Return what a process holds; raises OSError if it has ended."""
    root, figures = Path(f"/proc/{pid}"), Counter()
    for descriptor in (root / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            target = str(descriptor.readlink())
            figures[next((kind for start, kind in KINDS.items() if target.startswith(start)), "other files")] += 1
    files, mappings = figures.total(), (root / "maps").read_text(encoding="utf-8").splitlines()
    lines = (root / "smaps_rollup").read_text(encoding="ascii").splitlines()[1:]
    memory = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    return {
        **figures,
        "files": files,
        "threads": len(list((root / "task").iterdir())),
        "mappings": len(mappings),
        "shm mappings": sum("/dev/shm/" in line for line in mappings),
        "resident KiB": memory["Rss"],
        "memory KiB": memory["Pss"],
        "private KiB": memory["Private_Dirty"] + memory["Private_Clean"],
        "anonymous KiB": memory["Anonymous"],
    }


def roles(group: int) -> dict[str, int]:
    """Return a peer's processes by what they do: hivemind's are forks without names, in the order of their start."""
    named, forks = {}, []
    for pid in sorted(group_members(group)):
        name = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
        if pid == group:
            named["worker"] = pid
        elif name.startswith("python"):
            forks.append(pid)
        else:
            named[name] = pid
    return named | dict(zip(("guard", "dht", "gradient averager"), forks, strict=False))


class Samples:
    """What has been measured so far: by process and figure, one number for each sample."""

    def __init__(self) -> None:
        self.epochs: list[int] = []
        self.seconds: list[int] = []
        self.processes: dict[str, dict[str, list[int | None]]] = {}
        self._started = time.monotonic()

    def take(self, epoch: int, swarm: ChaosSwarm) -> None:
        """Measure every process of every peer."""
        self.epochs.append(epoch)
        self.seconds.append(round(time.monotonic() - self._started))
        groups = {AUXILIARY: swarm.auxiliary} | {trainer.name: trainer.group for trainer in swarm.trainers}
        for peer, group in groups.items():
            for role, pid in roles(group).items():
                with contextlib.suppress(OSError):
                    self._add(f"{peer}, {role}", figures_of(pid))

    def _add(self, process: str, figures: Mapping[str, int]) -> None:
        columns = self.processes.setdefault(process, {figure: [] for figure in FIGURES})
        for figure, column in columns.items():
            column += [None] * (len(self.epochs) - 1 - len(column))  # it did not run then
            column.append(figures.get(figure, 0))

    def total(self, figure: str) -> int:
        """Return the newest sum of a figure over all processes."""
        return sum(columns[figure][-1] or 0 for columns in self.processes.values())

    def growth(self, warmup: int) -> dict[str, dict[str, float]]:
        """Return for each process what has grown since the first epochs, and by how much in an epoch."""
        found = {}
        for process, columns in sorted(self.processes.items()):
            slopes = {figure: self._growth(figure, column, warmup) for figure, column in columns.items()}
            if grown := {figure: round(slope, 4) for figure, slope in slopes.items() if slope}:
                found[process] = grown
        return found

    def _growth(self, figure: str, column: Sequence[int | None], warmup: int) -> float:
        pairs = [(x, y) for x, y in zip(self.epochs, column, strict=False) if x >= warmup and y is not None]
        if len(pairs) < 3:
            return 0.0
        epochs, values = zip(*pairs, strict=True)
        slope, intercept = statistics.linear_regression(epochs, values)
        scatter = math.sqrt(statistics.fmean((y - intercept - slope * x) ** 2 for x, y in pairs))
        uncertainty = scatter / (statistics.pstdev(epochs) * math.sqrt(len(pairs)))
        growth = slope * (epochs[-1] - epochs[0])
        return slope if slope > SURE * uncertainty and growth > MOST_GROWTH.get(figure, MOST_COUNTED) else 0.0


def soak(num_epochs: int, warmup: int, interval: int, output: Path, folder: Path, console: Console) -> dict:
    """Let the swarm train; return what is in the results file at the end."""
    plan = SwarmPlan(
        folder=folder, num_peers=3, seed=1, seconds_per_batch=0.25, seconds_per_epoch=1.0, settings=SETTINGS
    )
    samples, results = Samples(), {}
    with ChaosSwarm(plan, console) as swarm:
        epoch, next_epoch, deadline = 0, 10, time.monotonic() + SECONDS_WITHOUT_AN_EPOCH
        while epoch < num_epochs and time.monotonic() < deadline:
            swarm.tick()
            time.sleep(1.0)
            if (epoch := newest_epoch(swarm)) < next_epoch:
                continue
            samples.take(epoch, swarm)
            next_epoch, deadline = epoch + interval, time.monotonic() + SECONDS_WITHOUT_AN_EPOCH
            results = dict(
                made_with=package_version(),
                epochs=epoch,
                warmup=warmup,
                unexpected_exits=sum(trainer.num_unexpected_exits for trainer in swarm.trainers),
                growth_per_epoch=samples.growth(warmup),
                at_epochs=samples.epochs,
                at_seconds=samples.seconds,
                processes=samples.processes,
            )
            output.parent.mkdir(exist_ok=True)
            write_text_whole(output, json.dumps(results, sort_keys=True) + "\n")
            totals = ", ".join(f"{samples.total(name)} {name}" for name in ("files", "threads", "memory KiB"))
            console.print(f"epoch {epoch}, {samples.seconds[-1]} s: {totals}")
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=2000)
    parser.add_argument("--warmup", type=int, default=200, help="epochs left out of the verdict")
    parser.add_argument("--interval", type=int, default=25, help="epochs between two samples")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="soak-") as folder, ends_on_signals():
        swarm_folder = Path(folder) / "swarm"
        results = soak(options.epochs, options.warmup, options.interval, options.output, swarm_folder, console)
    growth = results.get("growth_per_epoch", {})
    for process, grown in growth.items():
        console.print(f"{process}, per epoch: {grown}")
    reached = f"after {results.get('epochs', 0)} of {options.epochs} epochs"
    console.print(f"flat {reached}" if not growth else f"[red]not flat {reached}[/red]")


if __name__ == "__main__":
    main()
