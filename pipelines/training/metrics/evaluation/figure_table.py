"""An evaluation of a checkpoint as Markdown, for cards and reports."""

from collections.abc import Sequence

from pipelines.training.metrics.evaluation.checkpoint_figures import CheckpointFigure, newest_figures


def evaluation_section(figures: Sequence[CheckpointFigure]) -> str:
    """Return the section of a document about the newest evaluation; empty without one."""
    text = figures_markdown(figures)
    return f"## Evaluation\n\n{text}" if text else ""


def figures_markdown(figures: Sequence[CheckpointFigure]) -> str:
    """Return the newest evaluation as a table, with the command that computes it again; empty without one."""
    newest = newest_figures(figures)
    if not newest:
        return ""
    first = newest[0]
    records = f"{first.num_records:,} held-out records"
    few = " These are too few to tell small differences." if first.is_few else ""
    rows = "\n".join(
        f"| `{one.name}` | {one.value:.4g} | {one.interval or '-'} | {one.basis} | {_better(one)} |" for one in newest
    )
    return f"""The checkpoint of epoch {first.epoch}, with intervals of 95 %, on {records}.{few}

| figure | value | interval | of | better |
|---|---|---|---|---|
{rows}

What they mean is in the project's docs/evaluation.md. The same figures again:

```bash
{first.command}
```"""


def _better(figure: CheckpointFigure) -> str:
    return "" if figure.better == "neither" else figure.better
