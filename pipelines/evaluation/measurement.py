"""What came of an evaluation. Pure."""

from dataclasses import dataclass, field

import torch

from pipelines.evaluation.figures import Figure, FigureKind

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
        self.figures.append(kind.of_items(values))

    def add_whole(self, kind: FigureKind, value: float, number: int) -> None:
        """Add a figure of all of `number` items together."""
        self.drawings[kind.name] = [value]
        self.figures.append(kind.of_all(value, number))

    def add_drawings(self, kind: FigureKind, values: list[float]) -> None:
        """Add a figure that is a mean over drawings."""
        self.drawings[kind.name] = values
        self.figures.append(kind.of_drawings(values))
