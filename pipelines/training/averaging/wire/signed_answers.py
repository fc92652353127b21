"""The answers of a round, each signed by its reducer: a member that did not get one takes it from any other member.

A reducer that dies, or that serves only some members, would otherwise leave the others with other parameters. Its
signature names the round, the part and the bytes, so it does not matter who passes an answer on, and two signatures of
one reducer under different bytes for the same part prove that it lied.
"""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Sequence

from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2
from hivemind.utils import MSGPackSerializer

ANSWER_DOMAIN = b"dalle-collab answer 1"

SECONDS_TO_WAIT = 60.0
"""Those who ask for answers that this peer does not have yet leave long before."""


def answer_statement(group_id: bytes, reducer: PeerID, part_index: int, buffer: bytes) -> bytes:
    """Return what a reducer signs: these bytes are its answer for this part, by its number in the reducer's share."""
    digest = hashlib.sha256(buffer).digest()
    return MSGPackSerializer.dumps([ANSWER_DOMAIN, group_id, reducer.to_bytes(), part_index, digest])


def answers_request(group_id: bytes, reducer: PeerID, part_indices: Sequence[int]) -> averaging_pb2.DownloadData:
    """Return the request for a reducer's answers to these parts of its share."""
    return averaging_pb2.DownloadData(
        metadata=MSGPackSerializer.dumps([group_id, reducer.to_bytes(), list(part_indices)])
    )


def read_answers_request(request: averaging_pb2.DownloadData) -> tuple[bytes, PeerID, list[int]]:
    """Return the group, the reducer and the parts that another member asks for.

    Raises:
        ValueError: the request is invalid.
    """
    try:
        group_id, reducer, part_indices = MSGPackSerializer.loads(request.metadata)
        is_well_formed = isinstance(group_id, bytes) and isinstance(reducer, bytes) and isinstance(part_indices, list)
    except Exception:  # a stranger's bytes can fail in many ways
        is_well_formed = False
    if not is_well_formed or not all(type(index) is int for index in part_indices):
        raise ValueError("This is not a request for the answers of a round.")
    return group_id, PeerID(reducer), part_indices


class RoundAnswers:
    """The answers of one round that this peer has, as messages with their signatures."""

    def __init__(self, members: Sequence[PeerID]) -> None:
        self._held: dict[PeerID, dict[int, averaging_pb2.AveragingData]] = {member: {} for member in members}
        self._ended: set[PeerID] = set()
        self._changed = asyncio.Event()
        self._given: set[tuple[PeerID, PeerID, int]] = set()

    def keep(self, reducer: PeerID, part_index: int, answer: averaging_pb2.AveragingData) -> None:
        """Keep a checked answer for the others."""
        self._held[reducer][part_index] = answer
        self._wake()

    def end(self, reducer: PeerID) -> None:
        """Note that this peer takes no more answers from a reducer itself: it has all, or the reducer has failed."""
        self._ended.add(reducer)
        self._wake()

    async def given_to(
        self, member: PeerID, reducer: PeerID, part_indices: Sequence[int]
    ) -> AsyncGenerator[averaging_pb2.AveragingData, None]:
        """Yield a reducer's answers to these parts, in order, as this peer gets them, each to each member once.

        At the first part that this peer does not get any more it yields an empty message. The member may leave earlier.

        Raises:
            TimeoutError: this peer has waited for `SECONDS_TO_WAIT` itself.
        """
        if not {member, reducer} <= self._held.keys():
            return
        for index in part_indices:
            while index not in self._held[reducer]:
                if reducer in self._ended:
                    yield averaging_pb2.AveragingData()
                    return
                async with asyncio.timeout(SECONDS_TO_WAIT):
                    await self._changed.wait()
            if (member, reducer, index) in self._given:
                return
            self._given.add((member, reducer, index))
            yield self._held[reducer][index]

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
