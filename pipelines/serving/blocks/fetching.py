"""Layers of a run's newest checkpoint, read from the Hub and measured."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from pipelines.serving.blocks.codecs import FLOAT32, encode
from pipelines.serving.blocks.sessions import BlockServer, BlockSession
from pipelines.serving.blocks.spans import Span, load_span, stack_shape, tensor_prefixes
from pipelines.serving.blocks.weights import PublishedModel, find_model
from pipelines.serving.entering import weights_name
from pipelines.swarm.streams.askers import Asker
from pipelines.swarm.streams.quotas import Quota
from pipelines.training.repository.key_list import TrustedKeys
from pipelines.training.repository.snapshot import RunSnapshot

SECONDS_OF_MEASURING = 2.0


@dataclass(frozen=True, kw_only=True)
class ServedLayers:
    """What is served now."""

    server: BlockServer
    epoch: int
    rate: float


class BlockFetch:
    """Reads layers of a run's checkpoints from the Hub, checked against the signed manifest."""

    model: PublishedModel
    """The newest checkpoint that was looked at."""

    epoch: int
    memory: Quota
    """What clients may take, of all checkpoints together; to be set before anything is loaded."""

    def __init__(self, snapshot: RunSnapshot, precision: str, device: str) -> None:
        self.found_new_generation = False
        self._run, self._repository, self._keys = snapshot.run, snapshot.repository, TrustedKeys(snapshot.run)
        self._precision, self._device = precision, device
        self._revision = ""

    def look(self) -> bool:
        """Look for a newer checkpoint; return whether there is one.

        Raises:
            ValueError: there is no checkpoint, or the settings name another organiser.
            CheckpointRefusedError: it is not signed by a publisher of the run.
        """
        snapshot = RunSnapshot.read(self._repository, in_cache=False)
        if not self._keys.accepts(snapshot.run):
            raise ValueError(f"The settings of {self._repository} name another organiser: they are ignored.")
        self.found_new_generation = snapshot.run.generation > self._run.generation
        snapshot = snapshot.trusting(self._keys)
        revision = weights_name(snapshot)
        if self.found_new_generation or revision == self._revision:
            return False
        self.model = find_model(self._repository, snapshot.commit, snapshot=snapshot)
        self.epoch, self._revision = int((snapshot.run_state or {}).get("epoch", 0)), revision
        return True

    def load(self, layers: range) -> ServedLayers:
        """Read these layers, and measure them."""
        span = load_span(self.model, layers, device=self._device, weights=self._precision)
        server = BlockServer(span=span, revision=self.model.revision, memory=self.memory)
        return ServedLayers(server=server, epoch=self.epoch, rate=measured_rate(server))


def layers_that_fit(model: PublishedModel, num_bytes: float) -> int:
    """Return how many consecutive layers take no more than these bytes, wherever they begin; at least one."""
    num_layers, fits = stack_shape(model.config).num_layers, 1
    for length in range(1, num_layers + 1):
        if (
            max(
                model.num_bytes(tensor_prefixes(model.config, range(start, start + length)))
                for start in range(num_layers - length + 1)
            )
            > num_bytes
        ):
            break
        fits = length
    return fits


def measured_rate(server: BlockServer) -> float:
    """Return through how many layers a place of one sample goes in a second, measured for a short time."""
    span = server.span
    unlimited = Quota("bytes of caches", per_peer=2**62, in_all=2**62)
    session = BlockSession(replace(server, memory=unlimited), Asker("this machine"))
    where = dict(start=span.layers.start, end=span.layers.stop, revision=server.revision, codec=FLOAT32)
    opening = span.opening_of_one()
    for body in opening:
        session.answer({**body, **where}, _zeros(span, body))
    number, started = 0, time.monotonic()
    while number < span.most_places() and (number < 2 or time.monotonic() - started < SECONDS_OF_MEASURING):
        tensors = _zeros(span, dict(do="step")) | {"places": torch.tensor([[number]])}
        session.answer(dict(do="step", steps=1), tensors)
        number += 1
    session.close()
    return number * len(span.layers) / max(time.monotonic() - started, 1e-6)


def _zeros(span: Span, body: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    positions = {"prefill": span.positions_of_prompt(), "step": 1}.get(str(body["do"]))
    return {} if positions is None else encode(torch.zeros(span.shape.states(1, positions)), FLOAT32)
