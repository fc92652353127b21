"""Members of an open run with real keys, and rounds in which all of them have really signed what they sent."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace

import torch
from admission_tokens import peer_id, rsa_key
from hivemind.compression import CompressionInfo, Float16Compression, NoCompression
from hivemind.p2p import PeerID
from hivemind.utils.crypto import RSAPrivateKey

from pipelines.core.admission.averaging_gate import AdmissionGate, GroupSignatures
from pipelines.core.admission.tokens import TokenCheck, own_admission, token_of
from pipelines.core.averaging.reduce.robust_aggregation import AggregationRule, aggregate, bounded_weights
from pipelines.core.averaging.round_state import PartForm, RoundTerms
from pipelines.core.averaging.wire.codec import Blockwise8BitCodec
from pipelines.core.averaging.wire.signed_parts import WeighedInput, answer_statement, part_statement
from pipelines.features.audits.evidence import Evidence

GROUP, PART, NUM_VALUES = b"group", 1, 2**14
RULE = AggregationRule()
CODECS = {
    "float32": NoCompression(),
    "float16": Float16Compression(),
    "blockwise": Blockwise8BitCodec(),
}
DISTRIBUTIONS = {
    "gaussian": torch.randn,
    "heavy tails": lambda n, generator: torch.randn(n, generator=generator) ** 5,
    "sparse": lambda n, generator: torch.randn(n, generator=generator) * (torch.rand(n, generator=generator) < 0.01),
}
NAMES = ("reducer", "first", "second", "third")


class Member:
    """A peer of an open run with real keys and a token that it has signed itself."""

    def __init__(self, name: str, now: float = 0.0) -> None:
        peer_key, self.record_key = rsa_key(name), RSAPrivateKey()
        record_key = self.record_key.get_public_key().to_bytes().decode()
        self.peer_id = PeerID(peer_id(name))
        # Long expired: what is signed stays signed.
        self.token = token_of(own_admission("run", peer_key, record_key, now=now, expires_at=now + 1), peer_key)


MEMBERS = {name: Member(name) for name in NAMES}
OTHER_KEY = Member("first", now=1.0)
"""The first member, as it would be by another token."""

STRANGER = Member("stranger")
GATE = AdmissionGate(SimpleNamespace(check=TokenCheck("run", "")), "run_grad_averager", 60.0)
SIGNATURES = GroupSignatures(gate=GATE, tokens={})


def ids(*names: str) -> list[PeerID]:
    return [MEMBERS[name].peer_id for name in names]


def terms_with(compression: object = CODECS["float32"], **changes: object) -> RoundTerms:
    values = torch.zeros(NUM_VALUES)
    form = PartForm(shape=values.shape, info=CompressionInfo.from_tensor(values, key=0))
    known = RoundTerms(
        group_id=GROUP, senders=frozenset(ids(*NAMES)), parts={MEMBERS["reducer"].peer_id: [form, form]},
        compression=compression, rule=RULE, has_signed=SIGNATURES.has_signed,
    )  # fmt: skip
    return replace(known, **changes)


def gradients(distribution: str = "gaussian", noise: float = 0.3) -> list[torch.Tensor]:
    make = DISTRIBUTIONS[distribution]
    common = make(NUM_VALUES, generator=torch.Generator().manual_seed(0))
    own = [make(NUM_VALUES, generator=torch.Generator().manual_seed(1 + number)) for number in range(len(NAMES))]
    return [common + noise * values for values in own]


def made(
    terms: RoundTerms,
    vectors: Sequence[torch.Tensor] | None = None,
    *,
    declared: Sequence[float] = (3.0, 4.0, 5.0, 40.0),
    weights: Sequence[float] | None = None,
    lie: Callable[[torch.Tensor], torch.Tensor] = lambda average: average,
    **changes: object,
) -> Evidence:
    """Return a round's evidence: who signs what is real, and `lie` is what the reducer makes of the average."""
    settings = dict(group_id=GROUP, part=PART, reducer=MEMBERS["reducer"], signer=None, names=NAMES) | changes
    names, reducer = settings["names"], settings["reducer"]
    form = terms.parts[MEMBERS["reducer"].peer_id][PART]
    vectors = gradients() if vectors is None else vectors
    bounded = bounded_weights(dict(enumerate(declared)), {}, RULE.max_weight_ratio)
    weights = list(bounded.values()) if weights is None else weights
    buffers = [terms.compression.compress(vector, form.info).buffer for vector in vectors]
    read = torch.stack([terms.compression.extract(terms.compression.compress(v, form.info)) for v in vectors])
    inputs, contributions = [], []
    for name, most, weight, buffer in zip(names, declared, weights, buffers, strict=True):
        digest = hashlib.sha256(buffer).digest()
        statement = part_statement(
            settings["group_id"], MEMBERS[name].peer_id, reducer.peer_id, settings["part"], most, digest
        )
        inputs.append((MEMBERS[name].record_key.sign(statement), buffer))
        contributions.append(WeighedInput(sender=MEMBERS[name].peer_id, declared=most, weight=weight, digest=digest))
    average = lie(aggregate(read, weights, RULE).values)
    buffer = terms.compression.compress(average, form.info).buffer
    statement = answer_statement(settings["group_id"], reducer.peer_id, settings["part"], buffer, contributions)
    return Evidence(
        reducer=reducer.peer_id, part_index=settings["part"],
        tokens={member.peer_id: member.token for member in MEMBERS.values()},
        signature=(settings["signer"] or reducer).record_key.sign(statement), contributions=tuple(contributions),
        buffer=buffer, inputs=tuple(inputs),
    )  # fmt: skip
