"""The inputs of a round, each signed by its sender: a reducer keeps them for a while and shows them to members.

With them anybody can make the average again; see `evidence`.
"""

from collections.abc import Mapping, Sequence

from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2

from pipelines.core.averaging.wire.signed_answers import WeighedInput
from pipelines.core.signing.signed_statement import signed_bytes


def part_statement(
    group_id: bytes, sender: PeerID, reducer: PeerID, part_index: int, weight: float, digest: bytes
) -> bytes:
    """Return what a sender signs: these bytes, by their SHA-256, are its part of this number for this reducer."""
    return signed_bytes("part", group_id, sender.to_bytes(), reducer.to_bytes(), part_index, float(weight), digest)


class RoundInputs:
    """What a reducer was sent in one round, as messages with their signatures.

    They are as large as the vector on the wire: each of the senders sends this peer's share of it.
    """

    def __init__(self, members: Sequence[PeerID]) -> None:
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
