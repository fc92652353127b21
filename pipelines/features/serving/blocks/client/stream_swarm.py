"""Entering a run's swarm to use the layers that others serve, who are found by their records."""

import asyncio
import contextlib
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor

from pipelines.core.swarm.network_options import NetworkOptions
from pipelines.core.swarm.streams.conversation import STEPS_OF_SILENCE, Conversation, silence_seconds
from pipelines.core.swarm.streams.peer_loop import PeerLoop
from pipelines.core.swarm.streams.refusals import PeerGoneError
from pipelines.features.publishing.repository.snapshot import RunSnapshot
from pipelines.features.serving.blocks.client.route import ServerLink, Swarm
from pipelines.features.serving.blocks.discovery import served_spans
from pipelines.features.serving.blocks.routing import ServedSpan
from pipelines.features.serving.blocks.service import MOST_MESSAGE_BYTES, SERVICE_NAME
from pipelines.features.serving.blocks.sessions import Answer
from pipelines.features.serving.entering import ClientConnection, client_connection
from pipelines.features.serving.server_blocklist import ServerBlocklist

OPEN_SECONDS = 5.0
NEWEST = 0.3
"""How much the newest answer counts in the usual time of one."""

SECONDS_BETWEEN_READINGS = 5.0
STALL_SECONDS = 60.0
"""Longest wait for an answer of a server that sends heartbeats, if ten of its usual answers do not take longer."""


class StreamSwarm(Swarm):
    """The servers of a run; see `Swarm`. Methods may be called from any thread but the loop's."""

    def __init__(self, place: ClientConnection, *, blocklist: ServerBlocklist | None = None) -> None:
        """Reading `place.servers` may take a while; what it returned is used until it returns again."""
        self.blocklist, self._place = blocklist or ServerBlocklist(), place
        self._links: weakref.WeakSet[StreamLink] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._found: Sequence[ServedSpan] = ()
        self._read_at = -SECONDS_BETWEEN_READINGS

    def served(self) -> Sequence[ServedSpan]:
        with self._lock:
            is_old = time.monotonic() - self._read_at >= SECONDS_BETWEEN_READINGS
            if is_old:
                self._read_at = time.monotonic()
        if is_old and self._found:  # who has just lost a server does not wait for records
            threading.Thread(target=self._read_again, daemon=True, name="servers").start()
        elif not self._found:
            self._read()
        return self._found

    def _read_again(self) -> None:
        with contextlib.suppress(ConnectionError):  # what is known counts until somebody says more
            self._read()

    def _read(self) -> None:
        self._found = served_spans(self._place.servers(), names_users=self._place.names_users)

    def connect(self, peer: str) -> "StreamLink":
        limits = dict(most_tensor_bytes=MOST_MESSAGE_BYTES, open_seconds=OPEN_SECONDS)
        opening = self._place.open(peer, SERVICE_NAME, **limits)
        link = StreamLink(self._place.loop, *self._place.loop.call(opening))
        self._links.add(link)
        return link

    def close(self) -> None:
        """Close all streams, those of generations too."""
        for link in list(self._links):
            link.close()


@contextlib.contextmanager
def join_as_client(
    repository: str, network: NetworkOptions = NetworkOptions(client_mode=True)
) -> Iterator[StreamSwarm]:
    """Be a client of the run's servers for the duration of the block; the first thing in a process: hivemind forks.

    Raises:
        ValueError: there is no such run, or it has no entry address.
        AdmissionRefusedError: the run's authority does not admit this user.
        ConnectionError: the Hub, the authority or the swarm cannot be reached.
    """
    with client_connection(RunSnapshot.read(repository).run_to_enter, repository, network) as place:
        swarm = StreamSwarm(place, blocklist=ServerBlocklist.of_run(repository))
        try:
            yield swarm
        finally:
            swarm.close()


class StreamLink(ServerLink):
    """A conversation with a block server, one question at a time."""

    def __init__(self, loop: PeerLoop, conversation: Conversation, about: Mapping[str, object]) -> None:
        self._loop, self._conversation, self.about = loop, conversation, about
        self.round_trip_seconds = conversation.round_trip_seconds
        self._usual: dict[str, float] = {}
        self._forgotten = weakref.finalize(self, _end, loop, conversation)
        self._forgotten.atexit = False

    def ask(self, body: Mapping[str, object], tensors: Mapping[str, Tensor]) -> Answer:
        """See `ServerLink.ask`; a server that is silent for much longer than usual, heartbeats included, is gone."""
        what = str(body.get("do"))
        usual, started = self._usual.get(what, 0.0), time.monotonic()
        silence = silence_seconds(usual, self.round_trip_seconds)
        answer = self._loop.call(self._asked(body, tensors, silence, max(STALL_SECONDS, STEPS_OF_SILENCE * usual)))
        taken = time.monotonic() - started
        self._usual[what] = taken if not usual else usual + NEWEST * (taken - usual)
        return answer

    async def _asked(
        self, body: Mapping[str, object], tensors: Mapping[str, Tensor], silence: float, most_seconds: float
    ) -> Answer:
        try:
            async with asyncio.timeout(most_seconds):
                await self._conversation.send(body, tensors)
                frame = await self._conversation.receive(silence)
        except TimeoutError:
            raise PeerGoneError(f"It shows that it lives, and has not answered for {most_seconds:.0f} s.") from None
        return dict(frame.body), dict(frame.tensors)

    def close(self) -> None:
        """See `ServerLink.close`; a link that is forgotten is closed as well."""
        if self._forgotten.detach() is not None:
            self._loop.call(self._conversation.close())


def _end(loop: PeerLoop, conversation: Conversation) -> None:
    with contextlib.suppress(RuntimeError):  # the loop may be closed already
        loop.start(conversation.close())
