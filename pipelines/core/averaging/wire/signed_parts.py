"""The parts of a round, signed by their senders, and the answers to them, signed by their reducers.

A reducer keeps its inputs for a while and shows them to members: with them anybody can make the average again. Its own
signature names the round, the part, the bytes, and what it made them of: whose parts, with which weights. So it does
not matter who passes an answer on, a member that did not get one takes it from any other member, and a false one can be
proven to everybody; see `evidence`. A reducer that dies, or that serves only some members, would otherwise leave the
others with other parameters.
"""

import asyncio
import hashlib
import math
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2
from hivemind.utils import MSGPackSerializer

from pipelines.core.signing.signed_statement import signed_bytes

DIGEST_BYTES = 32

SECONDS_TO_WAIT = 60.0
"""Those who ask for answers that this peer does not have yet leave long before."""


@dataclass(frozen=True, kw_only=True)
class WeighedInput:
    """What a reducer used of one sender for one part of its share."""

    sender: PeerID
    declared: float
    """The weight that the sender declared and signed."""

    weight: float
    """The weight that counted."""

    digest: bytes
    """SHA-256 of the sender's part as it came over the wire."""


def part_statement(
    group_id: bytes, sender: PeerID, reducer: PeerID, part_index: int, weight: float, digest: bytes
) -> bytes:
    """Return what a sender signs: these bytes, by their SHA-256, are its part of this number for this reducer."""
    return signed_bytes("part", group_id, sender.to_bytes(), reducer.to_bytes(), part_index, float(weight), digest)


def answer_statement(
    group_id: bytes, reducer: PeerID, part_index: int, buffer: bytes, contributions: Sequence[WeighedInput]
) -> bytes:
    """Return what a reducer signs: it made these bytes of these contributions, for this part of its share."""
    digests = [hashlib.sha256(content).digest() for content in (buffer, _as_bytes(contributions))]
    return signed_bytes("answer", group_id, reducer.to_bytes(), part_index, *digests)


def seal(signature: bytes, contributions: Sequence[WeighedInput]) -> bytes:
    """Return what goes with an answer, in hivemind's field for a peer id, which is otherwise unused."""
    return MSGPackSerializer.dumps([signature, _as_bytes(contributions)])


def read_seal(content: bytes) -> tuple[bytes, tuple[WeighedInput, ...]]:
    """Return the signature and the contributions that go with an answer; every sender is named once.

    Raises:
        ValueError: it is not a seal.
    """
    try:
        signature, listed = MSGPackSerializer.loads(content)
        contributions = tuple(map(_read_contribution, MSGPackSerializer.loads(listed)))
    except Exception as error:  # a stranger's bytes can fail in many ways
        raise ValueError("This does not go with an answer.") from error
    if not isinstance(signature, bytes) or len({c.sender for c in contributions}) != len(contributions):
        raise ValueError("This does not go with an answer.")
    return signature, contributions


def _as_bytes(contributions: Sequence[WeighedInput]) -> bytes:
    return MSGPackSerializer.dumps([[c.sender.to_bytes(), c.declared, c.weight, c.digest] for c in contributions])


def _read_contribution(fields: list[Any]) -> WeighedInput:
    sender, declared, weight, digest = fields
    are_weights = all(type(value) is float and 0 <= value < math.inf for value in (declared, weight))
    if not (are_weights and isinstance(sender, bytes) and isinstance(digest, bytes) and len(digest) == DIGEST_BYTES):
        raise ValueError("This is not a contribution.")
    return WeighedInput(sender=PeerID(sender), declared=declared, weight=weight, digest=digest)


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


class RoundInputs:
    """What a reducer was sent in one round, as messages with their signatures.

    They are as large as the vector on the wire: each of the senders sends this peer's share of it.
    """

    def __init__(self, members: Iterable[PeerID]) -> None:
        self._members = frozenset(members)
        self._waiting: dict[int, dict[PeerID, tuple[averaging_pb2.AveragingData, bytes]]] = {}
        self._used: dict[int, tuple[averaging_pb2.AveragingData, ...]] = {}
        self._shown_to: set[PeerID] = set()

    def keep(self, part_index: int, sender: PeerID, message: averaging_pb2.AveragingData, digest: bytes) -> None:
        """Keep a part that has been checked, whose buffer has this digest."""
        self._waiting.setdefault(part_index, {})[sender] = (message, digest)

    def use(self, part_index: int, weights: Mapping[PeerID, float]) -> tuple[WeighedInput, ...]:
        """Return the contributions to an average, given the senders' effective weights in order; forget the others'."""
        waiting = self._waiting.pop(part_index)
        used = [(sender, *waiting[sender], weight) for sender, weight in weights.items()]
        self._used[part_index] = tuple(message for _, message, _, _ in used)
        return tuple(
            WeighedInput(sender=sender, declared=message.weight, weight=float(weight), digest=digest)
            for sender, message, digest, weight in used
        )

    def shown_to(self, member: PeerID, part_indices: Sequence[int]) -> tuple[averaging_pb2.AveragingData, ...]:
        """Return the inputs of one part, in the order of its contributions; a member sees one part of a round, once."""
        if member not in self._members or member in self._shown_to or len(part_indices) != 1:
            return ()
        self._shown_to.add(member)
        return self._used.get(part_indices[0], ())


class RoundAnswers:
    """The answers of one round that this peer has, as messages with their signatures."""

    def __init__(self, members: Iterable[PeerID]) -> None:
        self._held: dict[PeerID, dict[int, averaging_pb2.AveragingData]] = {member: {} for member in members}
        self._ended: set[PeerID] = set()
        self._changed = asyncio.Event()
        self._given: set[tuple[PeerID, PeerID, int]] = set()

    def keep(self, reducer: PeerID, part_index: int, answer: averaging_pb2.AveragingData) -> None:
        """Keep a checked answer for the others."""
        self._held[reducer][part_index] = answer
        self._wake()

    def held(self, reducer: PeerID) -> Mapping[int, averaging_pb2.AveragingData]:
        """Return a reducer's answers that this peer has, by their parts."""
        return self._held[reducer]

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
