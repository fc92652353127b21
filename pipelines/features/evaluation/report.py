"""An evaluation as a file for programs, a table for the terminal, and a page with pictures side by side."""

import base64
import importlib.metadata
import io
import json
import platform
import resource
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.box import SIMPLE
from rich.table import Table

from hub_tools.atomic_files import write_text_whole
from hub_tools.printing.marked_up import escaped
from pipelines.features.evaluation.comparison import Difference
from pipelines.features.evaluation.figures import CONFIDENCE
from pipelines.features.evaluation.measurement import Measurement
from pipelines.tasks.text_to_image.generation.generation_options import SAMPLER
from pipelines.tasks.text_to_image.image_codes.thumbnails import enlarged, to_picture

FORMAT_VERSION = 1
REPORT_FILE, COMPARISON_FILE, PAGE_FILE = "evaluation.json", "comparison.json", "comparison.html"
MADE_WITH = ("dalle-collab", "torch", "torch-fidelity", "open_clip_torch", "transformers", "numpy")
MOST_PICTURES = 48

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; color: #1a1a1a }}
.scroll {{ overflow-x: auto }}
table {{ border-collapse: collapse; margin: 1rem 0 }}
th, td {{ text-align: right; padding: .3rem .8rem; border-bottom: 1px solid #ddd; white-space: nowrap }}
th:first-child, td:first-child {{ text-align: left; white-space: normal; overflow-wrap: anywhere; min-width: 7rem }}
.pairs {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(17rem, 1fr)); gap: 1.5rem }}
figure {{ margin: 0 }} figcaption {{ margin-top: .3rem; overflow-wrap: anywhere }}
.pair {{ display: flex; gap: .5rem }}
.pair img {{ width: 50%; min-width: 0; aspect-ratio: 1; image-rendering: pixelated }}
</style></head><body>
<h1>{title}</h1>
<p>{sentence}</p>
<div class="scroll"><table><thead><tr><th>figure</th><th>first</th><th>second</th><th>difference</th>
<th>{confidence:.0%} interval</th><th>better</th></tr></thead><tbody>
{rows}
</tbody></table></div>
{pictures}
</body></html>
"""

PICTURES = """<h2>The same prompts and seeds: first left, second right</h2>
<div class="pairs">
{pictures}
</div>"""


@dataclass(frozen=True, kw_only=True)
class EvaluationReport:
    """An evaluation and how it was made."""

    subject: Mapping[str, object]
    """What was evaluated: name, revision, epoch, digest of the weights."""

    settings: Mapping[str, object]
    """Records, drawings, sampler, seed, precision, device."""

    command: str
    """The command that computes it again."""

    measurement: Measurement
    left_out: Mapping[str, str]
    """What could not be computed, and why."""

    seconds: float
    peak_memory_bytes: int

    def facts(self) -> dict[str, object]:
        """Return the report as JSON values."""
        return dict(
            format_version=FORMAT_VERSION,
            subject=dict(self.subject),
            settings=dict(self.settings),
            command=self.command,
            figures=[asdict(figure) for figure in self.measurement.figures],
            left_out=dict(self.left_out),
            seconds=round(self.seconds, 1),
            peak_memory_bytes=self.peak_memory_bytes,
            made_with=made_with(),
        )


def made_with() -> dict[str, str]:
    """Return the versions that figures depend on."""
    versions = {name: importlib.metadata.version(name) for name in MADE_WITH}
    return versions | {"python": platform.python_version(), "processor": torch.backends.cpu.get_cpu_capability()}


def write_report(report: EvaluationReport, folder: Path) -> Path:
    """Write the report; return its file."""
    return _write(folder / REPORT_FILE, report.facts())


def write_comparison(
    first: EvaluationReport, second: EvaluationReport, differences: Sequence[Difference], page: str, folder: Path
) -> tuple[Path, Path]:
    """Write both reports with their differences, and the page; return the files."""
    facts = dict(first=first.facts(), second=second.facts(), differences=[asdict(item) for item in differences])
    path = _write(folder / COMPARISON_FILE, dict(format_version=FORMAT_VERSION, **facts))
    write_text_whole(folder / PAGE_FILE, page)
    return path, folder / PAGE_FILE


def describe(report: EvaluationReport) -> str:
    """Return what was evaluated, in a few words."""
    subject, settings = report.subject, report.settings
    words = [str(subject["name"])]
    words += [f"revision {subject['revision']}"] if subject["revision"] else []
    words += [f"epoch {subject['epoch']}"] if subject.get("epoch") is not None else []
    words += [f"codec {subject['codec']}"] if subject["codec"] else []
    changed = {name: settings[name] for name in SAMPLER if settings.get(name) is not None}
    return ", ".join([*words, str(subject["precision"]), *(f"{name} {value}" for name, value in changed.items())])


def figures_table(report: EvaluationReport) -> Table:
    """Return the figures for people, within 80 columns; `figures_notes` says what they are."""
    table = Table(title=str(report.subject["name"]), box=SIMPLE, pad_edge=False)
    for column in ("figure", "value", f"{CONFIDENCE:.0%} interval", "of", "better"):
        table.add_column(column, justify="right" if column in ("value", "of") else "left", no_wrap=column != "figure")
    for item in report.measurement.figures:
        table.add_row(_in_words(item.name), f"{item.value:.4g}", item.interval, item.basis, item.direction)
    for name in report.left_out:
        table.add_row(_in_words(name), "left out")
    return table


def _in_words(name: str) -> str:
    """Return a figure's name so that a narrow table breaks it between words."""
    return name.replace("_", " ")


