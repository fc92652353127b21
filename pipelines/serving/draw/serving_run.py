"""Serving a run's drawings as a library call: the recipe of a drawing server, from the run's name to its end."""

import contextlib
import logging
import math
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import torch
from transformers import PreTrainedModel

from hub_tools.run_files import MODEL_FILES
from pipelines.generation.image_generation import DrawingParts, clip_name, with_clip
from pipelines.serving.draw.checkpoints import ServedCheckpoint, ServedCheckpoints, load_served
from pipelines.serving.draw.engine import DrawEngine
from pipelines.serving.draw.media.choice import medium_of, medium_of_task
from pipelines.serving.draw.media.pictures import PICTURES
from pipelines.serving.draw.ranking.service import RankService
from pipelines.serving.draw.requests import MOST_CANDIDATES, PRECISIONS
from pipelines.serving.draw.service import DrawService
from pipelines.serving.entering import Check, PlaceInSwarm, check_nothing, entered_swarm, open_loop, weights_name
from pipelines.serving.memory import free_memory, memory_for_others
from pipelines.swarm.network_options import NetworkOptions
from pipelines.swarm.node import visible_addresses
from pipelines.swarm.servers.server_record import SERVER_SECONDS, ServerRecord
from pipelines.swarm.streams.quotas import Quota
from pipelines.swarm.streams.server import StreamServer
from pipelines.swarm.upload_limit import UploadLimit
from pipelines.torch_devices import num_cores, torch_device
from pipelines.training.peer.joining import Hear, hear_nothing, hub_username
from pipelines.training.peer.pausing import PauseSwitch, stop_on_signals
from pipelines.training.repository.key_list import TrustedKeys
from pipelines.training.repository.snapshot import RunSnapshot
from pipelines.training.run.training_run import TrainingRun
from pipelines.training.run.versions import package_version

logger = logging.getLogger(__name__)

SECONDS_TO_FINISH = 30.0
"""What those who are being served get when a server leaves."""

SECONDS_OF_MEASURING = 4.0
MEASURED_CANDIDATES = 8
PLACES = 8 * MOST_CANDIDATES
"""Candidates that wait or are drawn."""


@dataclass(frozen=True, kw_only=True)
class ServingOptions:
    """Local choices of one server."""

    device: str = "auto"
    precision: str = "float32"
    """One of `PRECISIONS`. Equal pictures are promised among float32 servers only."""

    cpu_threads: int | None = None
    memory_gigabytes: float | None = None
    """For others' drawings, beside the weights; None: half of what is free then."""

    most_codes_per_second: float | None = None
    """What this machine gives at most; None: all it can."""

    ranks: bool = False
    """Whether candidates are ranked for others, too, with the run's CLIP."""

    look_seconds: float = 60.0
    """How often it is looked for a newer checkpoint."""

    max_hours: float | None = None
    name: str | None = None
    """What askers see, in an open run; None: the Hub user's name. Where an authority admits, it says the name."""

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision is {self.precision!r}, expected one of {', '.join(PRECISIONS)}.")
        for name in ("cpu_threads", "memory_gigabytes", "most_codes_per_second", "look_seconds", "max_hours"):
            if (value := getattr(self, name)) is not None and not value > 0:
                raise ValueError(f"{name} is {value}; expected a number above 0.")


@dataclass(frozen=True, kw_only=True)
class ServingReport:
    """What a server is doing."""

    state: str
    epoch: int
    codes_per_second: float
    num_drawn: int
    num_askers: int
    free_places: int


