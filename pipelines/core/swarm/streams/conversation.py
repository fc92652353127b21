"""One stream between two peers, seen from either end."""

import asyncio
import contextlib
import time
from collections.abc import Mapping

from hivemind.p2p import PeerID
from torch import Tensor

from pipelines.core.admission.tokens import Admission
from pipelines.core.swarm.streams.frames import Frame, Kind, buffers_of, read_header, read_rest
from pipelines.core.swarm.streams.quotas import Quota
from pipelines.core.swarm.streams.refusals import PeerGoneError, PeerSilentError, Refusal
from pipelines.core.swarm.streams.stream_clients import StreamClient
from pipelines.core.swarm.upload_limit import UploadLimit, pass_bytes

HEARTBEAT_SECONDS = 1.0
LEAST_SILENCE_SECONDS = 2.0
STEPS_OF_SILENCE = 10.0
"""A peer counts as gone when it was silent for so many of its usual steps, and for the least time above."""

SECONDS_TO_WRITE = 30.0
"""A reader that takes nothing for so long is gone."""

SECONDS_TO_CLOSE = 5.0
"""How long a writer waits for its reader to close the stream, so that the last message is not lost."""

GRACE_SECONDS = 0.1
"""What a late reader, on a busy machine, gets to look at what has already arrived."""

MESSAGES_AHEAD = 4
"""Messages that are read before they are asked for; then the stream stops until they are."""


def silence_seconds(usual_step_seconds: float, round_trip_seconds: float) -> float:
    """Return how long a live peer is silent at most, between two frames, heartbeats included."""
    return max(LEAST_SILENCE_SECONDS, STEPS_OF_SILENCE * usual_step_seconds) + round_trip_seconds


