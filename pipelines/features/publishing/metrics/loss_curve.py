"""The run's losses and peers as a picture."""

import gc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def draw_loss_curve(
    history: Sequence[Mapping[str, object]], path: Path, evaluations: Sequence[Mapping[str, object]] = ()
) -> None:
    """Draw losses and active peers against the epoch; an empty history gives empty axes. Works in any thread."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogFormatter

    epochs = [point["epoch"] for point in history]
    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    upper.plot(epochs, [point["loss"] for point in history], color="#4c72b0", label="training")
    if evaluations:
        held_out = [row["loss"] for row in evaluations]
        upper.plot([row["epoch"] for row in evaluations], held_out, ".-", color="#55a868", label="held out")
        ends = [[_end(row, name) for row in evaluations] for name in ("low", "high")]
        upper.fill_between([row["epoch"] for row in evaluations], *ends, color="#55a868", alpha=0.25, linewidth=0)
        upper.legend()
    upper.set_ylabel("loss (nats)")
    upper.set_yscale("log")
    upper.yaxis.set_major_formatter(LogFormatter())  # 6, not 6 × 10⁰
    upper.yaxis.set_minor_formatter(LogFormatter())
    upper.grid(alpha=0.3, which="both")
    lower.step(epochs, [point["num_peers"] for point in history], color="#dd8452", where="post")
    lower.set_ylabel("peers")
    lower.set_ylim(bottom=0)
    lower.yaxis.get_major_locator().set_params(integer=True)
    lower.set_xlabel("epoch")
    lower.grid(alpha=0.3)
    figure.savefig(path, dpi=110)
    del figure, upper, lower
    gc.collect()  # a figure refers to itself and holds megabytes: the auxiliary peer draws thousands


def _end(evaluation: Mapping[str, Any], name: str) -> float:
    """Return an end of an evaluation's interval; the loss itself where there is none."""
    end = evaluation.get(name)
    return evaluation["loss"] if end is None else end
