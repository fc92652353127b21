"""What the benchmarks share: timing, rows with ratios, a table, and the results file."""

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One figure of ours, beside the peer's and the floor that physics or arithmetic sets, where there are any."""

    case: str
    metric: str
    unit: str
    ours: float
    peer: float | None = None
    floor: float | None = None

    def to_json(self) -> dict[str, object]:
        """Return the row with its ratios."""
        ratios = dict(
            ratio_to_peer=None if not self.peer else self.ours / self.peer,
            ratio_to_floor=None if not self.floor else self.ours / self.floor,
        )
        return asdict(self) | ratios


def median_seconds(action: Callable[[], object], repeats: int, *, cpu: bool = False) -> float:
    """Return the median duration of an action after one warm-up, in seconds of wall time or of this process's CPU."""
    clock = time.process_time if cpu else time.perf_counter
    action()
    durations = []
    for _ in range(repeats):
        started = clock()
        action()
        durations.append(clock() - started)
    return statistics.median(durations)


def write_results(name: str, rows: list[Row], *, is_whole: bool = True, is_quick: bool = False) -> Path:
    """Print the rows as a table and write them with a description of the machine; return the file.

    If they are not the whole, those of a machine of the same kind that were not measured again stay. A quick look has
    a folder of its own, because the README's figures are those of the files of full runs.
    """
    table = Table("case", "metric", "unit", "ours", "peer", "floor", "to peer", "to floor", title=name)
    for row in rows:
        values = row.to_json()
        table.add_row(row.case, row.metric, row.unit, *(_short(values[key]) for key in tuple(values)[3:]))
    Console(width=None if sys.stdout.isatty() else 150).print(table)
    folder = RESULTS / "quick" if is_quick else RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    machine = dict(
        cores=os.cpu_count(),
        threads=torch.get_num_threads(),
        processor=_processor_name(),
        load_average=dict(zip(("1 min", "5 min", "15 min"), os.getloadavg(), strict=True)),
        python=platform.python_version(),
        torch=torch.__version__,
        **({"gpu": torch.cuda.get_device_name(0)} if torch.cuda.is_available() else {}),
    )
    kept = [] if is_whole else _not_measured_again(path, machine, rows)
    content = dict(machine=machine, rows=[*kept, *(row.to_json() for row in rows)])
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return path


def _not_measured_again(path: Path, machine: dict[str, object], rows: list[Row]) -> list[dict[str, object]]:
    former = json.loads(path.read_text(encoding="utf-8")) if path.exists() else dict(machine={}, rows=[])
    if any(former["machine"].get(key) != machine[key] for key in ("cores", "processor")):
        return []
    measured = {(row.case, row.metric) for row in rows}
    return [row for row in former["rows"] if (row["case"], row["metric"]) not in measured]


def _short(value: object) -> str:
    return "" if value is None else f"{value:.4g}"


def _processor_name() -> str:
    """Return the model's name where Linux tells it, else the architecture."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text(encoding="utf-8").splitlines() if information.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
