"""Serving a run's model as a library call: the recipe of a server, from the run's name to its end."""

import contextlib
import logging
import math
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from pipelines.core.peer.pausing import PauseSwitch, stop_on_signals
from pipelines.core.peer.volunteer import EventHandler, ignore_events
from pipelines.core.run.versions import package_version
from pipelines.core.swarm.network_options import NetworkOptions
from pipelines.core.swarm.node import visible_addresses
from pipelines.core.swarm.streams.peer_loop import PeerLoop
from pipelines.core.swarm.streams.server import StreamLimits, StreamServer
from pipelines.core.swarm.upload_limit import UploadLimit
from pipelines.features.publishing.repository.key_list import TrustedKeys
from pipelines.features.publishing.repository.snapshot import RunSnapshot
from pipelines.features.servers.server_record import SERVER_SECONDS, SERVERS, ServerRecord
from pipelines.features.serving.blocks.layers_offer import LayersOffer
from pipelines.features.serving.draw.drawing_offer import DrawingOffer
from pipelines.features.serving.entering import Check, SwarmConnection, check_nothing, entered_swarm, weights_name
from pipelines.features.serving.offer import Offer, ServingOptions
from pipelines.features.torch_devices import num_cores, torch_device

logger = logging.getLogger(__name__)

SECONDS_TO_FINISH = 30.0
"""What those who are being served get when a server leaves."""


class CheckpointWatch:
    """Looks for newer checkpoints of a run on the Hub, checked against the signed manifest."""

    def __init__(self, snapshot: RunSnapshot) -> None:
        """Begin with a snapshot; raises as `weights_name`."""
        self.found_new_generation, self._keys = False, TrustedKeys(snapshot.run)
        self.first = snapshot.trusting(self._keys)
        weights_name(self.first)

    def newer(self, revision: str) -> RunSnapshot | None:
        """Return the newest commit if its weights are others than those of `revision`.

        Raises:
            ValueError: there is no checkpoint, or the settings name another organiser.
            CheckpointRefusedError: it is not signed by a publisher of the run.
        """
        run = self.first.run
        snapshot = RunSnapshot.read(self.first.repository, in_cache=False)
        if not self._keys.accepts(snapshot.run):
            raise ValueError(f"The settings of {snapshot.repository} name another organiser: they are ignored.")
        self.found_new_generation = snapshot.run.generation > run.generation
        if self.found_new_generation or weights_name(snapshot := snapshot.trusting(self._keys)) == revision:
            return None
        return snapshot


class ServingPeer:
    """A server that has entered the swarm."""

    def __init__(
        self,
        offer: Offer,
        watch: CheckpointWatch,
        place: SwarmConnection,
        options: ServingOptions,
        on_event: EventHandler,
    ) -> None:
        self.offer, self.peer_id, self.username = offer, place.dht.peer_id.to_base58(), place.username(options.name)
        self._watch, self._place, self._options, self._on_event = watch, place, options, on_event

    @property
    def found_new_generation(self) -> bool:
        """Whether the run was rolled back: this process serves an older swarm."""
        return self._watch.found_new_generation

    def follow(self, stop: threading.Event) -> Iterator[Any]:
        """Renew the server's record, and serve what is newer or better, until `stop` is set; yield what is done."""
        deadline = time.monotonic() + 3600 * (self._options.max_hours or math.inf)
        looking = threading.Thread(target=self._look, args=(stop,), name="newer checkpoints", daemon=True)
        looking.start()
        while not stop.is_set() and time.monotonic() < deadline:
            self.announce(self.offer.record())
            yield self.offer.report()
            stop.wait(SERVER_SECONDS / 3)
        stop.set()  # where the time is over, too: who leaves looks for nothing
        self.announce({**self.offer.record(), "state": "draining"})

    def announce(self, served: Mapping[str, object]) -> None:
        """Publish what is served, and whether anything new is taken."""
        own = dict(peer_id=self.peer_id, username=self.username, precision=self._options.precision)
        record = ServerRecord.parse_obj({**own, **served, "package_version": package_version()})
        self._place.records.publish(SERVERS, record, SERVER_SECONDS)

    def _look(self, stop: threading.Event) -> None:
        while not stop.wait(self._options.look_seconds):
            try:
                self._look_once(stop)
            except Exception as error:  # the Hub is away, what it has is refused, or does not fit beside the old one
                logger.warning(
                    "The newest checkpoint cannot be served, the old one goes on; next try in %.0f s: %s",
                    self._options.look_seconds,
                    " ".join(str(error).split()) or type(error).__name__,
                )
                logger.debug("The newest checkpoint cannot be served.", exc_info=True)

    def _look_once(self, stop: threading.Event) -> None:
        newest = self._watch.newer(str(self.offer.record()["revision"]))
        if self.found_new_generation:
            stop.set()
        elif (news := self.offer.renew(newest)) is not None and not stop.is_set():
            self.announce(self.offer.record())
            self._on_event("serves", **news)


@contextlib.contextmanager
def serve_run(
    repository: str,
    *,
    network: NetworkOptions = NetworkOptions(),
    options: ServingOptions = ServingOptions(),
    on_event: EventHandler = ignore_events,
    check: Check = check_nothing,
    takes_signals: bool = False,
) -> Iterator[tuple[ServingPeer, threading.Event]]:
    """Draw for others, or compute some layers; yield the server, and what ends its `follow` when it is set.

    Call it in the main thread of a process that has no other threads: hivemind forks. `on_event` is told `asking`,
    `choosing` (layers), `loading`, `measuring` (drawings), `serving`, and `serves` with each newer checkpoint or other
    layers. `check` may object with a ValueError.

    Raises:
        ValueError: the run has no weights yet, no entry address, no such layers, or nothing that can be served.
        CheckpointRefusedError: the weights are not what the run's publisher has signed.
        AdmissionRefusedError: the run's authority does not admit this user, or no longer does.
        ConnectionError: the Hub, the authority or the swarm cannot be reached.
    """
    device = torch_device(options.device)
    torch.set_num_threads(options.cpu_threads or num_cores())
    torch.backends.cudnn.allow_tf32 = False  # float32 is a promise to those who ask
    watch = CheckpointWatch(RunSnapshot.read(repository))
    offer: Offer = (DrawingOffer if options.blocks is None else LayersOffer)(watch.first, options, device)
    check(watch.first, device)
    with contextlib.ExitStack() as stack:
        on_event("asking", run=watch.first.run)
        place = stack.enter_context(entered_swarm(watch.first.run_to_enter, repository, network))
        peer = ServingPeer(offer, watch, place, options, on_event)
        chosen = offer.choose(place, on_event)
        on_event("loading")
        peer.announce({**chosen, "state": "joining"})  # others that come meanwhile choose other layers
        loop, run = stack.enter_context(PeerLoop(place.dht)), place.run
        switch = PauseSwitch()
        services = offer.open(stack, on_event, switch)
        server = StreamServer(
            loop.p2p,
            run.swarm_id,
            place.introductions(),
            limits=StreamLimits(streams_per_peer=run.streams_per_peer, streams_per_address=run.streams_per_address),
            upload_limit=None if network.bandwidth_limit_mbit is None else UploadLimit(network.bandwidth_limit_mbit),
        )
        for service in services:
            loop.call(server.offer(service))
        stack.callback(lambda: loop.call(server.leave(SECONDS_TO_FINISH)))
        stop = stack.enter_context(stop_on_signals(switch)) if takes_signals else threading.Event()
        place.admission.on_refusal(stop.set)
        on_event("serving", peer=peer, addresses=visible_addresses(place.dht))
        yield peer, stop