class Conversation:
    """Messages in both directions. All methods belong to the event loop that opened it."""

    def __init__(
        self,
        peer: PeerID,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        client: StreamClient | None = None,
        most_tensor_bytes: int,
        quota: Quota | None = None,
        upload_limit: UploadLimit | None = None,
        hears_heartbeats: bool = True,
    ) -> None:
        self.peer = peer
        """Who is at the other end; libp2p has authenticated it."""

        self.client = client or StreamClient(peer)
        """The other peer with its address, at the answering end."""

        self.admission: Admission | None = None
        """What the other peer's token says, in a run with an authority."""

        self.round_trip_seconds = 0.0
        """Measured when the stream was opened, at the asking end."""

        self._reader, self._writer = reader, writer
        self._most_tensor_bytes, self._quota, self._upload_limit = most_tensor_bytes, quota, upload_limit
        self._hears_heartbeats = hears_heartbeats
        self._inbox: asyncio.Queue[tuple[Frame, int]] = asyncio.Queue(MESSAGES_AHEAD)
        self._writing = asyncio.Lock()
        self._held = 0
        self.last_heard = self.last_sent = time.monotonic()
        self.reading = asyncio.create_task(self._read_frames())
        """Ends, with the reason as its exception, when nothing more can be read."""

    async def send(self, body: Mapping[str, object], tensors: Mapping[str, Tensor] = {}) -> None:
        """Send a message; return when it has left this process.

        Raises:
            PeerGoneError: the other peer has closed the stream, or takes nothing.
            ValueError: see `buffers_of`.
        """
        await self.write(Frame(kind=Kind.MESSAGE, body=body, tensors=tensors))

    async def receive(self, most_seconds: float) -> Frame:
        """Return the next message, of any kind but heartbeats.

        Raises:
            PeerGoneError: the other peer has closed the stream; known at once.
            PeerSilentError: nothing, not even a heartbeat, has come for `most_seconds`.
            Refusal: the other peer has refused, or has sent what is no message.
        """
        waited_from = time.monotonic()
        while (frame := await self._next_frame(self._left(waited_from, most_seconds))) is None:
            await asyncio.sleep(GRACE_SECONDS)  # this process may have been late itself
            if self._inbox.empty() and not self.reading.done() and not self._left(waited_from, most_seconds):
                raise PeerSilentError(f"{self.peer} has been silent for {most_seconds:.1f} s.")
        if frame.kind is Kind.REFUSAL:
            raise Refusal(str(frame.body.get("code")), str(frame.body.get("text")))
        if frame.kind is Kind.END:
            raise PeerGoneError("The other peer has ended the conversation.")
        return frame

    async def receive_answer(self, most_seconds: float, usual_step_seconds: float) -> Frame:
        """Return the next message of a peer that computes for this one, and usually sends one in so many seconds.

        Raises:
            PeerGoneError: see `receive`; or only heartbeats have come for `most_seconds`, and for many usual steps.
            PeerSilentError: see `receive`; nothing has come for longer than a peer is silent that computes.
            Refusal: see `receive`.
        """
        longest = max(most_seconds, STEPS_OF_SILENCE * usual_step_seconds)
        try:
            async with asyncio.timeout(longest):
                return await self.receive(silence_seconds(usual_step_seconds, self.round_trip_seconds))
        except TimeoutError:
            raise PeerGoneError(f"It shows that it lives, and has sent nothing else for {longest:.0f} s.") from None

    async def write(self, frame: Frame) -> None:
        """Send any frame; raises as `send`."""
        buffers = buffers_of(frame)
        await pass_bytes(self._upload_limit, sum(map(len, buffers)))
        try:
            async with asyncio.timeout(SECONDS_TO_WRITE), self._writing:
                self._writer.writelines(buffers)
                await self._writer.drain()
        except (OSError, TimeoutError, RuntimeError) as error:  # a closed transport raises a RuntimeError
            raise PeerGoneError(f"{self.peer} takes nothing any more.") from error
        self.last_sent = time.monotonic()

    async def keep_alive(self) -> None:
        """Send a heartbeat whenever nothing else was sent for a second, until this is cancelled or the peer is gone."""
        with contextlib.suppress(PeerGoneError):
            while True:
                idle = time.monotonic() - self.last_sent
                if idle >= HEARTBEAT_SECONDS:
                    await self.write(Frame(kind=Kind.HEARTBEAT))
                else:
                    await asyncio.sleep(HEARTBEAT_SECONDS - idle)

    async def until_reader_closes(self) -> None:
        """Wait, not for long, until the other peer has closed the stream: its daemon forgets what it has not read."""
        with contextlib.suppress(TimeoutError, PeerGoneError, Refusal):
            async with asyncio.timeout(SECONDS_TO_CLOSE):
                while True:
                    await self._next_frame(SECONDS_TO_CLOSE)

    async def close(self) -> None:
        """Close the stream, and give back what its messages hold; the other peer notices at once."""
        self.reading.cancel()
        self._writer.close()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await self.reading
        self._release(self._held)
        while not self._inbox.empty():
            self._release(self._inbox.get_nowait()[1])

    async def __aenter__(self) -> "Conversation":
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def _left(self, waited_from: float, most_seconds: float) -> float:
        """Return for how long the other peer may still be silent."""
        return max(0.0, max(waited_from, self.last_heard) + most_seconds - time.monotonic())

    async def _next_frame(self, seconds: float) -> Frame | None:
        """Return the next frame, or None if there is none in time; a message counts until the next is asked for."""
        self._release(self._held)
        self._held = 0
        waiting = asyncio.create_task(self._inbox.get())
        try:
            await asyncio.wait({waiting, self.reading}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not waiting.done():
                waiting.cancel()
        if waiting.done() and not waiting.cancelled():
            frame, self._held = waiting.result()
            return frame
        if self.reading.done():
            if self._inbox.empty():
                raise self.reading.exception() or PeerGoneError(f"{self.peer} has closed the stream.")
            frame, self._held = self._inbox.get_nowait()
            return frame
        return None

    async def _read_frames(self) -> None:
        while True:
            header = await read_header(self._reader, self._most_tensor_bytes)
            booked = header.map_bytes + header.tensor_bytes
            self._take(booked)
            try:
                frame = await read_rest(self._reader, header)
            except BaseException:
                self._release(booked)
                raise
            self.last_heard = time.monotonic()
            if frame.kind is Kind.HEARTBEAT:
                self._release(booked)
                if not self._hears_heartbeats:
                    raise Refusal("malformed", "Only the answering peer sends heartbeats.")
                continue
            try:
                await self._inbox.put((frame, booked))
            except BaseException:
                self._release(booked)
                raise

    def _take(self, number: int) -> None:
        if self._quota is not None:
            self._quota.take(self.client, number)

    def _release(self, number: int) -> None:
        if self._quota is not None and number:
            self._quota.give_back(self.client, number)
