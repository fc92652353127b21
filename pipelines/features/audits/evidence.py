"""Whether a reducer's answer is what its inputs come to: a pure judgement, the same for everybody who makes it.

Evidence is what others have signed, and what binds their keys to their names: the answer with the list of what it was
made of, those parts, and the tokens of all who signed. Nothing else in it counts, and nothing depends on what this peer
has been told otherwise. So whoever believes it can convince everybody, and nobody can make it up.

Another version may round otherwise. An answer is false only if it is off by far more than that, and an accuser lies
only if it is off by far less: between the two, nobody is to blame.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Self

import torch
from hivemind.compression import CompressionBase
from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2, runtime_pb2
from hivemind.utils import MSGPackSerializer

from pipelines.core.averaging.reduce.robust_aggregation import (
    FAR_OFF,
    aggregate,
    are_possible_weights,
)
from pipelines.core.averaging.reduce.suspects import Misbehaviour, PartRefusedError
from pipelines.core.averaging.round_state import PartForm, RoundTerms
from pipelines.core.averaging.wire.codec import read_buffer
from pipelines.core.averaging.wire.signed_parts import WeighedInput, answer_statement, part_statement, read_seal, seal
from pipelines.core.equal_arithmetic import norm

SOUND_SHARES, FALSE_SHARES = (0.1, 1e-4), (0.3, 1e-3)
"""An answer is sound within these shares of the codec's own error and of the average's norm, and false beyond those.

A sum in another order is off by 1e-7 of its norm, and what is rounded to another bucket comes to 0.3 % of the codec's
error; if all values were off by 1e-6, it would be 4 % in 8 bits, and 5e-5 of the norm in float16 (measured).
"""

BORDER = 1e-3
"""A sender that is this close to being left out may count in one version and not in another: both are right."""

MANY_AT_THE_BORDER = 2
"""So many may have been treated differently, in more ways than are tried here."""


MOST_BYTES_PER_VALUE, SPARE_BYTES, MOST_SIGNATURE_BYTES = 4, 2**14, 2**11
"""What the buffers and signatures of evidence may take; no codec and no key needs more."""


class Verdict(Enum):
    """What evidence shows."""

    SOUND = auto()
    FALSE = auto()
    UNCLEAR = auto()
    """Neither, or it names peers that this one does not know from the round."""

    INVALID = auto()
    """Something in it is not signed, or does not belong together: an honest peer would not show it."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A reducer's signed answer with the signed parts that it names; nothing that is not proven."""

    reducer: PeerID
    part_index: int
    tokens: Mapping[PeerID, str]
    """Of the reducer and of the senders."""

    signature: bytes
    contributions: tuple[WeighedInput, ...]
    buffer: bytes
    inputs: tuple[tuple[bytes, bytes], ...]
    """Signature and buffer of each contribution."""

    @classmethod
    def of(
        cls,
        reducer: PeerID,
        part_index: int,
        tokens: Mapping[PeerID, str],
        messages: Sequence[averaging_pb2.AveragingData],
    ) -> Self:
        """Return what is proven by an answer and its inputs, in order; raises ValueError if it is no answer."""
        answer, *inputs = messages
        signature, contributions = read_seal(answer.peer_id)
        return cls(
            reducer=reducer,
            part_index=part_index,
            tokens={peer: tokens.get(peer, "") for peer in (reducer, *(c.sender for c in contributions))},
            signature=signature,
            contributions=contributions,
            buffer=answer.tensor_part.buffer,
            inputs=tuple((message.peer_id, message.tensor_part.buffer) for message in inputs),
        )

    def header(self) -> bytes:
        """Return what is not in the messages; see `read_header`."""
        tokens = [[peer.to_bytes(), token] for peer, token in self.tokens.items()]
        return MSGPackSerializer.dumps([self.reducer.to_bytes(), self.part_index, tokens])

    def messages(self) -> tuple[averaging_pb2.AveragingData, ...]:
        """Return the answer and its inputs as messages."""
        contents = [(seal(self.signature, self.contributions), self.buffer), *self.inputs]
        return tuple(
            averaging_pb2.AveragingData(peer_id=signed, tensor_part=runtime_pb2.Tensor(buffer=buffer))
            for signed, buffer in contents
        )


