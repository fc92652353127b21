"""What tensors look like on the wire: the run's compression, and a check that it survives the round trip."""

import math

import numpy as np
import torch
from hivemind.compression import (
    CompressionBase,
    CompressionInfo,
    Float16Compression,
    NoCompression,
    SizeAdaptiveCompression,
    Uniform8BitQuantization,
    deserialize_torch_tensor,
)
from hivemind.compression.quantization import average_buckets

from pipelines.training.training_run import TrainingRun


class FiniteUniform8BitQuantization(Uniform8BitQuantization):
    """hivemind's uniform 8-bit codec on the wire, which refuses values that are not finite.

    The range is +-3 standard deviations; values beyond it are clipped and the bucket means are sent along.
    """

    def quantize(self, tensor: torch.Tensor, allow_inplace: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Return 8-bit indices of the tensor's shape and the 256 float32 bucket means.

        Raises:
            ValueError: the tensor has a value that is not finite.
        """
        values = tensor.to(torch.float32)
        mean = values.mean()
        centred = values - mean
        deviation = torch.linalg.vector_norm(centred) / math.sqrt(max(1, values.numel() - 1))
        if not torch.isfinite(deviation):
            raise ValueError("A tensor with values that are not finite was to be averaged; it is kept at home.")
        scale = torch.clamp(self.RANGE_IN_SIGMAS * deviation / self.n_bins, min=torch.finfo(torch.float32).tiny)
        indices = torch.clamp(torch.round(centred / scale) + self.n_bins // 2, 0, self.n_bins - 1).to(torch.uint8)
        buckets = average_buckets(values, indices, self.n_bins)
        return indices.numpy(), buckets.numpy().astype(self.codebook_dtype)


def averaging_compression(run: TrainingRun) -> CompressionBase:
    """Return the codec that all peers of the run use on the wire (paper, section 3.3)."""
    if run.averaging_compression == "none":
        return NoCompression()
    if run.averaging_compression == "float16":
        return Float16Compression()
    return SizeAdaptiveCompression(
        threshold=run.min_8bit_elements, less=Float16Compression(), greater_equal=FiniteUniform8BitQuantization()
    )


def check_codec(compression: CompressionBase, num_elements: int = 2**16) -> None:
    """Send a vector through the codec and back, as a receiving peer would.

    hivemind 1.1.12 with numpy 2.4 fails here, on the receiving side only, and silently loses half of every round.

    Raises:
        RuntimeError: the vector does not come back.
    """
    values = torch.linspace(-1.0, 1.0, num_elements)
    info = CompressionInfo.from_tensor(values, key=0)
    try:
        received = deserialize_torch_tensor(compression.compress(values, info, allow_inplace=False))
    except TypeError as error:
        raise RuntimeError(
            f"The wire codec fails on this machine ({error}; numpy {np.__version__}), so averaging would silently lose "
            "data. Install a numpy that hivemind 1.1.12 works with: pip install 'numpy<2.4'"
        ) from error
    error_norm = (received - values).norm() / values.norm()
    if not error_norm < 0.05:
        raise RuntimeError(f"The wire codec returns a vector that is off by {error_norm:.0%}; expected less than 5 %.")
