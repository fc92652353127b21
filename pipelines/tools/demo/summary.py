"""Results of the demo: figures as `summary.json`, a page, and the loss curve."""

import json
import math
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from PIL import Image
from rich.console import Console
from rich.text import Text

from hub_tools.atomic_files import write_text_whole
from hub_tools.printing.marked_up import escaped
from pipelines.features.publishing.metrics.epoch_summary import EpochSummary
from pipelines.features.publishing.metrics.evaluation.held_out_losses import HeldOutRow, held_out_loss
from pipelines.features.publishing.metrics.loss_curve import draw_loss_curve
from pipelines.tasks.text_to_image.generation.picture_grid import save_picture
from pipelines.tasks.text_to_image.generation.picture_mosaic import draw_picture_mosaic
from pipelines.tools.demo.running_spaces import read_addresses
from pipelines.tools.demo.scenes.caption_judge import SceneScore
from pipelines.tools.demo.whole_line import LineResult

SUMMARY_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
th { text-align: left; padding-right: 1.5rem; vertical-align: top; font-weight: 600; white-space: nowrap }
img { max-width: 100% }
"""


NOTHING_SEEN = EpochSummary(
    epoch=0, loss=math.nan, num_rounds=0, num_peers=0, bytes_sent=0,
    time=0.0, samples_per_second=0.0, share_averaged=0.0, epoch_seconds=0.0, round_seconds=0.0,
)  # fmt: skip
"""The course of a run of which the auxiliary peer's reports were lost, as on a full disk."""


@dataclass(frozen=True, kw_only=True)
class DemoSummary:
    """The demo's figures."""

    scores: Sequence[SceneScore]
    """By kind of scene; empty if there is no judge."""

    num_captions: int
    parameters: int
    epochs: int
    samples: int
    """Samples contributed by all trainers together."""

    loss: float
    share_averaged: float
    """Mean over the epochs of the smallest share of the vector that a peer got averaged."""

    bytes_per_parameter_per_round: float
    """Bytes that one peer sent in one averaging round, by the number of parameters."""

    bytes_per_sample_on_the_wire: float
    """Bytes of the published shards per sample: image codes, captions and metadata."""

    bytes_per_sample_jpeg: float
    """Mean size of a sample's JPEG or PNG."""

    kept: int
    dropped: Mapping[str, int]
    stage_seconds: Mapping[str, float]
    evaluation: HeldOutRow | None
    """The newest held-out loss with its interval; None: the run holds out nothing."""

    def to_json(self) -> str:
        """Return the text of `summary.json`."""
        return json.dumps(asdict(self), indent=2) + "\n"


def mean_picture_bytes(tars: Iterable[Path]) -> float:
    """Return the mean size of the pictures in webdataset tars, in bytes."""
    sizes = []
    for path in tars:
        with tarfile.open(path) as tar:
            sizes += [member.size for member in tar if member.name.endswith((".jpg", ".png", ".webp"))]
    return sum(sizes) / max(1, len(sizes))


def summarise_demo(result: LineResult, *, picture_bytes: float, scores: Sequence[SceneScore] = ()) -> DemoSummary:
    """Combine the figures of the pipeline, of the pictures and of the judge."""
    last = result.history[-1] if result.history else NOTHING_SEEN
    rounds = max(1, last["num_rounds"]) * max(1, last["num_peers"])
    shares = [point["share_averaged"] for point in result.history]
    return DemoSummary(
        scores=scores,
        num_captions=len(result.best_pictures),
        parameters=result.num_parameters,
        epochs=last["epoch"],
        samples=result.num_samples,
        loss=last["loss"],
        share_averaged=sum(shares) / max(1, len(shares)),
        bytes_per_parameter_per_round=last["bytes_sent"] / rounds / result.num_parameters,
        bytes_per_sample_on_the_wire=result.bytes_per_sample,
        bytes_per_sample_jpeg=picture_bytes,
        kept=result.kept,
        dropped=result.dropped,
        stage_seconds=result.stage_seconds,
        evaluation=result.evaluation,
    )


