"""Serving some of a run's layers as a library call: the recipe of a block server, from the run's name to its end."""

import contextlib
import logging
import math
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

from pipelines.serving.blocks.discovery import served_spans
from pipelines.serving.blocks.fetching import BlockFetch, ServedLayers, layers_that_fit
from pipelines.serving.blocks.placement import MoveWatch, choose_span
from pipelines.serving.blocks.routing import ServedSpan, holes
from pipelines.serving.blocks.service import BlocksService
from pipelines.serving.blocks.spans import check_layers, stack_shape, tensor_prefixes
from pipelines.serving.entering import Check, PlaceInSwarm, check_nothing, entered_swarm, open_loop
from pipelines.serving.memory import free_memory, memory_for_others
from pipelines.swarm.network_options import NetworkOptions
from pipelines.swarm.node import visible_addresses
from pipelines.swarm.servers.server_record import SERVER_SECONDS, ServerRecord
from pipelines.swarm.streams.quotas import Quota
from pipelines.swarm.streams.server import StreamServer
from pipelines.swarm.upload_limit import UploadLimit
from pipelines.torch_devices import num_cores, torch_device
from pipelines.training.peer.joining import Hear, hear_nothing, hub_username
from pipelines.training.peer.pausing import stop_on_signals
from pipelines.training.repository.snapshot import RunSnapshot
from pipelines.training.run.versions import package_version

logger = logging.getLogger(__name__)

AUTO = "auto"
PRECISIONS = ("float32", "int8")
SECONDS_TO_FINISH = 30.0
SHARE_OF_ONE_PEER = 0.25
"""Of the memory for caches: so much a single client may take."""

SHARE_OF_FREE_MEMORY = 0.9
ASSUMED_RATE = 1000.0
"""Layers a second of a server that has not been measured; it only breaks ties between equally served layers."""

MOST_LAYERS = 4096


@dataclass(frozen=True, kw_only=True)
class BlockOptions:
    """Local choices of one block server."""

    blocks: str = AUTO
    """`START:END`, or `auto`: as many layers as fit, where they help most; the server then moves when that helps."""

    precision: str = "float32"
    device: str = "auto"
    cpu_threads: int | None = None
    memory_gigabytes: float | None = None
    """For others' caches and passes, beside the weights; None: half of what is free, of which `auto` leaves as much."""

    weights_gigabytes: float | None = None
    """With `auto`: for the weights, which some processors need twice. None: what is free beside the caches."""

    look_seconds: float = 60.0
    """How often it is looked for a newer checkpoint, and for a better place."""

    max_hours: float | None = None
    name: str | None = None
    """What clients see, in an open run; None: the Hub user's name."""

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision is {self.precision!r}, expected {' or '.join(PRECISIONS)} to serve layers.")
        for name in ("cpu_threads", "memory_gigabytes", "weights_gigabytes", "look_seconds", "max_hours"):
            if (value := getattr(self, name)) is not None and not value > 0:
                raise ValueError(f"{name} is {value}; expected a number above 0.")
        self.layers()

    def layers(self) -> range | None:
        """Return the layers that were asked for; None: the server chooses."""
        if self.blocks == AUTO:
            return None
        start, colon, end = self.blocks.partition(":")
        if not (colon and start.isdecimal() and end.isdecimal() and int(start) < int(end) <= MOST_LAYERS):
            raise ValueError(f"The blocks are {self.blocks!r}, expected START:END such as 0:16, or auto.")
        return range(int(start), int(end))


@dataclass(frozen=True, kw_only=True)
class BlockReport:
    """What a block server is doing."""

    state: str
    epoch: int
    layers: range
    layers_per_second: float
    free_cache_bytes: int
    missing: tuple[range, ...]
    """Layers that nobody serves."""