class DrawingPeer:
    """A server that has entered the swarm, with its weights in memory."""

    def __init__(
        self,
        repository: str,
        service: DrawService,
        place: PlaceInSwarm,
        rate: float,
        fetch: "Fetch",
        options: ServingOptions,
        hear: Hear,
    ) -> None:
        self.repository, self.service, self.rate, self.hear = repository, service, rate, hear
        self.medium = medium_of(service.checkpoints.current.parts.model.config)
        self.peer_id = place.dht.peer_id.to_base58()
        self.username = _name_of(place, options)
        self.found_new_generation, self.ranks = False, options.ranks
        self._place, self._fetch, self._state, self._max_hours = place, fetch, "online", options.max_hours

    def follow(self, stop: threading.Event) -> Iterator[ServingReport]:
        """Renew the server's record, and serve newer checkpoints, until `stop` is set; yield what it is doing."""
        deadline = time.monotonic() + 3600 * (self._max_hours or math.inf)
        looking = threading.Thread(target=self._look, args=(stop,), name="newer checkpoints", daemon=True)
        looking.start()
        while not stop.is_set() and time.monotonic() < deadline:
            self.announce("draining" if self.service.engine.is_paused else "online")
            yield self.report()
            stop.wait(SERVER_SECONDS / 3)
        self.announce("draining")

    def announce(self, state: str) -> None:
        """Publish what is served now, and whether anything new is taken."""
        self._state = state
        current, service = self.service.checkpoints.current, self.service
        self._place.records.publish_server(
            ServerRecord(
                peer_id=self.peer_id,
                username=self.username,
                state=self._state,
                revision=current.revision,
                epoch=current.epoch,
                precision=service.checkpoints.precision,
                package_version=package_version(),
                draw_rate=float(self.rate),
                free_places=service.places.free,
                num_drawn=service.engine.num_drawn,
                ranks=self.ranks,
            )
        )

    def report(self) -> ServingReport:
        """Return what the server is doing."""
        service = self.service
        return ServingReport(
            state=self._state,
            epoch=service.checkpoints.current.epoch,
            codes_per_second=self.rate,
            num_drawn=service.engine.num_drawn,
            num_askers=service.places.num_peers,
            free_places=service.places.free,
        )

    def _look(self, stop: threading.Event) -> None:
        while not stop.wait(self._fetch.look_seconds):
            try:
                self._look_once(stop)
            except Exception as error:  # the Hub is away, what it has is refused, or does not fit beside the old one
                logger.warning(
                    "The newest checkpoint cannot be served, the old one goes on; next try in %.0f s: %s",
                    self._fetch.look_seconds,
                    " ".join(str(error).split()) or type(error).__name__,
                )
                logger.debug("The newest checkpoint cannot be served.", exc_info=True)

    def _look_once(self, stop: threading.Event) -> None:
        newest = self._fetch.newer(self.service.checkpoints.current)
        if self._fetch.found_new_generation:
            self.found_new_generation = True
            stop.set()
        elif newest is not None:
            self.service.checkpoints.replace(newest)
            self.hear("serves", epoch=newest.epoch)
        self.service.checkpoints.drop_unused()


class Fetch:
    """Fetches a run's checkpoints from the Hub, checked against the signed manifest."""

    def __init__(self, snapshot: RunSnapshot, options: ServingOptions, device: str) -> None:
        self.look_seconds, self.found_new_generation = options.look_seconds, False
        self._repository, self._run, self._options, self._device = snapshot.repository, snapshot.run, options, device
        self._keys = TrustedKeys(snapshot.run)

    def load(self, snapshot: RunSnapshot) -> ServedCheckpoint:
        """Download the weights of a commit and load them.

        Raises:
            CheckpointRefusedError: a file is not what the run's publisher has signed.
            NothingToServeError: there are no weights.
        """
        snapshot = snapshot.trusting(self._keys)
        weights_name(snapshot)  # refuses what is not signed, or not there, before it is downloaded
        folder, medium = snapshot.download_signed(MODEL_FILES), medium_of_task(self._repository, self._run.task)
        return load_served(folder, self._repository, medium, precision=self._options.precision, device=self._device)

    def newer(self, current: ServedCheckpoint) -> ServedCheckpoint | None:
        """Return the newest checkpoint if it is another than the current one."""
        snapshot = RunSnapshot.read(self._repository, in_cache=False)
        if not self._keys.accepts(snapshot.run):
            raise ValueError(f"The settings of {self._repository} name another organiser: they are ignored.")
        self.found_new_generation = snapshot.run.generation > self._run.generation
        if self.found_new_generation or weights_name(snapshot.trusting(self._keys)) == current.revision:
            return None
        return self.load(snapshot)


