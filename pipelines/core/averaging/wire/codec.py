"""What tensors look like on the wire: the run's compression, strict reading, and a check that both work here."""

import math
from collections.abc import Iterable

import numpy as np
import torch
from hivemind.compression import (
    BlockwiseQuantization,
    CompressionBase,
    CompressionInfo,
    Float16Compression,
    NoCompression,
    SizeAdaptiveCompression,
)
from hivemind.compression.adaptive import AdaptiveCompressionBase
from hivemind.proto import runtime_pb2

from pipelines.core.averaging.reduce.suspects import Misbehaviour, PartRefusedError
from pipelines.core.block_quantisation import dequantise, quantise
from pipelines.core.equal_arithmetic import is_finite
from pipelines.core.run.training_run import TrainingRun

BLOCK_SIZE = 4096
"""Values that share a scale in the block-wise codec; hivemind's own size."""

KEPT_AT_HOME = "A tensor to be averaged has non-finite values; it is not sent."


class Blockwise8BitCodec(BlockwiseQuantization):
    """Block-wise 8-bit codec (Dettmers et al., 2021), which refuses values that are not finite.

    Every 4096 values have a scale of their own, and the levels lie closer together towards zero: off by 1 to 2 %
    whatever the distribution. On the wire are the float32 scales, then a byte a value; hivemind's own sends the levels
    along, too, which are always the same.
    """

    def compress(self, tensor: torch.Tensor, info: CompressionInfo, allow_inplace: bool = False) -> runtime_pb2.Tensor:
        """Return the message for a tensor.

        Raises:
            ValueError: the tensor has a value that is not finite.
        """
        values = tensor.detach().to(torch.float32)
        if not is_finite(values):
            raise ValueError(KEPT_AT_HOME)
        scales = torch.empty(_num_blocks(values.numel()))
        indices = torch.empty(values.numel(), dtype=torch.uint8)
        quantise(values.reshape(-1), BLOCK_SIZE, True, indices, scales)
        return runtime_pb2.Tensor(
            buffer=scales.numpy().tobytes() + indices.numpy().tobytes(),
            size=tensor.shape,
            requires_grad=tensor.requires_grad,
            dtype="float32",
            compression=self.compression_type,
        )

    def extract(self, serialized_tensor: runtime_pb2.Tensor) -> torch.Tensor:
        """Return the values; the buffer's length has been checked.

        Raises:
            PartRefusedError: a scale is not finite or negative.
        """
        num_blocks = _num_blocks(math.prod(serialized_tensor.size))
        scales = _array(serialized_tensor.buffer, np.float32, 0, num_blocks)
        if not (torch.isfinite(scales).all() and (scales >= 0).all()):
            raise PartRefusedError(Misbehaviour.NOT_FINITE, "a block's scale is not a finite, non-negative number")
        indices = _array(serialized_tensor.buffer, np.uint8, 4 * num_blocks, -1)
        return dequantise(indices, BLOCK_SIZE, True, scales).reshape(tuple(serialized_tensor.size))


def averaging_compression(run: TrainingRun) -> CompressionBase:
    """Return the codec that all peers of the run use on the wire (paper, section 3.3)."""
    if run.averaging_compression == "none":
        return NoCompression()
    if run.averaging_compression == "float16":
        return Float16Compression()
    large = Blockwise8BitCodec()
    return SizeAdaptiveCompression(threshold=run.min_8bit_elements, less=Float16Compression(), greater_equal=large)


def bytes_on_the_wire(tensors: Iterable[torch.Tensor], compression: CompressionBase) -> float:
    """Return about how many bytes a vector takes on the wire."""
    return sum(
        tensor.nbytes * compression.estimate_compression_ratio(CompressionInfo.from_tensor(tensor, key=index))
        for index, tensor in enumerate(tensors)
    )


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
        raise PartRefusedError(Misbehaviour.WRONG_SHAPE, f"{tuple(message.size)[:8]}; expected {tuple(shape)}")
    if (message.compression, message.dtype, len(message.buffer)) != (codec.compression_type, "float32", num_bytes):
        seen = f"{len(message.buffer)} bytes of {message.dtype[:16]!r} in codec {message.compression}"
        raise PartRefusedError(Misbehaviour.UNREADABLE, f"{seen}; expected {num_bytes} in {codec.compression_type}")
    values = codec.extract(message)
    if not is_finite(values):
        raise PartRefusedError(Misbehaviour.NOT_FINITE, "a part with nan or infinity")
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
        return 4 * _num_blocks(num_elements) + num_elements
    return num_elements * (2 if isinstance(codec, Float16Compression) else 4)


def _num_blocks(num_elements: int) -> int:
    return -(-num_elements // BLOCK_SIZE)


def _array(buffer: bytes, kind: type[np.generic], offset: int, count: int) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(buffer, offset=offset, count=count, dtype=kind).copy())
