"""Identifies a training state bit for bit: its tensors in one order, their hashes, and the digest that peers sign.

Why honest peers have the same digest: a round of gradients gives all its members the same bytes (the average as it came
out of the codec, `runner.TrustedAllReduceRunner`), and the optimizer runs on the CPU, in arithmetic that gives the same
bits on all processors (`equal_arithmetic.py`): its digests are frozen, and the same with and without AVX2 and AVX-512,
with any number of threads, and on ARM (`tests/golden/frozen_arithmetic.py`). So peers that started
from one state and missed no part of a round stay equal in every bit: three real peers, four epochs, 43 of 43 tensors,
without compression and in 8 bits, with 8-bit statistics. With hivemind's rounds (each member adds its own difference)
it was 15 of 43 and 0 of 43. Peers do diverge after a part that only some members could get in a round's last attempt;
`votes` says how a newcomer handles digests that differ.

The digest covers the run, the epoch, and of every tensor its name, type, shape and bytes: parameters and optimizer
statistics, also 8-bit ones, as they are. It does not cover the learning rate and its kind: they follow from the run's
settings and the epoch, and no peer takes them from another.
"""

import functools
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

import torch

from hub_tools.foreign.json_texts import parse_json

ALIGNMENT = 64
"""Alignment of tensors in one block of memory, in bytes; it suits every tensor type."""

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """One tensor of the state and its place in a block of memory for all of them."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int
    """Offset in bytes."""

    num_bytes: int

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')} {self.shape}"


@dataclass(frozen=True, kw_only=True)
class StateManifest:
    """The hashes of a state's tensors; its own hash is the digest that peers sign."""

    swarm_id: str
    epoch: int
    tensors: tuple[tuple[str, str, str], ...]
    """Name, type and shape as text, and SHA-256 as 64 hexadecimal digits, of every tensor, in the state's order."""

    def encode(self) -> bytes:
        """Return the canonical text of these hashes."""
        return self._text

    @functools.cached_property
    def _text(self) -> bytes:
        values = dict(format=FORMAT, swarm_id=self.swarm_id, epoch=self.epoch, tensors=self.tensors)
        return json.dumps(values, sort_keys=True, separators=(",", ":")).encode()

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of the text, as 64 hexadecimal digits."""
        return hashlib.sha256(self._text).hexdigest()

    def hashes(self) -> tuple[str, ...]:
        """Return the tensors' hashes in the state's order."""
        return tuple(tensor_hash for _, _, tensor_hash in self.tensors)

    @classmethod
    def decode(cls, text: bytes) -> Self:
        """Read a manifest from another peer.

        Raises:
            ValueError: it is invalid.
        """
        try:
            values = parse_json(text)
            if values["format"] != FORMAT:
                raise ValueError(f"its format is {values['format']!r}, this package knows {FORMAT}")
            tensors = tuple((str(name), str(kind), str(tensor_hash)) for name, kind, tensor_hash in values["tensors"])
            return cls(swarm_id=str(values["swarm_id"]), epoch=int(values["epoch"]), tensors=tensors)
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"This is not the manifest of a training state: {error!r}.") from error


def named_state(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Return the tensors of the training state, without copies, in the order that all peers share."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    named = {}
    for index, parameter in enumerate(parameters):
        named[f"parameter.{index}"] = parameter.detach()
        for key, value in sorted(optimizer.state[parameter].items()):
            if isinstance(value, torch.Tensor):
                named[f"parameter.{index}.{key}"] = value
    return named


def state_layout(tensors: Mapping[str, torch.Tensor]) -> tuple[TensorSpec, ...]:
    """Return names, types and shapes of a state and a place for each tensor."""
    specs, offset = [], 0
    for name, tensor in tensors.items():
        num_bytes = tensor.numel() * tensor.element_size()
        specs.append(
            TensorSpec(name=name, dtype=tensor.dtype, shape=tuple(tensor.shape), offset=offset, num_bytes=num_bytes)
        )
        offset = -(-(offset + num_bytes) // ALIGNMENT) * ALIGNMENT
    return tuple(specs)


def hash_tensor(spec: TensorSpec, values: memoryview) -> str:
    """Return the SHA-256 of a tensor's name, type, shape and little-endian bytes."""
    result = hashlib.sha256(f"{spec.name} {spec}\n".encode())
    result.update(values)
    return result.hexdigest()


def make_manifest(swarm_id: str, epoch: int, layout: Iterable[TensorSpec], hashes: Iterable[str]) -> StateManifest:
    """Return the manifest of a state."""
    tensors = tuple((spec.name, str(spec), tensor_hash) for spec, tensor_hash in zip(layout, hashes, strict=True))
    return StateManifest(swarm_id=swarm_id, epoch=epoch, tensors=tensors)


def check_manifest(manifest: StateManifest, layout: tuple[TensorSpec, ...], *, swarm_id: str, epoch: int) -> None:
    """Check that another peer's manifest describes a state that fits this peer's.

    Raises:
        ValueError: it is of another run, epoch, model or optimizer; the first difference is named.
    """
    if (manifest.swarm_id, manifest.epoch) != (swarm_id, epoch):
        raise ValueError(
            f"It is of epoch {manifest.epoch} of {manifest.swarm_id}; expected epoch {epoch} of {swarm_id}."
        )
    if len(manifest.tensors) != len(layout):
        raise ValueError(f"It has {len(manifest.tensors)} tensors; expected {len(layout)}.")
    for (name, kind, _), spec in zip(manifest.tensors, layout, strict=True):
        if (name, kind) != (spec.name, str(spec)):
            raise ValueError(
                f"It has {name} of {kind}; expected {spec.name} of {spec}. That peer has another model, optimizer_bits "
                "or package version."
            )