class BlockPeer:
    """A server that has entered the swarm, with its layers in memory."""

    def __init__(
        self, fetch: BlockFetch, first: ServedLayers, service: BlocksService, place: PlaceInSwarm,
        options: BlockOptions, hear: Hear, announce: "Announcing",
    ) -> None:  # fmt: skip
        self.peer_id, self.username, self._announce = place.dht.peer_id.to_base58(), announce.username, announce
        self._fetch, self._now, self._service, self._place = fetch, first, service, place
        self._options, self._hear, self._state = options, hear, "online"
        self._watch = MoveWatch(self.peer_id)

    @property
    def found_new_generation(self) -> bool:
        """Whether the run was rolled back: this process serves an older swarm."""
        return self._fetch.found_new_generation

    def follow(self, stop: threading.Event) -> Iterator[BlockReport]:
        """Renew the record, serve newer checkpoints and better layers, until `stop` is set; yield what is done."""
        deadline = time.monotonic() + 3600 * (self._options.max_hours or math.inf)
        look_at = time.monotonic() + self._options.look_seconds
        loading: Future[ServedLayers | None] | None = None
        with ThreadPoolExecutor(1, thread_name_prefix="layers") as executor:
            while not stop.is_set() and time.monotonic() < deadline and not self.found_new_generation:
                if loading is not None and loading.done():
                    self._take(loading)
                    loading = None
                elif loading is None and time.monotonic() >= look_at:
                    loading = executor.submit(self._look)
                    look_at = time.monotonic() + self._options.look_seconds
                self.announce("online" if self._state == "draining" else self._state)
                yield self.report()
                stop.wait(SERVER_SECONDS / 3)
        self.announce("draining")

    def announce(self, state: str) -> None:
        """Publish what is served now."""
        self._state, server = state, self._now.server
        self._announce(
            state=state,
            revision=server.revision,
            epoch=self._now.epoch,
            first_layer=server.span.layers.start,
            end_layer=server.span.layers.stop,
            layer_rate=self._now.rate,
            free_cache_bytes=server.memory.free,
        )

    def report(self) -> BlockReport:
        """Return what the server is doing."""
        span, seen = self._now.server.span, served_spans(self._place.records.servers())
        same = [other for other in seen if other.revision == self._now.server.revision]
        return BlockReport(
            state=self._state,
            epoch=self._now.epoch,
            layers=span.layers,
            layers_per_second=self._now.rate,
            free_cache_bytes=self._now.server.memory.free,
            missing=tuple(holes([*same, self._own()], range(span.shape.num_layers))),
        )

    def _own(self) -> ServedSpan:
        layers = self._now.server.span.layers
        return ServedSpan(
            peer=self.peer_id,
            start=layers.start,
            end=layers.stop,
            revision=self._now.server.revision,
            layers_per_second=self._now.rate,
        )

    def _look(self) -> ServedLayers | None:
        """Load a newer checkpoint, or better layers, if there are any."""
        layers = self._now.server.span.layers
        if not self._fetch.look() and self._fetch.model.revision == self._now.server.revision:
            if self._options.layers() is not None or (moved := self._better_layers()) is None:
                return None
            layers, self._state = moved, "joining"
        return self._fetch.load(layers)

    def _better_layers(self) -> range | None:
        own = self._own()
        seen = [
            other for other in served_spans(self._place.records.servers())
            if other.revision == own.revision and other.peer != own.peer
        ]  # fmt: skip
        move = self._watch.should_move([*seen, own], self._now.server.span.shape.num_layers)
        if move is None:
            return None
        logger.info("Moving to layers %d:%d: the slowest gets %.2f times as fast.", move.start, move.end, move.gain)
        return range(move.start, move.end)

    def _take(self, loading: "Future[ServedLayers | None]") -> None:
        self._state = "online"
        try:
            newest = loading.result()
        except Exception as error:  # the Hub is away, what it has is refused, or does not fit beside the old layers
            said = " ".join(str(error).split()) or type(error).__name__
            logger.warning("The newest layers cannot be served, the old ones go on: %s", said)
            logger.debug("The newest layers cannot be served.", exc_info=True)
            return
        if newest is not None:
            self._now = newest
            self._service.use(newest.server)
            layers = newest.server.span.layers
            self._hear("serves", epoch=newest.epoch, layers=layers)


