"""The state on the streams: a service that hands out this peer's snapshot, and its downloads of others'.

In the trainer's process: who serves copies bytes and waits, which leaves the processor to the training.
"""

import asyncio
import concurrent.futures
import contextlib
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Protocol

import torch
from hivemind.p2p import P2P, PeerID

from pipelines.core.admission.client import PeerAdmission
from pipelines.core.state.digest import StateManifest
from pipelines.core.state.download import (
    WANT_MANIFEST,
    DonorReport,
    DownloadLimits,
    StateDownload,
    StateDownloadError,
    StateRefusedError,
    read_request,
)
from pipelines.core.state.snapshot import CHUNK_BYTES, StateSnapshot
from pipelines.core.state.training_state import TrainingState
from pipelines.core.swarm.streams.asking import open_conversation
from pipelines.core.swarm.streams.conversation import Conversation
from pipelines.core.swarm.streams.frames import Frame
from pipelines.core.swarm.streams.introductions import Introductions
from pipelines.core.swarm.streams.peer_loop import PeerLoop
from pipelines.core.swarm.streams.refusals import Refusal
from pipelines.core.swarm.streams.server import StreamLimits, StreamServer
from pipelines.core.swarm.upload_limit import UploadLimit

SERVICE = "state"
LIMITS = StreamLimits(
    streams_per_peer=8,
    streams_per_address=128,
    streams=512,
    message_bytes_per_peer=2**17,
    message_bytes=2**21,
)
"""A newcomer has one stream to each of its donors; many newcomers of one lab share an address. What it sends is small,
and unpacked may take seventy times as much of the trainer's memory."""

SECONDS_BETWEEN_LOOKS = 0.2
SECONDS_TO_STAY = 15.0
"""How long a snapshot being sent waits for a newcomer that has stopped reading."""

SECONDS_BETWEEN_REQUESTS = 2.0
"""How long it waits for the newcomer's next request. With more it would fall behind a swarm of short epochs."""

SECONDS_OF_SILENCE = 60.0
"""How long a newcomer may request nothing, while others deliver to it."""

SECONDS_IN_ALL = 3600.0
"""How long a newcomer may keep a place. Then it comes again, and shows a token that is valid."""

SECONDS_TO_CLOSE = 10.0


class StateService:
    """Hands out the snapshot, so that epoch and tensors match whatever happens to the live state meanwhile."""

    name = SERVICE
    most_tensor_bytes = 0

    def __init__(self, snapshot: StateSnapshot) -> None:
        self.snapshot = snapshot
        self.shares = False
        """Whether requests are answered: only once this peer is known to be in step."""

        self._readers: Mapping[Conversation, float] = {}
        """Until when somebody who downloads the state asks for it to stay."""

    def about(self) -> Mapping[str, object]:
        """Return nothing: the signed records say who has which state."""
        return {}

    async def serve(self, conversation: Conversation) -> None:
        """Answer one request after the other with chunks, and a message without any as the end of each answer."""
        try:
            async with asyncio.timeout(SECONDS_IN_ALL):
                while await self._answer(await conversation.receive(SECONDS_OF_SILENCE), conversation):
                    pass
        except TimeoutError:
            raise Refusal("silent", f"A download has {SECONDS_IN_ALL:.0f} s.") from None
        finally:
            self._hold(conversation, 0)

    async def _answer(self, request: Frame, reader: Conversation) -> bool:
        """Answer a request; return whether it was about the snapshot's state: who wants another keeps no place."""
        num_chunks = 0
        async with contextlib.aclosing(self._hand_out(request.body, reader)) as chunks:
            async for chunk in chunks:
                await reader.send({}, dict(chunk=torch.frombuffer(chunk, dtype=torch.uint8)))
                num_chunks += 1
        await reader.send({})
        return num_chunks > 0

    async def _hand_out(self, request: Mapping[str, object], reader: Conversation) -> AsyncGenerator[bytearray, None]:
        """Yield the snapshot's hashes or tensors; less if the snapshot is, or becomes, another."""
        try:
            want, digest, indices = read_request(request, len(self.snapshot.layout))
        except ValueError as error:
            raise Refusal("invalid", str(error)) from error
        generation, manifest = self.snapshot.generation, self.snapshot.manifest()
        if not self.shares or manifest is None or manifest.digest != digest:
            return
        self._hold(reader, SECONDS_TO_STAY)
        if want == WANT_MANIFEST:
            text = manifest.encode()
            for start in range(0, len(text), CHUNK_BYTES):
                yield bytearray(text[start : start + CHUNK_BYTES])
        for index in indices:
            for chunk in self.snapshot.read(generation, self.snapshot.layout[index]):
                self._hold(reader, SECONDS_TO_STAY)
                yield chunk
            if self.snapshot.generation != generation:
                return
        self._hold(reader, SECONDS_BETWEEN_REQUESTS)

    def _hold(self, reader: Conversation, seconds: float) -> None:
        """Keep the snapshot as long as any reader asks for it: nobody ends it for another."""
        now = time.monotonic()
        self._readers = {r: until for r, until in self._readers.items() if until > now} | {reader: now + seconds}
        self.snapshot.hold(max(self._readers.values()) - now)


class SwarmNode(Protocol):
    """What an exchange needs of the DHT node."""

    peer_id: PeerID
    client_mode: bool

    async def replicate_p2p(self) -> P2P:
        """Return a connection to the node's daemon."""


