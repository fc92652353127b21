"""A copy of the training state that stays unchanged while newcomers download it.

The live state changes with every optimizer step; downloading it, as hivemind does, mixes tensors of several epochs.
"""

import time
from collections.abc import Iterator, Mapping

import torch

from pipelines.core.equal_arithmetic import is_finite
from pipelines.core.state.digest import (
    StateManifest,
    TensorSpec,
    hash_tensor,
    make_manifest,
    state_layout,
)

CHUNK_BYTES = 2**17


class StateSnapshot:
    """A state, complete with its manifest or being written.

    There is one writer at a time; readers in all threads notice when their snapshot was replaced.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor], swarm_id: str) -> None:
        self.layout, self.swarm_id = state_layout(tensors), swarm_id
        last = self.layout[-1]
        block = torch.empty(max(1, last.offset + last.num_bytes), dtype=torch.uint8)
        self._bytes = block.numpy().data
        self.tensors = {
            spec.name: block[spec.offset : spec.offset + spec.num_bytes].view(spec.dtype).view(spec.shape)
            for spec in self.layout
        }
        self.generation = 0
        """Changes with the snapshot. Even: complete, or empty at 0. Odd: being written. Readers compare it before and
        after reading."""

        self._manifest: StateManifest | None = None
        self._held_until = 0.0
        self._verified: tuple[int, dict[int, str]] = (0, {})

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(spec.num_bytes for spec in self.layout)

    def manifest(self) -> StateManifest | None:
        """Return the manifest of the snapshot, or None while there is none or it is being written."""
        return self._manifest

    def hold(self, seconds: float) -> None:
        """Ask the writer to keep the snapshot for this many seconds from now: somebody is reading it.

        The last call counts: a reader that is done asks for less, and one that is not asks again with every chunk.
        """
        self._held_until = time.monotonic() + seconds

    @property
    def is_held(self) -> bool:
        """Whether a reader has asked for the snapshot to stay."""
        return time.monotonic() < self._held_until

    @property
    def verified(self) -> dict[int, str]:
        """Hashes of the tensors, by number, verified since writing began; filled by the writer."""
        if self._verified[0] != self.generation:
            self._verified = (self.generation, {})
        return self._verified[1]

    def begin(self) -> None:
        """Start writing; the previous snapshot is gone."""
        if self.generation % 2 == 0:
            self._manifest = None
            self.generation += 1

    def fill(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Copy a state, which must not change meanwhile."""
        self._verified = (self.generation, {})
        for name, own in self.tensors.items():
            own.copy_(tensors[name])

    def seal(self, epoch: int) -> StateManifest:
        """Check and hash the copy and offer it; SHA-256 alone takes 1.3 s of one core per GB.

        Raises:
            ValueError: a value is not finite; such a state is not offered.
        """
        for spec in self.layout:
            if not is_finite(self.tensors[spec.name]):
                raise ValueError(f"{spec.name} of the state of epoch {epoch} is not finite; it is not offered.")
        manifest = make_manifest(self.swarm_id, epoch, self.layout, [self.hash(spec) for spec in self.layout])
        self.complete(manifest)
        return manifest

    def complete(self, manifest: StateManifest) -> None:
        """Offer the written state under a manifest that is known to be correct."""
        assert self.generation % 2 == 1, "nothing was written"
        self.generation += 1
        self._manifest = manifest

    def hash(self, spec: TensorSpec) -> str:
        """Return the current hash of a tensor."""
        return hash_tensor(spec, self.memory(spec))

    def memory(self, spec: TensorSpec) -> memoryview:
        """Return the bytes of a tensor, for writing too."""
        return self._bytes[spec.offset : spec.offset + spec.num_bytes]

    def read(self, generation: int, spec: TensorSpec) -> Iterator[bytearray]:
        """Yield the bytes of a tensor in chunks; fewer if the snapshot is no longer that of `generation`."""
        memory = self.memory(spec)
        for start in range(0, spec.num_bytes, CHUNK_BYTES):
            chunk = bytearray(memory[start : start + CHUNK_BYTES])
            if self.generation != generation:
                return
            yield chunk
