"""What tensors look like on the wire: the run's compression, strict reading, and a check that both work here."""

import math
from functools import cache

import numpy as np
import torch
from bitsandbytes import functional as quantization  # here, so that it is loaded before averagers are forked
from hivemind.compression import (
    BlockwiseQuantization,
    CompressionBase,
    CompressionInfo,
    Float16Compression,
    NoCompression,
    SizeAdaptiveCompression,
    Uniform8BitQuantization,
)
from hivemind.compression.adaptive import AdaptiveCompressionBase
from hivemind.compression.quantization import average_buckets
from hivemind.proto import runtime_pb2

from pipelines.training.averaging.reduce.finite_values import is_finite
from pipelines.training.averaging.reduce.suspects import Offence, PartRefusedError
from pipelines.training.run.training_run import TrainingRun

NUM_BUCKETS = 256
BLOCK_SIZE = 4096
"""Values that share a scale in the block-wise codec; hivemind's own size."""

KEPT_AT_HOME = "A tensor to be averaged has non-finite values; it is not sent."


class FiniteUniform8BitQuantization(Uniform8BitQuantization):
    """hivemind's uniform 8-bit codec on the wire, which refuses values that are not finite.

    The range is +-3 standard deviations; values beyond it are clipped and the bucket means are sent along. Off by 2 %
    on Gaussian values, by a quarter to a half on heavy-tailed or sparse ones.
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
            raise ValueError(KEPT_AT_HOME)
        scale = torch.clamp(self.RANGE_IN_SIGMAS * deviation / self.n_bins, min=torch.finfo(torch.float32).tiny)
        bins = centred.div_(scale).round_().add_(self.n_bins // 2).clamp_(0, self.n_bins - 1)
        indices = bins.to(torch.uint8)
        buckets = average_buckets(values, indices, self.n_bins)
        return indices.numpy(), buckets.numpy().astype(self.codebook_dtype)

    def extract(self, serialized_tensor: runtime_pb2.Tensor) -> torch.Tensor:
        """Return the values; the buffer's length has been checked. hivemind's own fails with numpy 2.4."""
        buckets = _floats(serialized_tensor.buffer, 8, NUM_BUCKETS)
        indices = _indices(serialized_tensor.buffer, 8 + 4 * NUM_BUCKETS)
        # Six times as fast as buckets[indices.long()].
        return buckets.index_select(0, indices.int()).reshape(tuple(serialized_tensor.size))


class FiniteBlockwise8BitQuantization(BlockwiseQuantization):
    """hivemind's block-wise 8-bit codec on the wire, which refuses values that are not finite.

    Every 4096 values have a scale of their own and the buckets lie closer towards zero (Dettmers et al., 2021): off by
    about 1 % whatever the distribution.
    """

    def quantize(
        self, tensor: torch.Tensor, allow_inplace: bool = False
    ) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
        """Return 8-bit indices of the tensor's shape, and every block's largest magnitude with the codebook.

        Raises:
            ValueError: the tensor has a value that is not finite.
        """
        if not is_finite(tensor):
            raise ValueError(KEPT_AT_HOME)
        return super().quantize(tensor, allow_inplace)

    def extract(self, serialized_tensor: runtime_pb2.Tensor) -> torch.Tensor:
        """Return the values; the buffer's length has been checked.

        Raises:
            PartRefusedError: a scale is not finite or negative, or the codebook is not the one there is.
        """
        num_blocks = _num_blocks(math.prod(serialized_tensor.size))
        sizes = np.frombuffer(serialized_tensor.buffer, count=2, dtype=np.int64).tolist()
        scales = _floats(serialized_tensor.buffer, 16, num_blocks)
        codebook = _floats(serialized_tensor.buffer, 16 + 4 * num_blocks, NUM_BUCKETS)
        if sizes != [num_blocks, NUM_BUCKETS] or not torch.equal(codebook, _codebook()):
            raise PartRefusedError(Offence.UNREADABLE, f"{sizes} scales and buckets, or an unknown codebook")
        if not (torch.isfinite(scales).all() and (scales >= 0).all()):
            raise PartRefusedError(Offence.NOT_FINITE, "a block's scale is not a finite, non-negative number")
        indices = _indices(serialized_tensor.buffer, 16 + 4 * (num_blocks + NUM_BUCKETS))
        values = quantization.dequantize_blockwise(indices, absmax=scales, code=codebook, blocksize=BLOCK_SIZE)
        return values.reshape(tuple(serialized_tensor.size))


def averaging_compression(run: TrainingRun) -> CompressionBase:
    """Return the codec that all peers of the run use on the wire (paper, section 3.3)."""
    if run.averaging_compression == "none":
        return NoCompression()
    if run.averaging_compression == "float16":
        return Float16Compression()
    large = {
        "size_adaptive_8bit": FiniteUniform8BitQuantization,
        "blockwise_8bit": FiniteBlockwise8BitQuantization,
    }[run.averaging_compression]
    return SizeAdaptiveCompression(threshold=run.min_8bit_elements, less=Float16Compression(), greater_equal=large())


def read_part(
    message: runtime_pb2.Tensor, compression: CompressionBase, info: CompressionInfo, shape: torch.Size
) -> torch.Tensor:
    """Return the float32 values of a part from another peer, all of them finite.

    Raises:
        PartRefusedError: shape, type, codec, length or a value is wrong for this part of the vector.
    """
    codec = _codec_for(compression, info)
    num_bytes = _num_bytes(codec, shape.numel())
    if tuple(message.size) != tuple(shape):
        raise PartRefusedError(Offence.WRONG_SHAPE, f"{tuple(message.size)[:8]}; expected {tuple(shape)}")
    if (message.compression, message.dtype, len(message.buffer)) != (codec.compression_type, "float32", num_bytes):
        seen = f"{len(message.buffer)} bytes of {message.dtype[:16]!r} in codec {message.compression}"
        raise PartRefusedError(Offence.UNREADABLE, f"{seen}; expected {num_bytes} in {codec.compression_type}")
    values = codec.extract(message)
    if not is_finite(values):
        raise PartRefusedError(Offence.NOT_FINITE, "a part with nan or infinity")
    return values


def read_buffer(buffer: bytes, compression: CompressionBase, info: CompressionInfo, shape: torch.Size) -> torch.Tensor:
    """Return the values of a part of which only the buffer is proven; else as `read_part`."""
    codec = _codec_for(compression, info)
    message = runtime_pb2.Tensor(
        buffer=buffer, size=shape, dtype="float32", compression=codec.compression_type, requires_grad=False
    )
    return read_part(message, compression, info, shape)


def check_codec(compression: CompressionBase, num_elements: int = 2**16) -> None:
    """Send a vector through the codec and back, as a receiving peer would.

    Raises:
        RuntimeError: the vector does not come back.
    """
    values = torch.linspace(-1.0, 1.0, num_elements)
    info = CompressionInfo.from_tensor(values, key=0)
    message = compression.compress(values, info, allow_inplace=False)
    try:
        received = read_part(message, compression, info, values.shape)
    except (TypeError, ValueError) as error:
        raise RuntimeError(
            f"The wire codec fails on this machine ({error}; numpy {np.__version__}, torch {torch.__version__}), so "
            "averaging would silently lose data. Install the versions that this package requires: pip install -U ."
        ) from error
    error_norm = (received - values).norm() / values.norm()
    if not error_norm < 0.05:
        raise RuntimeError(f"The wire codec returns a vector that is off by {error_norm:.0%}; expected less than 5 %.")


def _codec_for(compression: CompressionBase, info: CompressionInfo) -> CompressionBase:
    return compression.choose_compression(info) if isinstance(compression, AdaptiveCompressionBase) else compression


def _num_bytes(codec: CompressionBase, num_elements: int) -> int:
    """Return the length that a part's buffer must have."""
    if isinstance(codec, BlockwiseQuantization):
        return 16 + 4 * (_num_blocks(num_elements) + NUM_BUCKETS) + num_elements
    if isinstance(codec, Uniform8BitQuantization):
        return 8 + 4 * NUM_BUCKETS + num_elements
    return num_elements * (2 if isinstance(codec, Float16Compression) else 4)


def _num_blocks(num_elements: int) -> int:
    return -(-num_elements // BLOCK_SIZE)


def _floats(buffer: bytes, offset: int, count: int) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(buffer, offset=offset, count=count, dtype=np.float32).copy())


def _indices(buffer: bytes, offset: int) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(buffer, offset=offset, dtype=np.uint8).copy())


@cache
def _codebook() -> torch.Tensor:
    return quantization.create_dynamic_map(signed=True)
