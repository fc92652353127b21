"""Some of a run's layers as what a server offers: chosen, read from the Hub, and measured."""

import logging
import math
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace

import torch

from pipelines.core.peer.pausing import PauseSwitch
from pipelines.core.peer.volunteer import EventHandler
from pipelines.core.run.compute_options import GIBIBYTE
from pipelines.core.swarm.streams.quotas import Quota
from pipelines.core.swarm.streams.server import Service
from pipelines.core.swarm.streams.stream_clients import StreamClient
from pipelines.features.publishing.repository.snapshot import RunSnapshot
from pipelines.features.servers.server_record import SERVERS
from pipelines.features.serving.blocks.codecs import FLOAT32, encode
from pipelines.features.serving.blocks.discovery import served_spans
from pipelines.features.serving.blocks.placement import MoveWatch, choose_span
from pipelines.features.serving.blocks.routing import ServedSpan, holes
from pipelines.features.serving.blocks.service import BlocksService
from pipelines.features.serving.blocks.sessions import BlockServer, BlockSession
from pipelines.features.serving.blocks.spans import LayerSpan, check_layers, load_span, stack_shape, tensor_prefixes
from pipelines.features.serving.blocks.weights import PublishedModel, find_model
from pipelines.features.serving.entering import SwarmConnection
from pipelines.features.serving.memory import free_memory, memory_for_others
from pipelines.features.serving.offer import Offer, ServingOptions

logger = logging.getLogger(__name__)

SECONDS_OF_MEASURING = 2.0
SHARE_OF_ONE_PEER = 0.25
"""Of the memory for caches: so much a single client may take."""

SHARE_OF_FREE_MEMORY = 0.9
ASSUMED_RATE = 1000.0
"""Layers a second of a server that has not been measured; it only breaks ties between equally served layers."""


@dataclass(frozen=True, kw_only=True)
class BlockReport:
    """What a server of layers is doing."""

    state: str
    epoch: int
    layers: range
    layers_per_second: float
    free_cache_bytes: int
    missing: tuple[range, ...]
    """Layers that nobody serves."""


@dataclass(frozen=True, kw_only=True)
class ServedLayers:
    """What is served now, or will be once it is loaded."""

    model: PublishedModel
    epoch: int
    layers: range
    rate: float = ASSUMED_RATE

    @classmethod
    def find(cls, snapshot: RunSnapshot, layers: range | None = None) -> "ServedLayers":
        """Look up layers of a commit, by default all; raises as `find_model`, and ValueError if there are none such."""
        model = find_model(snapshot.repository, snapshot.commit, snapshot=snapshot)
        layers = layers or range(stack_shape(model.config).num_layers)
        check_layers(model, layers)
        return cls(model=model, epoch=snapshot.epoch or 0, layers=layers)


class LayersOffer(Offer):
    """See `Offer`: consecutive layers."""

    def __init__(self, snapshot: RunSnapshot, options: ServingOptions, device: str) -> None:
        self._options, self._device, self._free, self._state = options, device, free_memory(device), "online"
        self._now = ServedLayers.find(snapshot, options.layers())
        self._num_layers = stack_shape(self._now.model.config).num_layers
        self._memory = Quota("bytes of caches", per_peer=0, in_all=0)

    def choose(self, place: SwarmConnection, on_event: EventHandler) -> Mapping[str, object]:
        self._place, self._peer = place, place.dht.peer_id.to_base58()
        self._watch = MoveWatch(self._peer)
        if self._options.layers() is None:
            on_event("choosing")
            length = layers_that_fit(self._now.model, self._room_for_weights())
            layers = choose_span(self._served(by_others=True), self._num_layers, length, ASSUMED_RATE)
            self._now = replace(self._now, layers=layers)
        return self.record()

    def open(self, stack: ExitStack, _on_event: EventHandler, _switch: PauseSwitch) -> list[Service]:
        """See `Offer.open`: nothing is paused, because clients would lose their caches."""
        model = self._now.model
        size = self._for_others(model.num_bytes(tensor_prefixes(model.config, self._now.layers)))
        self._memory = Quota("bytes of caches", per_peer=int(SHARE_OF_ONE_PEER * size), in_all=size)
        self._service = BlocksService(self._load(self._now))
        stack.callback(self._service.close)
        return [self._service]

    def record(self) -> Mapping[str, object]:
        now = self._now
        return dict(
            state=self._state,
            revision=now.model.revision,
            epoch=now.epoch,
            first_layer=now.layers.start,
            end_layer=now.layers.stop,
            layer_rate=now.rate,
            free_cache_bytes=self._memory.free,
        )

    def report(self) -> BlockReport:
        now = self._now
        return BlockReport(
            state=self._state,
            epoch=now.epoch,
            layers=now.layers,
            layers_per_second=now.rate,
            free_cache_bytes=self._memory.free,
            missing=tuple(holes(self._served(), range(self._num_layers))),
        )

    def renew(self, newest: RunSnapshot | None) -> Mapping[str, object] | None:
        if newest is not None:
            better = ServedLayers.find(newest, self._now.layers)
        elif self._options.layers() is None and (moved := self._better_layers()) is not None:
            better, self._state = replace(self._now, layers=moved), "joining"
        else:
            return None
        try:
            self._service.use(self._load(better))
        finally:
            self._state = "online"
        return dict(epoch=better.epoch, layers=[better.layers.start, better.layers.stop])

    def _load(self, chosen: ServedLayers) -> BlockServer:
        """Read layers, measure them, and remember them as those that are served."""
        span = load_span(chosen.model, chosen.layers, device=self._device, weights=self._options.precision)
        server = BlockServer(span=span, revision=chosen.model.revision, memory=self._memory)
        self._now = replace(chosen, rate=measured_rate(server))
        return server

    def _served(self, *, by_others: bool = False) -> list[ServedSpan]:
        """Return what is served of the same weights, by this peer too unless only others count."""
        now, seen = self._now, served_spans(self._place.records.read(SERVERS))
        served = [span for span in seen if span.revision == now.model.revision and span.peer != self._peer]
        if not by_others:
            start, end, revision = now.layers.start, now.layers.stop, now.model.revision
            own = ServedSpan(peer=self._peer, start=start, end=end, revision=revision, layers_per_second=now.rate)
            served.append(own)
        return served

    def _better_layers(self) -> range | None:
        move = self._watch.should_move(self._served(), self._num_layers)
        if move is None:
            return None
        logger.info("Moving to layers %d:%d: the slowest gets %.2f times as fast.", move.start, move.end, move.gain)
        return range(move.start, move.end)

    def _room_for_weights(self) -> float:
        """Return the bytes for weights that are kept twice: as they are, and laid out for products of few rows."""
        if self._options.weights_gibibytes is not None:
            return self._options.weights_gibibytes * GIBIBYTE / 2
        return math.inf if self._free is None else (SHARE_OF_FREE_MEMORY * self._free - self._for_others(0)) / 2

    def _for_others(self, weights: float) -> int:
        """Return the bytes for caches beside weights that are yet to be loaded."""
        free = None if self._free is None else self._free - 2 * weights
        return memory_for_others(self._options.memory_gibibytes, free)


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
    session = BlockSession(replace(server, memory=unlimited), StreamClient("this machine"))
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


def _zeros(span: LayerSpan, body: Mapping[str, object]) -> dict[str, torch.Tensor]:
    positions = {"prefill": span.positions_of_prompt(), "step": 1}.get(str(body["do"]))
    return {} if positions is None else encode(torch.zeros(span.shape.states(1, positions)), FLOAT32)
