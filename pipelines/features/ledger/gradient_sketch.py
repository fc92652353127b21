"""A few numbers that stand for a gradient: who computes the gradient of the same records again gets the same ones.

Each is the sum of all values with random signs (Alon, Matias and Szegedy, 1996): the difference of two gradients'
sketches is about as large as that of the gradients, and the sketch of a sum is the sum of the sketches. The signs
are known to everybody, so that a sketch tells what was computed, not that nothing else was sent: rounds are checked by
other means.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from pipelines.core.run.training_run import stable_seed

NUM_SUMS = 8
ROW = 4096
"""Values that have the same signs in all rows, but for a sign of the whole row: a sketch is a product of matrices."""

Sketch = tuple[float, ...]
"""`NUM_SUMS` numbers."""


class GradientSketcher:
    """Makes sketches of gradients of one model."""

    def __init__(self, seed: object) -> None:
        self._seed = seed
        self._signs = torch.from_numpy(self._random("values", (ROW, NUM_SUMS)).astype(np.float32))
        self._row_signs: dict[int, torch.Tensor] = {}

    def sketch(self, gradients: Sequence[torch.Tensor | None], factor: float = 1.0) -> Sketch:
        """The sketch of `factor` times a gradient: float32 tensors in the optimizer's order of the parameters."""
        total = torch.zeros(NUM_SUMS, dtype=torch.float64)
        for number, gradient in enumerate(gradients):
            if gradient is not None:
                total += self._sums(number, gradient.detach().flatten())
        return tuple((factor * total).tolist())

    def _sums(self, number: int, values: torch.Tensor) -> torch.Tensor:
        self._signs = self._signs.to(values.device)
        num_whole = values.numel() // ROW
        rows = [values[: num_whole * ROW].view(num_whole, ROW) @ self._signs]
        if len(rest := values[num_whole * ROW :]):
            rows.append((rest @ self._signs[: len(rest)])[None])
        sums = torch.cat(rows).double().cpu()
        if number not in self._row_signs:
            self._row_signs[number] = torch.from_numpy(self._random(number, sums.shape))
        return (sums * self._row_signs[number]).sum(0)

    def _random(self, label: object, shape: Iterable[int]) -> np.ndarray:
        draw = np.random.Generator(np.random.PCG64(stable_seed(self._seed, "gradient sketch", label)))
        return draw.integers(0, 2, tuple(shape), dtype=np.int8) * np.int8(2) - np.int8(1)


def sketch_difference(one: Sketch, other: Sketch) -> float:
    """How far a gradient is from another one, relative to the other one, as their sketches tell."""
    return float(np.linalg.norm(np.subtract(one, other)) / max(np.linalg.norm(other), np.finfo(np.float64).tiny))
