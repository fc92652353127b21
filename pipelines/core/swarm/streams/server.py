"""The answering end: one server for all services of a peer, in the peer's one event loop."""

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from hivemind.p2p import P2P
from hivemind.p2p.p2p_daemon_bindings.datastructures import StreamInfo

from pipelines.core.swarm.streams.conversation import Conversation
from pipelines.core.swarm.streams.frames import Frame, Kind
from pipelines.core.swarm.streams.introductions import Introductions
from pipelines.core.swarm.streams.quotas import Quota
from pipelines.core.swarm.streams.refusals import PeerGoneError, Refusal
from pipelines.core.swarm.streams.stream_clients import stream_client_of
from pipelines.core.swarm.upload_limit import UploadLimit

logger = logging.getLogger(__name__)

SECONDS_TO_REMOVE = 5.0


@dataclass(frozen=True, kw_only=True)
class StreamLimits:
    """What others may take of a server's streams and of the memory for messages that it is reading."""

    streams_per_peer: int = 8
    streams_per_address: int = 32
    streams: int = 128
    message_bytes_per_peer: int = 2**28
    message_bytes: int = 2**30


class Service(Protocol):
    """Answers conversations about one thing."""

    name: str
    """Its part in the name of the handler, so it is the same in every version."""

    most_tensor_bytes: int
    """Of one message that it takes."""

    def about(self) -> Mapping[str, object]:
        """Return what a peer is told that opens a conversation: small, for msgpack."""

    async def serve(self, conversation: Conversation) -> None:
        """Answer one peer until it is done; cancelled when the peer has gone. Heavy work belongs into a thread.

        A `Refusal` is sent to the peer; any other error is logged, and the peer is told that there was one.
        """


class StreamServer:
    """Opens this peer's services to others. All methods belong to the event loop of `p2p`."""

    def __init__(
        self,
        p2p: P2P,
        namespace: str,
        introductions: Introductions,
        *,
        limits: StreamLimits = StreamLimits(),
        upload_limit: UploadLimit | None = None,
    ) -> None:
        """`namespace` separates the runs that one machine serves: a run's swarm id."""
        self._p2p, self._namespace, self._introductions = p2p, namespace, introductions
        self._upload_limit = upload_limit
        self.places = Quota(
            "streams",
            per_peer=limits.streams_per_peer,
            per_address=limits.streams_per_address,
            in_all=limits.streams,
            code="busy",
        )
        self.messages = Quota("bytes of messages", per_peer=limits.message_bytes_per_peer, in_all=limits.message_bytes)
        self._most_ending, self._num_ending = limits.streams, 0
        """Streams of refused peers have no place, and are closed at once where there are too many."""

        self._services: dict[str, Service] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self._is_leaving = False

    async def offer(self, service: Service) -> None:
        """Answer conversations about a service from now on."""
        self._services[service.name] = service

        async def answer(info: StreamInfo, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None, "libp2p's bindings call this in a task"
            self._answering.add(task)
            try:
                await self._answer(service, info, reader, writer)
            finally:
                self._answering.discard(task)

        await self._p2p.add_binary_stream_handler(handler_name(self._namespace, service.name), answer)

    async def leave(self, seconds: float) -> None:
        """Refuse new conversations, give those that are open `seconds` to end, then end them."""
        self._is_leaving = True
        for name in self._services:
            with contextlib.suppress(Exception):  # the daemon may be gone already, or hang
                async with asyncio.timeout(SECONDS_TO_REMOVE):
                    await self._p2p.remove_binary_stream_handler(handler_name(self._namespace, name))
        if answering := {task for task in self._answering if task is not asyncio.current_task()}:
            _, late = await asyncio.wait(answering, timeout=seconds)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _answer(
        self, service: Service, info: StreamInfo, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        peer, client = info.peer_id, stream_client_of(info.peer_id, str(info.addr))
        conversation = Conversation(
            peer,
            reader,
            writer,
            client=client,
            most_tensor_bytes=service.most_tensor_bytes,
            quota=self.messages,
            upload_limit=self._upload_limit,
            hears_heartbeats=False,
        )
        try:
            try:
                if self._is_leaving:
                    raise Refusal("leaving", "This server takes no new conversations.")
                with self.places.taken_during(client, 1):
                    await self._introductions.answer(conversation, service.about())
                    await _serve_while_open(service, conversation)
                last = Frame(kind=Kind.END)
            except Refusal as refusal:
                last = Frame(kind=Kind.REFUSAL, body=dict(code=refusal.code, text=refusal.text))
            except PeerGoneError:
                return
            except Exception:
                logger.exception("The service %s failed for %s.", service.name, peer)
                last = Frame(kind=Kind.REFUSAL, body=dict(code="failed", text="The server has met an error."))
            await self._end(conversation, last)
        finally:
            await conversation.close()

    async def _end(self, conversation: Conversation, last: Frame) -> None:
        """Say why a conversation is over."""
        if self._num_ending >= self._most_ending:
            return
        self._num_ending += 1
        try:
            await conversation.write(last)
            await conversation.until_reader_closes()
        except PeerGoneError:
            pass
        finally:
            self._num_ending -= 1


async def _serve_while_open(service: Service, conversation: Conversation) -> None:
    """Serve until the service is done, or nothing more can be read."""
    serving = asyncio.create_task(service.serve(conversation))
    alive = asyncio.create_task(conversation.keep_alive())
    try:
        await asyncio.wait({serving, conversation.reading}, return_when=asyncio.FIRST_COMPLETED)
        if not serving.done():
            raise conversation.reading.exception() or PeerGoneError("The stream has ended.")
        await serving
    finally:
        alive.cancel()
        serving.cancel()
        await asyncio.gather(serving, alive, return_exceptions=True)


def handler_name(namespace: str, service: str) -> str:
    """Return the name under which libp2p finds a service; it is part of the wire protocol."""
    return f"dalle-collab/{namespace}/{service}"
