"""How contributions travel: given once to a fan-out node, and taken from whoever has them.

Messages are chunks of a few seconds of a slow link, so that a time-out between two of them shows who has stopped.
"""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass

from hivemind.p2p import PeerID
from hivemind.p2p.servicer import StubBase
from hivemind.proto import averaging_pb2, runtime_pb2
from hivemind.utils import MSGPackSerializer
from hivemind.utils.asyncio import aiter_with_timeout, anext, as_aiter

from pipelines.core.averaging.wire.streams import open_greeted
from pipelines.core.swarm.upload_limit import UploadLimit, pass_bytes
from pipelines.features.sparse.announcement import DIGEST_BYTES, Announcement
from pipelines.features.sparse.contribution_cache import ContributionCache

CHUNK_BYTES = 2**15
CHUNK_SECONDS = 15.0
"""Between two chunks: 2 Mbit/s shared by a hundred members take less."""

SLOWEST_BYTES_PER_SECOND = 2**14
"""Who is slower than this, with what a chunk may take on top, is given up."""

PATIENT_SHARE = 0.9
"""Share of the time until a contribution must begin to come, in which a peer may wait for it itself."""

SECONDS_TO_OPEN, ATTEMPTS_TO_OPEN = 5.0, 3
MOST_EPOCHS = 2**40

Messages = AsyncIterator[averaging_pb2.AveragingData]


class AlteredError(ValueError):
    """A peer gave other bytes than those it was asked for."""


class NotHeldError(LookupError):
    """A peer does not have what it was asked for."""


@dataclass(frozen=True, kw_only=True)
class Transferred:
    """A contribution as it arrived."""

    content: bytes
    receipt: bytes
    """A fan-out node's signature for its owner, if that has given it; empty: none."""


def seconds_for(num_bytes: int) -> float:
    """Return the most seconds that this many bytes may take."""
    return CHUNK_SECONDS + num_bytes / SLOWEST_BYTES_PER_SECOND