def write_summary(
    folder: Path,
    title: str,
    summary: DemoSummary,
    result: LineResult,
    *,
    grid_title: str,
    faults: Sequence[Sequence[str]] | None = None,
) -> None:
    """Write `grid.png`, `summary.json`, `summary.html` and `loss_curve.png`.

    faults: what is wrong with the best picture of each caption of the grid; None: nobody has judged.
    """
    pictures = [(caption, [Image.open(file).convert("RGB") for file in files]) for caption, files in result.grid]
    save_picture(draw_picture_mosaic(pictures, faults), folder / "grid.png")
    write_text_whole(folder / "summary.json", summary.to_json())
    draw_loss_curve(list(result.history), folder / "loss_curve.png")
    page = _page(title, summary, grid_title, read_addresses(folder), folder)
    write_text_whole(folder / "summary.html", page)


def figure_rows(summary: DemoSummary) -> list[tuple[str, str]]:
    """Return the figures in words, most important first."""
    rows = [
        (
            "training time",
            f"{summary.stage_seconds.get('training', 0):.0f} s of {sum(summary.stage_seconds.values()):.0f} s",
        ),
        ("swarm", f"{summary.epochs} epochs, {summary.samples} samples, {summary.share_averaged:.1%} averaged"),
        ("model", f"{summary.parameters:,} parameters, final loss {summary.loss:.3f}"),
        ("averaging", f"{summary.bytes_per_parameter_per_round:.2f} bytes per parameter, peer and round"),
        (
            "dataset",
            f"{summary.kept} pictures kept, {sum(summary.dropped.values())} dropped; "
            f"{summary.bytes_per_sample_on_the_wire:.0f} bytes per sample, not {summary.bytes_per_sample_jpeg:.0f}",
        ),
    ]
    if summary.evaluation is not None:
        rows.insert(3, ("held-out loss", held_out_loss(summary.evaluation)))
    return [(f"score, {score.kind}", _score_in_words(score)) for score in summary.scores] + rows


def _score_in_words(score: SceneScore) -> str:
    attributes = ", ".join(f"{name} {share:.1%}" for name, share in score.attributes.items())
    return (
        f"{score.exact_match:.1%} ({score.low:.1%} to {score.high:.1%}) of {score.num_captions} captions never trained "
        f"on are exactly right (guessing: {score.chance:.3%}; without CLIP's choice: "
        f"{score.exact_match_without_ranking:.1%}); {attributes}"
    )


def show_end(summary: DemoSummary, folder: Path, repository: str, console: Console, *, is_online: bool = False) -> None:
    """Print the figures, where the pictures are, and one line on how to explore further."""
    for name, value in figure_rows(summary):
        console.print(Text.assemble("  ", (name, "bold"), f": {value}"), highlight=False)
    console.print(f"Look at {folder / 'grid.png'} and {folder / 'summary.html'}.", highlight=False)
    console.print(f"Open the run's pages again: `dalle-collab demo spaces --output {folder}`.", highlight=False)
    draw = f"`dalle-collab generate {repository} 'a caption'` draws more."
    hub = f"`hub-tools serve --root {folder / 'hub'}` shows the Hub in a browser; with its HF_ENDPOINT, "
    console.print(f"To explore: {'' if is_online else hub}{draw}", highlight=False)


def _page(title: str, summary: DemoSummary, grid_title: str, addresses: Mapping[str, str], folder: Path) -> str:
    rows = "".join(f"<tr><th>{escaped(k)}</th><td>{escaped(v)}</td></tr>" for k, v in figure_rows(summary))
    stages = "".join(
        f"<tr><th>{escaped(name.replace('_', ' '))}</th><td>{seconds:.0f} s</td></tr>"
        for name, seconds in summary.stage_seconds.items()
    )
    links = "".join(
        f'<li><a href="{escaped(address)}">{escaped(name.replace("_", " ").capitalize())}</a></li>'
        for name, address in addresses.items()
    )
    command = escaped(f"dalle-collab demo spaces --output {folder}")
    pages = f"<h2>Pages of the run</h2><p>Open while <code>{command}</code> runs:</p><ul>{links}</ul>" if links else ""
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{escaped(title)}</title>
<style>
{SUMMARY_STYLE}
</style>
<h1>{escaped(title)}</h1>
<table>{rows}</table>
{pages}
<h2>{escaped(grid_title)}</h2>
<img src="grid.png" alt="Generated pictures with their captions">
<h2>Loss</h2>
<img src="loss_curve.png" alt="Training loss and number of peers against the epoch">
<h2>Time</h2>
<table>{stages}</table>
</html>
"""