def figures_notes(report: EvaluationReport) -> list[str]:
    """Return a line for each figure that has a meaning, and for each that is left out."""
    meanings = {item.name: item.meaning for item in report.measurement.figures if item.meaning}
    reasons = {name: f"left out: {reason}" for name, reason in report.left_out.items()}
    return [f"{_in_words(name)}: {said}" for name, said in (meanings | reasons).items()]


def differences_table(first: str, second: str, differences: Sequence[Difference]) -> Table:
    """Return a comparison for people."""
    table = Table(title=f"{second} (second) beside {first} (first)", box=SIMPLE, pad_edge=False)
    for column in ("figure", "first", "second", "difference", f"{CONFIDENCE:.0%} interval", "better"):
        table.add_column(column, justify="left" if column in ("figure", "better") else "right")
    for item in differences:
        table.add_row(*_cells(item))
    return table


def comparison_page(
    names: tuple[str, str],
    prompts: Sequence[str],
    measurements: tuple[Measurement, Measurement],
    differences: Sequence[Difference],
) -> str:
    """Return a page that needs no other file: the differences, and pictures side by side."""
    rows = ("<tr>" + "".join(f"<td>{escaped(cell)}</td>" for cell in _cells(item)) + "</tr>" for item in differences)
    first, second = (item.pictures for item in measurements)
    pairs = [] if first is None or second is None else list(zip(prompts, first, second, strict=False))[:MOST_PICTURES]
    pictures = [
        f'<figure><div class="pair">{_image(a, "first")}{_image(b, "second")}</div>'
        f"<figcaption>{escaped(prompt)}</figcaption></figure>"
        for prompt, a, b in pairs
    ]
    return PAGE.format(
        title="Two evaluations side by side",
        sentence=f"First: {escaped(names[0])}. Second: {escaped(names[1])}.",
        confidence=CONFIDENCE,
        rows="\n".join(rows),
        pictures=PICTURES.format(pictures="\n".join(pictures)) if pictures else "",
    )


def report_of(
    subject: dict[str, object],
    settings: dict[str, object],
    measurement: Measurement,
    left_out: dict[str, str],
    started: float,
) -> EvaluationReport:
    """Return the report of what was measured since `started`, by `time.monotonic`, by this program."""
    return EvaluationReport(
        subject=subject,
        settings=settings,
        command=shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        measurement=measurement,
        left_out=left_out,
        seconds=time.monotonic() - started,
        peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


def _write(path: Path, facts: Mapping[str, object]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text_whole(path, json.dumps(facts, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    return path


def _cells(item: Difference) -> tuple[str, ...]:
    interval = "0" if item.low == item.high == 0 else f"{item.low:+.3g} to {item.high:+.3g}"
    difference = "0" if item.difference == 0 else f"{item.difference:+.3g}"
    return _in_words(item.name), f"{item.first:.4g}", f"{item.second:.4g}", difference, interval, item.verdict


def _image(picture: torch.Tensor, name: str) -> str:
    content = io.BytesIO()
    enlarged(to_picture(picture.float())).save(content, format="png")
    return f'<img alt="{name}" src="data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}">'
