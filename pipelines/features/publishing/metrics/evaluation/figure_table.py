"""An evaluation of a checkpoint as Markdown, for cards and reports."""

from collections.abc import Sequence

from hub_tools.printing.marked_up import markdown_table
from pipelines.features.publishing.metrics.evaluation.checkpoint_figures import CheckpointFigure, newest_figures


def evaluation_section(figures: Sequence[CheckpointFigure]) -> str:
    """Return the section of a document about the newest evaluation, with the command that computes it again.

    Empty without an evaluation.
    """
    newest = newest_figures(figures)
    if not newest:
        return ""
    first = newest[0]
    few = " These are too few to tell small differences." if first.is_few else ""
    rows = [(f"`{one.name}`", f"{one.value:.4g}", one.interval or "-", one.basis, one.direction) for one in newest]
    table = markdown_table(("figure", "value", "interval", "of", "better"), rows)
    return f"""## Evaluation

The checkpoint of epoch {first.epoch}, with intervals of 95 %, on {first.num_records:,} held-out records.{few}

{table}

What they mean is in the project's docs/evaluation.md. The same figures again:

```bash
{first.command}
```"""
