"""What came of an evaluation. Pure."""

from dataclasses import dataclass, field

import torch

from pipelines.features.evaluation.figures import bootstrapped_mean, t_interval
from pipelines.features.publishing.metrics.evaluation.checkpoint_figures import Figure

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

    def add_items(self, name: str, items: str, better: str, meaning: str, values: torch.Tensor) -> None:
        """Add a figure that is a mean over items; `name` to `meaning` are those of `Figure`."""
        self.items[name] = values
        self._add(name, items, better, meaning, bootstrapped_mean(values), len(values))

    def add_whole(self, name: str, items: str, better: str, meaning: str, value: float, number: int) -> None:
        """Add a figure of all of `number` items together."""
        self.drawings[name] = [value]
        self._add(name, items, better, meaning, (value, value, value), number)

    def add_drawings(self, name: str, items: str, better: str, meaning: str, values: list[float]) -> None:
        """Add a figure that is a mean over drawings."""
        self.drawings[name] = values
        self._add(name, items, better, meaning, t_interval(values), len(values))

    def _add(
        self, name: str, items: str, better: str, meaning: str, interval: tuple[float, float, float], number: int
    ) -> None:
        shared = dict(name=name, items=items, better=better, meaning=meaning, num_items=number)
        self.figures.append(Figure(**shared, **dict(zip(("value", "low", "high"), interval, strict=True))))