class Announcing:
    """Publishes the record of this peer."""

    def __init__(self, place: PlaceInSwarm, options: BlockOptions) -> None:
        is_admitted = place.admission.has_authority
        self.username = place.admission.username if is_admitted else options.name or hub_username()
        self._place, self._precision = place, options.precision

    def __call__(self, **served: Any) -> None:
        """Publish what is served: the fields of a record that change."""
        self._place.records.publish_server(
            ServerRecord(
                peer_id=self._place.dht.peer_id.to_base58(),
                username=self.username,
                precision=self._precision,
                package_version=package_version(),
                **served,
            )
        )


def _room_for_weights(options: BlockOptions, free: int | None) -> float:
    """Return the bytes for weights that are kept twice: as they are, and laid out for products of few rows."""
    if options.weights_gigabytes is not None:
        return options.weights_gigabytes * 1e9 / 2
    return math.inf if free is None else (SHARE_OF_FREE_MEMORY * free - _for_others(options, free, 0)) / 2


def _for_others(options: BlockOptions, free: int | None, weights: float) -> int:
    """Return the bytes for caches beside weights that are yet to be loaded."""
    return memory_for_others(options.memory_gigabytes, None if free is None else free - 2 * weights)


@contextlib.contextmanager
def serve_blocks(
    repository: str,
    *,
    network: NetworkOptions = NetworkOptions(),
    options: BlockOptions = BlockOptions(),
    hear: Hear = hear_nothing,
    check: Check = check_nothing,
    takes_signals: bool = False,
) -> Iterator[tuple[BlockPeer, threading.Event]]:
    """Serve some layers of a run's model; yield the server, and what ends its `follow` when it is set.

    Call it in the main thread of a process that has no other threads: hivemind forks. `hear` is told `asking`,
    `choosing`, `loading`, `serving`, and `serves` with each newer checkpoint or other layers. `check` may object with a
    ValueError.

    Raises:
        ValueError: the run has no weights yet, no entry address, no such layers, or a model of another kind.
        CheckpointRefusedError: the weights are not what the run's publisher has signed.
        AdmissionRefusedError: the run's authority does not admit this user, or no longer does.
        ConnectionError: the Hub, the authority or the swarm cannot be reached.
    """
    device = torch_device(options.device)
    torch.set_num_threads(options.cpu_threads or num_cores())
    snapshot, free = RunSnapshot.read(repository), free_memory(device)
    fetch = BlockFetch(snapshot, options.precision, device)
    fetch.look()
    model = fetch.model
    shape, layers = stack_shape(model.config), options.layers()
    check_layers(model, layers or range(shape.num_layers))
    check(snapshot, device)
    with contextlib.ExitStack() as stack:
        hear("asking", run=snapshot.run)
        place = stack.enter_context(entered_swarm(snapshot.run_to_enter, repository, network))
        if layers is None:
            hear("choosing")
            seen = served_spans(place.records.servers())
            length = layers_that_fit(model, _room_for_weights(options, free))
            layers = choose_span(
                [span for span in seen if span.revision == model.revision], shape.num_layers, length, ASSUMED_RATE
            )
        hear("loading")
        announce = Announcing(place, options)
        # Others that come meanwhile choose other layers.
        announce(
            state="joining", revision=model.revision, epoch=fetch.epoch, layer_rate=ASSUMED_RATE,
            first_layer=layers.start, end_layer=layers.stop,
        )  # fmt: skip
        size = _for_others(options, free, model.num_bytes(tensor_prefixes(model.config, layers)))
        fetch.memory = Quota("bytes of caches", per_peer=int(SHARE_OF_ONE_PEER * size), in_all=size)
        first = fetch.load(layers)
        limit = None if network.bandwidth_limit_mbit is None else UploadLimit(network.bandwidth_limit_mbit)
        loop = stack.enter_context(open_loop(place))
        server = StreamServer(
            loop.p2p, place.namespace, place.introductions(), limits=place.stream_limits(), upload_limit=limit
        )
        service = BlocksService(first.server)
        stack.callback(service.close)
        loop.call(server.offer(service))
        stack.callback(lambda: loop.call(server.leave(SECONDS_TO_FINISH)))
        stop = stack.enter_context(stop_on_signals()) if takes_signals else threading.Event()
        place.admission.on_refusal(stop.set)
        peer = BlockPeer(fetch, first, service, place, options, hear, announce)
        hear("serving", peer=peer, addresses=visible_addresses(place.dht))
        yield peer, stop