class Transfers:
    """Gives, takes and passes on contributions, in an averager's process."""

    def __init__(
        self,
        cache: ContributionCache,
        stub_of: Callable[[PeerID], StubBase],
        *,
        count_bytes: Callable[[int], None],
        upload_limit: UploadLimit | None,
        sign_receipt: Callable[[bytes, int], bytes],
        note_taken: Callable[[bytes], None],
    ) -> None:
        """`sign_receipt` signs for a digest and an epoch; `note_taken` hears of what a peer has got from here."""
        self.cache, self._stub_of = cache, stub_of
        self._count_bytes, self._upload_limit, self._note_taken = count_bytes, upload_limit, note_taken
        self._sign_receipt = sign_receipt
        self._receipts: dict[bytes, bytes] = {}

    async def give(self, peer: PeerID, announcement: Announcement, epoch: int) -> None:
        """Give a contribution that this peer holds to another one, and keep its receipt.

        Raises:
            Exception: that peer does not take it; peers fail in many ways.
        """
        content = self.cache.get(announcement.digest)
        assert content is not None, "what is given is held"
        fields = [announcement.digest, announcement.num_bytes, epoch]
        hello = averaging_pb2.AveragingData(code=averaging_pb2.REQUEST_JOIN, peer_id=MSGPackSerializer.dumps(fields))
        async with asyncio.timeout(SECONDS_TO_OPEN * ATTEMPTS_TO_OPEN + seconds_for(len(content))):
            stream = await open_greeted(
                self._stub_of(peer).rpc_give_contribution,
                hello=hello,
                messages=self._given(content),
                is_greeting=lambda message: message.code == averaging_pb2.ACCEPTED,
                seconds=SECONDS_TO_OPEN,
                attempts=ATTEMPTS_TO_OPEN,
            )
            async with aclosing(stream):
                answer = await anext(stream)
        if answer.code != averaging_pb2.ACCEPTED:
            raise ConnectionError(f"{peer} did not take a contribution.")
        self._receipts = {announcement.digest: answer.peer_id}
        self._note_taken(announcement.digest)

    async def receive(self, giver: PeerID, messages: Messages) -> AsyncGenerator[averaging_pb2.AveragingData, None]:
        """Take a contribution that another peer gives for everybody; yield the answers to it."""
        async with asyncio.timeout(CHUNK_SECONDS):
            hello = await anext(messages)
        try:
            digest, num_bytes, epoch = _read_gift(hello.peer_id)
        except ValueError:
            yield averaging_pb2.AveragingData(code=averaging_pb2.PROTOCOL_VIOLATION)
            return
        if not self.cache.accept(giver, num_bytes, epoch):
            yield averaging_pb2.AveragingData(code=averaging_pb2.CANCELLED)
            return
        with self.cache.coming(digest):
            yield averaging_pb2.AveragingData(code=averaging_pb2.ACCEPTED)
            buffers = (message.tensor_part.buffer async for message in aiter_with_timeout(messages, CHUNK_SECONDS))
            try:
                async with asyncio.timeout(seconds_for(num_bytes)):
                    content = await _joined(buffers, digest, num_bytes)
            except (TimeoutError, AlteredError, StopAsyncIteration):
                yield averaging_pb2.AveragingData(code=averaging_pb2.PROTOCOL_VIOLATION)
                return
            self.cache.put(digest, content, epoch)
        signature = self._sign_receipt(digest, epoch)
        yield averaging_pb2.AveragingData(code=averaging_pb2.ACCEPTED, peer_id=signature)

    async def take(self, peer: PeerID, announcement: Announcement, seconds: float, *, is_patient: bool) -> Transferred:
        """Take a contribution from a peer that begins to give it within so many seconds.

        `is_patient`: it may be getting it itself meanwhile.

        Raises:
            NotHeldError: it does not have it.
            AlteredError: it gave something else.
            Exception: peers fail in many ways.
        """
        patience = PATIENT_SHARE * seconds if is_patient else 0.0
        request = averaging_pb2.DownloadData(metadata=MSGPackSerializer.dumps([announcement.digest, patience]))
        async with asyncio.timeout(seconds):
            stream = await self._stub_of(peer).rpc_take_contribution(request)
            header = await anext(stream)
        async with aclosing(stream), asyncio.timeout(seconds_for(announcement.num_bytes)):
            if not header.metadata:
                raise NotHeldError(f"{peer} does not have it.")
            receipt = MSGPackSerializer.loads(header.metadata)[0]
            buffers = (message.tensor_part.buffer async for message in aiter_with_timeout(stream, CHUNK_SECONDS))
            content = await _joined(buffers, announcement.digest, announcement.num_bytes)
        return Transferred(content=content, receipt=receipt if isinstance(receipt, bytes) else b"")

    async def pass_on(
        self, taker: PeerID, request: averaging_pb2.DownloadData
    ) -> AsyncGenerator[averaging_pb2.DownloadData, None]:
        """Yield a contribution that a peer asks for: a header, then its bytes; an empty message if it is not here."""
        digest, patience = _read_take(request.metadata)
        content = await self.cache.find(digest, min(patience, seconds_for(self.cache.sizes.stop)))
        if content is None or not self.cache.may_take(taker, digest):
            yield averaging_pb2.DownloadData()
            return
        yield averaging_pb2.DownloadData(metadata=MSGPackSerializer.dumps([self._receipts.get(digest, b"")]))
        async for chunk in self._sent_slowly(content):
            yield averaging_pb2.DownloadData(tensor_part=runtime_pb2.Tensor(buffer=chunk))
        self._note_taken(digest)

    async def _given(self, content: bytes) -> Messages:
        async for chunk in self._sent_slowly(content):
            yield averaging_pb2.AveragingData(
                code=averaging_pb2.PART_FOR_AVERAGING, tensor_part=runtime_pb2.Tensor(buffer=chunk)
            )

    async def _sent_slowly(self, content: bytes) -> AsyncGenerator[bytes, None]:
        chunks = [content[start : start + CHUNK_BYTES] for start in range(0, len(content), CHUNK_BYTES)]
        async for chunk in as_aiter(*chunks):
            await pass_bytes(self._upload_limit, len(chunk))
            self._count_bytes(len(chunk))
            yield chunk


async def _joined(buffers: AsyncIterator[bytes], digest: bytes, num_bytes: int) -> bytes:
    """Return the bytes that come in chunks; raises AlteredError unless they are those with this digest and size."""
    content = bytearray()
    while len(content) < num_bytes:
        chunk = await anext(buffers)
        if not 0 < len(chunk) <= num_bytes - len(content):
            raise AlteredError(f"It gave a chunk of {len(chunk)} bytes; expected 1 to {num_bytes - len(content)}.")
        content += chunk
    if hashlib.sha256(content).digest() != digest:
        raise AlteredError("It gave bytes with another digest.")
    return bytes(content)


def _read_gift(content: bytes) -> tuple[bytes, int, int]:
    try:
        digest, num_bytes, epoch = MSGPackSerializer.loads(content)
    except Exception as error:  # a stranger's bytes can fail in many ways
        raise ValueError("This announces no contribution.") from error
    are_whole = type(num_bytes) is int and type(epoch) is int and 0 <= epoch < MOST_EPOCHS
    if not (isinstance(digest, bytes) and len(digest) == DIGEST_BYTES and are_whole):
        raise ValueError("This announces no contribution.")
    return digest, num_bytes, epoch


def _read_take(content: bytes) -> tuple[bytes, float]:
    try:
        digest, patience = MSGPackSerializer.loads(content)
    except Exception as error:  # a stranger's bytes can fail in many ways
        raise ValueError("This asks for no contribution.") from error
    if not (isinstance(digest, bytes) and len(digest) == DIGEST_BYTES and type(patience) is float and patience >= 0):
        raise ValueError("This asks for no contribution.")
    return digest, patience
