"""What came of an evaluation. Pure."""

from dataclasses import dataclass, field

import torch

from pipelines.evaluation.figures import FigureKind, bootstrapped_mean, t_interval
from pipelines.training.metrics.evaluation.checkpoint_figures import Figure

PICTURES_AT_ONCE = 64


@dataclass(kw_only=True)
class Measurement:
    """What came of an evaluation: figures, and what they are made of, for comparisons."""

    weights: str = ""
    """Digest of the model's weights, if pictures were drawn with it."""

    figures: list[Figure] = field(default_factory=list)
    items: dict[str, torch.Tensor] = field(default_factory=dict)
    """By figure: its values for each record or prompt, `(item)`."""

    drawings: dict[str, list[float]] = field(default_factory=dict)
    """By figure: its values for each drawing."""

    pictures: torch.Tensor | None = None
    """The first drawing of each prompt, `(prompt, 3, height, width)` float16 in [0, 1]."""

    def add_items(self, kind: FigureKind, values: torch.Tensor) -> None:
        """Add a figure that is a mean over items."""
        self.items[kind.name] = values
        self.figures.append(kind.figure(*bootstrapped_mean(values), len(values)))

    def add_whole(self, kind: FigureKind, value: float, number: int) -> None:
        """Add a figure of all of `number` items together."""
        self.drawings[kind.name] = [value]
        self.figures.append(kind.figure(value, value, value, number))

    def add_drawings(self, kind: FigureKind, values: list[float]) -> None:
        """Add a figure that is a mean over drawings."""
        self.drawings[kind.name] = values
        self.figures.append(kind.figure(*t_interval(values), len(values)))
