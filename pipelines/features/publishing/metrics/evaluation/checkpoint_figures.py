"""What evaluations of published checkpoints have come to: one row for each figure, with its interval and its command.

Everything that is read back may come from strangers: rows that cannot be true are left out, and nothing fails.
"""

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import pyarrow as pa

from hub_tools.run_files import FIGURES_FILE
from pipelines.features.publishing.metrics.evaluation.held_out_losses import DIGEST, LARGEST, is_few
from pipelines.features.publishing.metrics.parquet_rows import read_rows, write_rows

logger = logging.getLogger(__name__)

MOST_FIGURES = 64
"""Of one evaluation."""

KEPT_ROWS = 50_000
"""An evaluation has about ten rows."""

NAME = re.compile(r"[a-z][a-z0-9_]{0,39}(@[\w.:/-]{1,96})?", re.ASCII)
WORD = re.compile(r"[a-z][a-z ]{0,29}")
COMMIT = re.compile(r"[0-9a-f]{40,64}")
COMMAND = re.compile(r"dalle-collab evaluate [\w./:@= -]{1,500}", re.ASCII)
"""People paste it into a shell."""

PATTERNS = dict(
    name=NAME, items=WORD, better=re.compile("lower|higher|neither"), commit=COMMIT, weights=DIGEST, command=COMMAND
)


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure of an evaluation."""

    name: str
    """As `dalle-collab evaluate` names it: `fid@clip`, `cmmd`, `clip_score`, ..."""

    value: float
    low: float
    """Lower end of the interval of 95 %; equal to the value where nothing could be repeated."""

    high: float
    num_items: int
    """Records, prompts, pictures or drawings that it is computed from."""

    items: str
    """What they are, in the plural."""

    better: str
    """Whether `lower` or `higher` is better, or `neither`."""

    meaning: str = ""
    """One sentence for people, with the method's source; no file of a run has it."""

    @property
    def interval(self) -> str:
        """The interval for people; empty where there is none."""
        return "" if self.low == self.high else f"{self.low:.4g} to {self.high:.4g}"

    @property
    def direction(self) -> str:
        """Which direction is better, for people; empty where neither is."""
        return "" if self.better == "neither" else self.better

    @property
    def basis(self) -> str:
        """What it stands on, for people."""
        return f"{self.num_items:,} {self.items}"


@dataclass(frozen=True, kw_only=True)
class CheckpointFigure(Figure):
    """One figure of one evaluation of a published checkpoint."""

    epoch: int
    num_records: int
    """Held-out records that the evaluation read."""

    commit: str
    """Commit of the checkpoint in the run's repository."""

    weights: str
    """Digest of the weights: `held_out_loss.weights_digest`."""

    command: str
    """The command that computes it again."""

    time: float
    """When the evaluation ended, in seconds since 1970."""

    seconds: float
    """How long the evaluation took."""

    def __post_init__(self) -> None:
        numbers = (self.value, self.low, self.high, self.time, self.seconds)
        if not all(abs(number) < LARGEST for number in numbers) or not self.low <= self.value <= self.high:
            raise ValueError(f"{self.name[:80]} is {self.value} ({self.low} to {self.high}), which cannot be.")
        counts = (self.epoch, self.num_items, self.num_records)
        if not all(isinstance(count, int) and 0 < count < LARGEST for count in counts):
            raise ValueError(f"Epoch {self.epoch}, {self.num_items} items and {self.num_records} records cannot be.")
        for field, pattern in PATTERNS.items():
            if not pattern.fullmatch(text := getattr(self, field)):
                raise ValueError(f"{field} is {text[:80]!r}; expected {pattern.pattern}.")

    @property
    def is_few(self) -> bool:
        """Whether it stands on too few records to tell small differences."""
        return is_few(self.num_records)

    @property
    def basis(self) -> str:
        """What it stands on, for people."""
        of = super().basis
        return of if self.num_items == self.num_records else f"{of} of {self.num_records:,} records"


COLUMNS = [field for field in fields(CheckpointFigure) if field.name != "meaning"]
ARROW_TYPES: dict[object, pa.DataType] = {int: pa.int64(), float: pa.float64(), str: pa.string()}
FIGURE_SCHEMA = pa.schema([(column.name, ARROW_TYPES[column.type]) for column in COLUMNS])


def figures_of_report(
    report: Any, *, epoch: int, commit: str, command: str, now: float, seconds: float
) -> list[CheckpointFigure]:
    """Return the figures of what `dalle-collab evaluate` wrote as JSON, without those that cannot be true.

    Raises:
        ValueError: it is no such report.
    """
    try:
        weights, records = report["subject"]["weights"], report["settings"]["num_records"]
        shared = dict(epoch=epoch, commit=commit, command=command, time=now, seconds=seconds)
        rows = [dict(row, num_records=records, weights=weights) | shared for row in report["figures"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"The evaluation's report lacks something ({error!r}).") from error
    return possible_figures(rows[:MOST_FIGURES])


def possible_figures(rows: Iterable[Mapping[str, Any]]) -> list[CheckpointFigure]:
    """Return the rows that can be true."""
    figures = []
    for row in rows:
        try:
            figures.append(CheckpointFigure(**{column.name: row[column.name] for column in COLUMNS}))
        except (KeyError, TypeError, ValueError) as error:
            logger.debug("A figure is left out: %s", error)
    return figures


def merged_figures(older: Iterable[CheckpointFigure], newer: Iterable[CheckpointFigure]) -> list[CheckpointFigure]:
    """Return the figures of both by epoch, at most `KEPT_ROWS`; of two evaluations of an epoch the newer one's."""
    newer = list(newer)
    replaced = {figure.epoch for figure in newer}
    both = [*(figure for figure in older if figure.epoch not in replaced), *newer]
    return sorted(both, key=lambda figure: figure.epoch)[-KEPT_ROWS:]


def newest_figures(figures: Sequence[CheckpointFigure]) -> list[CheckpointFigure]:
    """Return the figures of the newest evaluated epoch."""
    newest = max((figure.epoch for figure in figures), default=0)
    return [figure for figure in figures if figure.epoch == newest]


def write_figures(figures: Sequence[CheckpointFigure], folder: Path) -> Path | None:
    """Write the figures; None if there are none."""
    return write_rows(list(map(asdict, figures)), FIGURE_SCHEMA, folder / FIGURES_FILE) if figures else None


def read_figures(folder: Path) -> list[CheckpointFigure]:
    """Return the figures in a folder, by epoch; none if there is no such file or it is damaged."""
    path = folder / FIGURES_FILE
    if not path.exists():
        return []
    try:
        rows = read_rows(path, FIGURE_SCHEMA)
    except ValueError as error:
        logger.warning("The figures of evaluations are left out: %s", error)
        return []
    return merged_figures([], possible_figures(rows[-KEPT_ROWS:]))
