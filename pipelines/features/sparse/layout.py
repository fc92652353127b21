"""Which values of which tensors form a chunk, and how many of each chunk are sent."""

import math
from collections.abc import Sequence

import numpy as np
import torch

MOST_VALUES_OF_A_CHUNK = 2**16
"""Indices within a chunk are kept in 16 bits."""


VECTOR_FACTOR = 16
"""Vectors (biases, scales of norms) send a share so many times as large. Of a model of 125 million parameters they are
one in a thousand; in a run of a small one, with a quarter of their values sent, the held-out loss was 1.1 % lower."""


class ChunkLayout:
    """Tensors of these shapes, each flattened and cut into chunks; all of it follows from settings that peers share.

    `k` of every `chunk` values are sent, and more of vectors. A tensor's last chunk may be shorter, and is the only one
    of a small tensor; it sends as large a share, rounded up.

    Raises:
        ValueError: a setting or a shape is out of its range.
    """

    def __init__(self, shapes: Sequence[Sequence[int]], chunk: int, k: int) -> None:
        if not 1 <= k <= chunk <= MOST_VALUES_OF_A_CHUNK:
            raise ValueError(f"k is {k} and chunk {chunk}; expected 1 <= k <= chunk <= {MOST_VALUES_OF_A_CHUNK}.")
        self.shapes, self.chunk, self.k = tuple(map(tuple, shapes)), chunk, k
        self.tensor_sizes = [math.prod(shape) for shape in self.shapes]
        if min(self.tensor_sizes, default=0) < 1:
            raise ValueError(f"The shapes are {self.shapes}; expected at least one, and no tensor without values.")
        self.k_of_vectors = min(chunk, VECTOR_FACTOR * k)
        is_vector = [sum(size > 1 for size in shape) <= 1 for shape in self.shapes]
        chunks_of_tensors = [-(-size // chunk) for size in self.tensor_sizes]
        ends = np.cumsum(chunks_of_tensors)
        self.chunk_sizes = np.full(ends[-1], chunk, dtype=np.int64)
        """Values of each chunk, in order: (num_chunks,)."""

        self.chunk_sizes[ends - 1] = [(size - 1) % chunk + 1 for size in self.tensor_sizes]
        self._chunk_starts = np.cumsum(self.chunk_sizes) - self.chunk_sizes
        self.tensor_k = [self.k_of_vectors if own else k for own in is_vector]
        """Values sent of every `chunk` of each tensor."""

        self.chunk_counts = -(-np.repeat(self.tensor_k, chunks_of_tensors) * self.chunk_sizes // chunk)
        """Values sent of each chunk: (num_chunks,)."""

        self.is_chunk_of_vector = np.repeat(is_vector, chunks_of_tensors)
        """Whether each chunk is one of a vector: (num_chunks,) bool."""

        self._tensor_ends = np.cumsum(self.chunk_counts)[ends - 1]
        self.num_values, self.num_sent = sum(self.tensor_sizes), int(self._tensor_ends[-1])

    def check_shapes(self, tensors: Sequence[torch.Tensor]) -> None:
        """Raise ValueError unless these are float32 tensors of the layout's shapes."""
        seen = [(tuple(tensor.shape), tensor.dtype) for tensor in tensors]
        if seen != [(shape, torch.float32) for shape in self.shapes]:
            raise ValueError(f"The tensors are {seen}; expected float32 of shapes {self.shapes}.")

    def of_tensors(self, sent: np.ndarray) -> list[np.ndarray]:
        """Cut what there is for each value sent, (num_sent, ...), into the tensors' parts."""
        return np.split(sent, self._tensor_ends[:-1])

    def positions(self, indices: np.ndarray) -> np.ndarray:
        """Return the places in the vector of all tensors: (num_sent,) int64, from the indices in the chunks."""
        return np.repeat(self._chunk_starts, self.chunk_counts) + indices
