"""The run's losses and peers as a picture."""

import gc
from collections.abc import Sequence
from pathlib import Path

from pipelines.features.publishing.metrics.epoch_summary import EpochSummary
from pipelines.features.publishing.metrics.evaluation.held_out_losses import HeldOutRow


def draw_loss_curve(history: Sequence[EpochSummary], path: Path, evaluations: Sequence[HeldOutRow] = ()) -> None:
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
        ends = [
            [row["loss"] if (end := row.get(name)) is None else end for row in evaluations] for name in ("low", "high")
        ]
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