@contextlib.contextmanager
def serve_run(
    repository: str,
    *,
    network: NetworkOptions = NetworkOptions(),
    options: ServingOptions = ServingOptions(),
    hear: Hear = hear_nothing,
    check: Check = check_nothing,
    takes_signals: bool = False,
) -> Iterator[tuple[DrawingPeer, threading.Event]]:
    """Draw a run's pictures for others; yield the server, and what ends its `follow` when it is set.

    Call it in the main thread of a process that has no other threads: hivemind forks. `hear` is told `asking`,
    `loading`, `measuring`, `serving`, and `serves` with each newer checkpoint. `check` may object with a ValueError.

    Raises:
        ValueError: the run has no weights yet, no entry address, or makes nothing that is drawn.
        AdmissionRefusedError: the run's authority does not admit this user, or no longer does.
        ConnectionError: the Hub, the authority or the swarm cannot be reached.
    """
    device = torch_device(options.device)
    torch.set_num_threads(options.cpu_threads or num_cores())
    torch.backends.cudnn.allow_tf32 = False  # float32 is a promise to those who ask
    snapshot = RunSnapshot.read(repository)
    medium = medium_of_task(repository, snapshot.run.task)
    if options.ranks and medium is not PICTURES:
        raise ValueError(f"{repository} makes {medium.product}s, and CLIP ranks pictures. Leave out --ranking.")
    weights = weights_name(snapshot)
    check(snapshot, device)
    with contextlib.ExitStack() as stack:
        hear("asking", run=snapshot.run)
        place = stack.enter_context(entered_swarm(snapshot.run_to_enter, repository, network))
        hear("loading")
        place.records.publish_server(
            ServerRecord(
                peer_id=place.dht.peer_id.to_base58(),
                username=_name_of(place, options),
                state="joining",
                revision=weights,
                epoch=(snapshot.run_state or {}).get("epoch", 0),
                precision=options.precision,
                package_version=package_version(),
            )
        )
        fetch = Fetch(snapshot, options, device)
        first = fetch.load(snapshot)
        ranking = None
        if options.ranks:
            parts = cast("DrawingParts", first.parts)
            ranking = with_clip(repository, parts.processor, parts.codec)
        hear("measuring")
        rate = measured_rate(first.parts.model)
        rate = min(rate, options.most_codes_per_second or rate)
        memory = memory_for_others(options.memory_gigabytes, free_memory(device))
        room = drawing_room(first.parts.model, memory)
        engine = stack.enter_context(DrawEngine(most_codes_per_second=options.most_codes_per_second))
        limit = None if network.bandwidth_limit_mbit is None else UploadLimit(network.bandwidth_limit_mbit)
        loop = stack.enter_context(open_loop(place))
        server = StreamServer(
            loop.p2p, place.namespace, place.introductions(), limits=place.stream_limits(), upload_limit=limit
        )
        service = DrawService(
            ServedCheckpoints(first, options.precision),
            engine,
            room,
            _places("candidates", place.run),
        )
        loop.call(server.offer(service))
        if ranking is not None:
            ranks = RankService(
                clip_name(ranking.processor),
                ranking,
                _places("candidates to rank", place.run),
                lambda: engine.is_paused,
            )
            stack.callback(ranks.close)
            loop.call(server.offer(ranks))
        stack.callback(lambda: loop.call(server.leave(SECONDS_TO_FINISH)))
        switch = PauseSwitch()
        switch.on_switch = engine.pause
        stop = stack.enter_context(stop_on_signals(switch)) if takes_signals else threading.Event()
        place.admission.on_refusal(stop.set)
        peer = DrawingPeer(repository, service, place, rate, fetch, options, hear)
        hear("serving", peer=peer, addresses=visible_addresses(place.dht))
        yield peer, stop


def _places(what: str, run: TrainingRun) -> Quota:
    """Return the quota of candidates that wait or are computed."""
    limits = dict(per_peer=run.candidates_per_peer, per_address=run.candidates_per_address)
    return Quota(what, **limits, in_all=PLACES, code="busy")


def _name_of(place: PlaceInSwarm, options: ServingOptions) -> str:
    """Return what askers see; where an authority admits, it says the name."""
    return place.admission.username if place.admission.has_authority else options.name or hub_username()


def measured_rate(model: PreTrainedModel) -> float:
    """Return the codes a second of some candidates together, measured for a few seconds."""
    drawing = medium_of(model.config).measuring(model, MEASURED_CANDIDATES)
    first = last = next(drawing)
    started = time.monotonic()
    while time.monotonic() - started < SECONDS_OF_MEASURING and (places := next(drawing, None)) is not None:
        last = places
    return MEASURED_CANDIDATES * max(1, last - first) / max(time.monotonic() - started, 1e-6)


def drawing_room(model: PreTrainedModel, memory: int) -> Quota:
    """Return the bytes that drawings may take: one peer, or address, half of them; ValueError if none fits."""
    medium = medium_of(model.config)
    least = medium.most_bytes_of_one(model.config)
    if memory < least:
        raise ValueError(
            f"There are {memory / 1e9:.2g} GB for drawings, and one {medium.product} of this run takes "
            f"{least / 1e9:.2g}. Give more: --memory {8 * least / 1e9:.2g}"
        )
    return Quota("bytes for drawings", per_peer=max(memory // 2, least), in_all=memory)
