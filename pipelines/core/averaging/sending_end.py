"""The sending end of an all-reduce: a peer's own parts, signed and on their way to their reducers."""

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import torch
from hivemind.compression import CompressionInfo
from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2
from hivemind.utils.asyncio import amap_in_executor, as_aiter

from pipelines.core.averaging.round_state import PREFETCH, RoundState
from pipelines.core.averaging.wire.signed_parts import part_statement
from pipelines.core.averaging.wire.streams import ProportionalOrder


async def pass_at_once(number: int) -> None:
    """Let any number of bytes pass."""


class SendingEnd:
    """Signs this peer's parts, and sends them in streams whose shares are sent at the same pace."""

    def __init__(self, state: RoundState, pass_bytes: Callable[[int], Awaitable[None]] = pass_at_once) -> None:
        """`pass_bytes` waits until so many bytes may be sent."""
        self._round, self._order = state, ProportionalOrder(pass_bytes)

    def signed_part(
        self, reducer: PeerID, part_index: int, part_and_info: tuple[torch.Tensor, CompressionInfo]
    ) -> tuple[int, averaging_pb2.AveragingData, bytes]:
        """Return a part's number, the part as it is sent, and its digest; runs in a thread."""
        state = self._round
        part = state.terms.compression.compress(*part_and_info, allow_inplace=False)
        digest = hashlib.sha256(part.buffer).digest()
        statement = part_statement(state.group_id, state.peer_id, reducer, part_index, state.weight, digest)
        message = averaging_pb2.AveragingData(
            code=averaging_pb2.PART_FOR_AVERAGING, group_id=state.group_id, tensor_part=part, weight=state.weight,
            peer_id=state.signatures.sign(statement),
        )  # fmt: skip
        return part_index, message, digest

    async def messages_of_stream(self, reducer: PeerID, number: int) -> AsyncIterator[averaging_pb2.AveragingData]:
        """Yield the parts that go to a reducer in one stream."""
        state, parts = self._round, self._round.parts[reducer]
        indices = state.streams[reducer].part_indices(number)
        signed = amap_in_executor(
            partial(self.signed_part, reducer),
            as_aiter(*indices),
            as_aiter(*(parts[index] for index in indices)),
            max_prefetch=PREFETCH,
        )
        async for part_index, message, digest in signed:
            state.sent[reducer, part_index] = (message.weight, digest)
            state.count_bytes(len(message.tensor_part.buffer))
            await self._order.pass_part(len(message.tensor_part.buffer), (part_index + 1) / len(parts))
            yield message


def stream_hello(group_id: bytes, number: int) -> averaging_pb2.AveragingData:
    """Return the first message of a stream; its number is in a hivemind field that is otherwise unused."""
    return averaging_pb2.AveragingData(code=averaging_pb2.REQUEST_JOIN, group_id=group_id, peer_id=bytes([number]))


def stream_number_of(hello: averaging_pb2.AveragingData) -> int:
    """Return the stream that a hello names, or -1 for one that names none."""
    return hello.peer_id[0] if len(hello.peer_id) == 1 else -1
