"""The sending end of an all-reduce: a peer's own parts, signed and on their way to their reducers."""

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import torch
from hivemind.compression import CompressionInfo
from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2
from hivemind.utils.asyncio import amap_in_executor, as_aiter

from pipelines.training.averaging.reducing_end import ReducingEnd
from pipelines.training.averaging.wire.proportional_order import ProportionalOrder
from pipelines.training.averaging.wire.signed_inputs import part_statement


async def pass_at_once(number: int) -> None:
    """Let any number of bytes pass."""


class SendingEnd(ReducingEnd):
    """Signs this peer's parts, and sends them in streams whose shares are sent at the same pace."""

    def __init__(self, *, pass_bytes: Callable[[int], Awaitable[None]] = pass_at_once, **kwargs: Any) -> None:
        """`pass_bytes` waits until so many bytes may be sent; all else is as in `ReducingEnd`."""
        super().__init__(**kwargs)
        self._order = ProportionalOrder(pass_bytes)
        self.sent: dict[tuple[PeerID, int], tuple[float, bytes]] = {}
        """Weight and digest of this peer's own parts, by reducer and number, to which it has itself answered."""

    def _signed_part(
        self, reducer: PeerID, part_index: int, part_and_info: tuple[torch.Tensor, CompressionInfo]
    ) -> tuple[int, averaging_pb2.AveragingData, bytes]:
        """Return a part's number, the part as it is sent, and its digest; runs in a thread."""
        part = self.tensor_part_container.compression.compress(*part_and_info, allow_inplace=False)
        digest = hashlib.sha256(part.buffer).digest()
        statement = part_statement(self.group_id, self.peer_id, reducer, part_index, self.weight, digest)
        message = averaging_pb2.AveragingData(
            code=averaging_pb2.PART_FOR_AVERAGING, group_id=self.group_id, tensor_part=part, weight=self.weight,
            peer_id=self._signatures.sign(statement),
        )  # fmt: skip
        return part_index, message, digest

    def _parts_of_stream(self, peer_index: int, number: int) -> tuple[tuple[torch.Tensor, CompressionInfo], ...]:
        parts = tuple(self.tensor_part_container._input_parts_by_peer[peer_index])
        if not parts:  # the round is over
            return ()
        return tuple(parts[index] for index in self._streams_by_reducer[peer_index].part_indices(number))

    async def _messages_of_stream(self, peer_index: int, number: int) -> AsyncIterator[averaging_pb2.AveragingData]:
        reducer, indices = self.ordered_peer_ids[peer_index], self._streams_by_reducer[peer_index].part_indices(number)
        parts = self._parts_of_stream(peer_index, number)
        signed = amap_in_executor(
            partial(self._signed_part, reducer),
            as_aiter(*indices[: len(parts)]),
            as_aiter(*parts),
            max_prefetch=self.tensor_part_container.prefetch,
        )
        num_parts = self.tensor_part_container.num_parts_by_peer[peer_index]
        async for part_index, message, digest in signed:
            self.sent[reducer, part_index] = (message.weight, digest)
            self._count_bytes(len(message.tensor_part.buffer))
            await self._order.pass_part(len(message.tensor_part.buffer), (part_index + 1) / num_parts)
            yield message


def stream_hello(group_id: bytes, number: int) -> averaging_pb2.AveragingData:
    """Return the first message of a stream; its number is in a hivemind field that is otherwise unused."""
    return averaging_pb2.AveragingData(code=averaging_pb2.REQUEST_JOIN, group_id=group_id, peer_id=bytes([number]))
