"""How fast this machine multiplies the model's matrices and reads them, sampled throughout a run."""

import torch
import torch.nn.functional as F
from measurement import Row, median_seconds

from modeling_dalle_collab import DalleCollabConfig
from pipelines.features.memory_estimate.models.dalle_collab_compute import layer_shapes, layer_weights


class MachineRates:
    """The rates that turn work and bytes into the least seconds; the fastest sample of a run, for it was possible.

    As many different matrices are read in turn as the model has, so that where they fit a cache, the rate is the
    cache's: the model could have that too.
    """

    def __init__(self, config: DalleCollabConfig, num_rows: int) -> None:
        shapes = layer_shapes(config)
        self.num_rows, self.layer_weights = num_rows, layer_weights(config)
        self.groups = [[torch.randn(shape) for shape in shapes] for _ in range(config.num_shared_groups)]
        self.inputs = {columns: torch.randn(num_rows, columns) for _, columns in shapes}
        self.flops_per_second: list[float] = []
        self.bytes_per_second: list[float] = []

    def sample(self) -> None:
        """Measure both rates once more."""
        flops = 2 * self.num_rows * self.layer_weights
        self.flops_per_second.append(flops / median_seconds(lambda: self._multiply(1, self.num_rows), 3))
        num_bytes = 4 * len(self.groups) * self.layer_weights
        self.bytes_per_second.append(num_bytes / median_seconds(lambda: self._multiply(len(self.groups), 1), 3))

    @torch.no_grad()
    def _multiply(self, num_groups: int, num_rows: int) -> None:
        for group in self.groups[:num_groups]:
            for matrix in group:
                F.linear(self.inputs[matrix.shape[1]][:num_rows], matrix)

    def least_seconds(self, flops: float, num_bytes: float = 0.0) -> float:
        """Return how long so much matrix work takes, or so many bytes, whichever takes longer."""
        return max(flops / max(self.flops_per_second), num_bytes / max(self.bytes_per_second))

    def rows(self, case: str) -> list[Row]:
        """Return the first and the last sample, which show whether the machine changed during the run."""
        figures = {
            "matrix products": ("GFLOP/s", self.flops_per_second),
            "weights read": ("GB/s", self.bytes_per_second),
        }
        return [
            Row(case=case, metric=f"{metric}, {when}", unit=unit, ours=samples[index] / 1e9)
            for metric, (unit, samples) in figures.items()
            for when, index in (("first", 0), ("last", -1))
        ]