def read_header(content: bytes) -> tuple[PeerID, int, dict[PeerID, str]]:
    """Return the reducer, the part and the tokens of evidence; raises ValueError."""
    try:
        reducer, part_index, tokens = MSGPackSerializer.loads(content)
        peers = {PeerID(peer): token for peer, token in tokens}
        is_well_formed = type(part_index) is int and all(type(token) is str for token in peers.values())
        reducer = PeerID(reducer)
    except Exception:  # a stranger's bytes can fail in many ways
        is_well_formed = False
    if not is_well_formed:
        raise ValueError("This is not the header of an accusation.")
    return reducer, part_index, peers


def verdict(evidence: Evidence, terms: RoundTerms) -> Verdict:
    """Return what the evidence shows of an answer in this round."""
    contributions, parts = evidence.contributions, terms.parts.get(evidence.reducer, ())
    if not terms.senders.issuperset(c.sender for c in contributions) or not 0 <= evidence.part_index < len(parts):
        return Verdict.UNCLEAR
    form = parts[evidence.part_index]
    buffers = [evidence.buffer, *(buffer for _, buffer in evidence.inputs)]
    if max(map(len, buffers)) > SPARE_BYTES + MOST_BYTES_PER_VALUE * form.shape.numel():
        return Verdict.INVALID
    if not _is_signed(evidence, terms):
        return Verdict.INVALID
    weights = [c.weight for c in contributions]
    if not weights or not are_possible_weights(
        [c.declared for c in contributions], weights, terms.rule.max_weight_ratio
    ):
        return Verdict.FALSE
    try:
        answer, *inputs = [read_buffer(buffer, terms.compression, form.info, form.shape) for buffer in buffers]
    except PartRefusedError as error:
        # The reducer should have refused it. What cannot be read here may be readable elsewhere.
        return Verdict.FALSE if error.offence is Misbehaviour.NOT_FINITE else Verdict.UNCLEAR
    return _compared(answer, torch.stack([values.reshape(-1) for values in inputs]), weights, form, terms)


def _is_signed(evidence: Evidence, terms: RoundTerms) -> bool:
    """Return whether the reducer has signed the answer and the list, and the senders what is on it."""
    group_id, reducer, part_index = terms.group_id, evidence.reducer, evidence.part_index
    contributions = evidence.contributions
    digests = [hashlib.sha256(buffer).digest() for _, buffer in evidence.inputs]
    if digests != [c.digest for c in contributions]:
        return False
    statement = answer_statement(group_id, reducer, part_index, evidence.buffer, contributions)
    signed = [(reducer, statement, evidence.signature)]
    for c, (signature, _) in zip(contributions, evidence.inputs, strict=True):
        statement = part_statement(group_id, c.sender, reducer, part_index, c.declared, c.digest)
        signed.append((c.sender, statement, signature))
    return all(
        len(signature) <= MOST_SIGNATURE_BYTES
        and terms.has_signed(peer, evidence.tokens.get(peer, ""), statement, signature)
        for peer, statement, signature in signed
    )


def _compared(
    answer: torch.Tensor, inputs: torch.Tensor, weights: Sequence[float], form: PartForm, terms: RoundTerms
) -> Verdict:
    """Return what the difference shows between an answer and the average of its inputs, as made on this machine."""
    outcomes = []
    for far_off in (FAR_OFF, FAR_OFF * (1 - BORDER), FAR_OFF * (1 + BORDER)):
        average = aggregate(inputs, weights, terms.rule, far_off)
        outcomes.append(_difference(answer, average.values.view(form.shape), form, terms.compression))
        num_at_the_border = sum(abs(excess / FAR_OFF - 1) <= BORDER for excess in average.excess)
        if outcomes[-1] is Verdict.SOUND or not num_at_the_border:
            return outcomes[-1]
    are_false = set(outcomes) == {Verdict.FALSE} and num_at_the_border < MANY_AT_THE_BORDER
    return Verdict.FALSE if are_false else Verdict.UNCLEAR


def _difference(answer: torch.Tensor, average: torch.Tensor, form: PartForm, compression: CompressionBase) -> Verdict:
    if not torch.isfinite(average).all():
        return Verdict.UNCLEAR
    message = compression.compress(average, form.info, allow_inplace=False)
    own = read_buffer(message.buffer, compression, form.info, form.shape)
    codec_error, length, off = norm(own - average), norm(average), norm(answer - own)
    if off <= SOUND_SHARES[0] * codec_error + SOUND_SHARES[1] * length:
        return Verdict.SOUND
    return Verdict.FALSE if off > FALSE_SHARES[0] * codec_error + FALSE_SHARES[1] * length else Verdict.UNCLEAR