class StateExchange:
    """Serves a state to other peers and replaces it by theirs. Build it when everything has been forked; `close` it."""

    def __init__(
        self,
        state: TrainingState,
        dht: SwarmNode,
        namespace: str,
        *,
        admission: PeerAdmission | None,
        upload_limit: UploadLimit | None = None,
        service: StateService | None = None,
    ) -> None:
        """`namespace` is the run's swarm id; `admission` this peer's, None: everybody is answered."""
        self.state, self.peer_id, self._is_client = state, dht.peer_id, dht.client_mode
        self._namespace, self._introductions = namespace, Introductions(admission)
        self._service = service or StateService(state.snapshot)
        self._loop = PeerLoop(dht).__enter__()
        self._server = StreamServer(
            self._loop.p2p, namespace, self._introductions, limits=LIMITS, upload_limit=upload_limit
        )
        if not self._is_client:
            self._loop.call(self._server.offer(self._service))

    @property
    def shares(self) -> bool:
        """Whether this peer answers newcomers."""
        return self._service.shares

    def share(self) -> None:
        """Answer newcomers from now on, unless this peer is in client mode."""
        self._service.shares = not self._is_client

    def download(
        self,
        *,
        digest: str,
        epoch: int,
        donors: Sequence[str],
        limits: DownloadLimits,
        total_seconds: float,
        show: Callable[[int, int], None],
        is_to_stop: Callable[[], bool] = lambda: False,
    ) -> DonorReport:
        """Download the state with this digest from these donors and load it; `show` gets bytes done and total.

        `is_to_stop` is asked often, in the loop.

        Raises:
            StateDownloadError: the donors did not deliver in time, or `is_to_stop`; what has arrived is kept for a
                retry.
            StateRefusedError: the state is unusable, whoever serves it.
        """
        connections = Donors(self._open, limits.chunk_seconds)
        download = StateDownload(self.state.snapshot, donors, connections.ask, limits, digest=digest, epoch=epoch)

        ended = threading.Event()

        async def run() -> StateManifest:
            try:
                async with contextlib.aclosing(connections):
                    return await _finished(download, total_seconds, is_to_stop)
            finally:
                ended.set()

        def write(snapshot: StateSnapshot) -> StateManifest:
            future, size, last = self._loop.start(run()), snapshot.num_bytes, time.monotonic() + total_seconds
            try:
                while not concurrent.futures.wait([future], SECONDS_BETWEEN_LOOKS).done:
                    show(min(download.num_done, size), size)
                    if time.monotonic() > last + SECONDS_TO_CLOSE:
                        raise StateDownloadError("The loop of the streams does not answer.", download.report())
                show(min(download.num_done, size), size)
                return future.result()
            except BaseException:  # nothing may be written any more when the caller goes on
                future.cancel()
                ended.wait(SECONDS_TO_CLOSE)
                raise

        self.state.take_over(write)
        return download.report()

    def close(self) -> None:
        """Serve no longer."""
        self._loop.call(self._server.leave(0))
        self._loop.__exit__()

    async def _open(self, donor: str, seconds: float) -> Conversation:
        conversation, _ = await open_conversation(
            self._loop.p2p,
            donor,
            self._namespace,
            SERVICE,
            self._introductions,
            most_tensor_bytes=CHUNK_BYTES,
            open_seconds=seconds / 3,  # it is tried twice
        )
        return conversation


async def _finished(download: StateDownload, seconds: float, is_to_stop: Callable[[], bool]) -> StateManifest:
    """Return the manifest of a download when all its tensors have arrived and fit; raises as `StateExchange.download`.

    Whatever fails, the trainer waits for an answer.
    """
    work = asyncio.create_task(download.run())
    try:
        async with asyncio.timeout(seconds):
            while not (await asyncio.wait({work}, timeout=SECONDS_BETWEEN_LOOKS))[0]:
                if is_to_stop():
                    raise StateDownloadError("The download was stopped: this peer leaves.", download.report())
            return await work
    except (StateDownloadError, StateRefusedError):
        raise
    except TimeoutError as error:
        raise StateDownloadError(f"The state did not arrive within {seconds:.0f} s.", download.report()) from error
    except Exception as error:
        raise StateDownloadError(str(error) or repr(error), download.report()) from error
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


class Donors:
    """Conversations with the donors of one download: each is opened by the first request, and then kept."""

    def __init__(self, open_one: Callable[[str, float], Awaitable[Conversation]], seconds: float) -> None:
        """`seconds` is how long a donor may be silent."""
        self._open, self._seconds = open_one, seconds
        self._idle: dict[str, Conversation] = {}
        self._all: set[Conversation] = set()

    async def ask(self, donor: str, request: Mapping[str, object]) -> AsyncGenerator[bytes, None]:
        """Yield the chunks of a donor's answer; who does not read them to the end is not told any more."""
        if (conversation := self._idle.pop(donor, None)) is None or conversation.reading.done():
            conversation = await self._open(donor, self._seconds)
            self._all.add(conversation)
        has_answered = False
        try:
            await conversation.send(request)
            while tensors := (await conversation.receive(self._seconds)).tensors:
                yield bytes(next(iter(tensors.values())).view(torch.uint8).numpy())
                has_answered = True
        except BaseException:
            await conversation.close()
            raise
        if has_answered:
            self._idle[donor] = conversation
        else:  # the donor, which has another state, ends it
            await conversation.close()

    async def aclose(self) -> None:
        """Close all conversations: the donors need not keep this state any longer."""
        await asyncio.gather(*(conversation.close() for conversation in self._all), return_exceptions=True)
