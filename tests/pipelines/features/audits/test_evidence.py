"""What evidence against a reducer shows: nobody gets away with a false average, and nobody can be framed."""

import math
from dataclasses import replace

import pytest
import torch
from admission_tokens import rsa_key
from signed_rounds import (
    CODECS,
    GROUP,
    MEMBERS,
    NAMES,
    NUM_VALUES,
    OTHER_KEY,
    PART,
    RULE,
    STRANGER,
    gradients,
    ids,
    made,
    terms_with,
)

from pipelines.core.admission.tokens import own_admission, token_of
from pipelines.core.averaging.reduce.robust_aggregation import FAR_OFF, aggregate
from pipelines.core.averaging.wire.signed_parts import answer_statement, part_statement, seal
from pipelines.features.audits.evidence import BORDER, Evidence, Verdict, read_header, verdict


@pytest.mark.parametrize("distribution", ["gaussian", "heavy tails", "sparse"])
@pytest.mark.parametrize("codec", CODECS)
def test_an_average_is_sound_on_this_machine_and_where_sums_are_rounded_otherwise(codec, distribution):
    terms, vectors = terms_with(CODECS[codec]), gradients(distribution)
    assert verdict(made(terms, vectors), terms) is Verdict.SOUND
    generator = torch.Generator().manual_seed(9)
    for size in (1e-7, 1e-6):
        noise = size * torch.randn(NUM_VALUES, generator=generator)
        elsewhere = made(terms, vectors, lie=lambda average, n=noise: average * (1 + n))
        assert verdict(elsewhere, terms) is Verdict.SOUND


LIES = {
    "zeros": torch.zeros_like,
    "half": lambda average: average / 2,
    "the other way": lambda average: -average,
    "a bias": lambda average: average + 0.05 * average.square().mean().sqrt(),
    "another scale": lambda average: 1.02 * average,
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("codec", CODECS)
def test_a_false_average_is_proven_whatever_the_codec(codec, lie):
    terms = terms_with(CODECS[codec])
    assert verdict(made(terms, lie=LIES[lie]), terms) is Verdict.FALSE


@pytest.mark.parametrize("distribution", ["heavy tails", "sparse"])
def test_half_an_average_is_proven_whatever_the_distribution(distribution):
    terms = terms_with(CODECS["blockwise"])
    assert verdict(made(terms, gradients(distribution), lie=LIES["half"]), terms) is Verdict.FALSE


def test_all_zeros_average_to_zeros():
    terms = terms_with()
    vectors = [torch.zeros(NUM_VALUES)] * len(NAMES)
    assert verdict(made(terms, vectors), terms) is Verdict.SOUND
    assert verdict(made(terms, vectors, lie=torch.ones_like), terms) is Verdict.FALSE


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ([3.0, 4.0, 5.0, 36.0], Verdict.SOUND),  # the median of 3, 4, 5 and 40 is 4.5, and eight times that is 36
        ([3.0, 4.0, 4.5, 4.5], Verdict.SOUND),  # as the records of the last two made plausible
        ([1.5, 4.0, 5.0, 36.0], Verdict.FALSE),  # half of what a sender below the median has declared
        ([3.0, 4.0, 2.5, 18.0], Verdict.FALSE),
        ([3.0, 4.0, 5.0, 40.0], Verdict.FALSE),  # more than anybody may weigh
        ([4.0, 4.0, 5.0, 36.0], Verdict.FALSE),  # more than it has declared
        ([3.0, 0.0, 5.0, 36.0], Verdict.FALSE),
    ],
)
def test_a_reducer_counts_everybody_as_the_rule_has_it(weights, expected):
    terms = terms_with()
    assert verdict(made(terms, weights=weights), terms) is expected


def test_where_nobody_has_samples_nobody_weighs_anything():
    terms, nothing = terms_with(), [0.0] * len(NAMES)
    assert verdict(made(terms, declared=nothing, weights=nothing), terms) is Verdict.SOUND
    assert verdict(made(terms, declared=nothing, weights=[1.0, 0.0, 0.0, 0.0]), terms) is Verdict.FALSE


def other_input(evidence, number, signature=None, buffer=None):
    """Return evidence with another signature or buffer of one input."""
    former = evidence.inputs[number]
    changed = (former[0] if signature is None else signature, former[1] if buffer is None else buffer)
    return replace(evidence, inputs=(*evidence.inputs[:number], changed, *evidence.inputs[number + 1 :]))


FRAMED = {
    "another answer": lambda honest: replace(honest, buffer=bytes(len(honest.buffer))),
    "another input": lambda honest: other_input(honest, 1, buffer=bytes(len(honest.buffer))),
    "an input without a signature": lambda honest: other_input(honest, 1, signature=b""),
    "an input signed by another": lambda honest: other_input(honest, 1, signature=honest.inputs[2][0]),
    "a long signature": lambda honest: other_input(honest, 1, signature=honest.inputs[1][0] + b"\n" * 10_000),
    "a long buffer": lambda honest: other_input(honest, 1, buffer=bytes(10**6)),
    "an input less": lambda honest: replace(honest, inputs=honest.inputs[:-1]),
    "a contribution less": lambda honest: replace(
        honest, inputs=honest.inputs[:-1], contributions=honest.contributions[:-1]
    ),
    "another declared weight": lambda honest: replace(
        honest, contributions=(replace(honest.contributions[0], declared=1.0), *honest.contributions[1:])
    ),
    "another effective weight": lambda honest: replace(
        honest, contributions=(replace(honest.contributions[0], weight=1.0), *honest.contributions[1:])
    ),
    "another part": lambda honest: replace(honest, part_index=0),
    "no token": lambda honest: replace(honest, tokens={}),
    "another's token": lambda honest: replace(
        honest, tokens={**honest.tokens, MEMBERS["reducer"].peer_id: STRANGER.token}
    ),
    "a token that names no key": lambda honest: replace(
        honest, tokens={**honest.tokens, MEMBERS["first"].peer_id: token_without_key("first")}
    ),
}


def token_without_key(name):
    key = rsa_key(name)
    token = token_of(own_admission("run", key, key.public, now=0.0, expires_at=1.0), key)
    return token.replace(f'"record_key": "{key.public}"', '"record_key": "no key"')


@pytest.mark.parametrize("change", FRAMED)
def test_nobody_can_change_anything_of_what_an_honest_reducer_has_shown(change):
    terms = terms_with()
    assert verdict(FRAMED[change](made(terms)), terms) is Verdict.INVALID


def test_who_signs_two_weights_for_one_part_frames_nobody():
    """The reducer has signed with which weight it was sent: another signature of the sender's changes nothing."""
    terms = terms_with()
    honest = made(terms)
    sender, contribution = MEMBERS["third"], honest.contributions[3]
    statement = part_statement(GROUP, sender.peer_id, honest.reducer, PART, 1.0, contribution.digest)
    forged = other_input(honest, 3, signature=sender.record_key.sign(statement))
    assert verdict(forged, terms) is Verdict.INVALID
    lighter = (*honest.contributions[:3], replace(contribution, declared=1.0))
    assert verdict(replace(forged, contributions=lighter), terms) is Verdict.INVALID


def test_evidence_of_another_round_or_by_another_key_shows_nothing():
    terms = terms_with()
    for changes in (dict(group_id=b"earlier"), dict(signer=MEMBERS["first"]), dict(signer=OTHER_KEY)):
        assert verdict(made(terms, lie=torch.zeros_like, **changes), terms) is Verdict.INVALID


def test_a_signature_counts_by_the_token_that_comes_with_it_and_not_by_what_this_peer_was_told():
    terms = terms_with()
    lying = made(terms, lie=torch.zeros_like)
    signed = replace(lying, tokens={**lying.tokens, OTHER_KEY.peer_id: OTHER_KEY.token})
    statement = part_statement(
        GROUP, OTHER_KEY.peer_id, lying.reducer, PART, lying.contributions[1].declared, lying.contributions[1].digest
    )
    signed = other_input(signed, 1, signature=OTHER_KEY.record_key.sign(statement))
    assert verdict(signed, terms) is Verdict.FALSE


def test_of_peers_and_parts_that_this_one_does_not_know_it_judges_nothing():
    terms = terms_with()
    lying = made(terms, lie=torch.zeros_like)
    assert verdict(lying, replace(terms, senders=frozenset(ids(*NAMES[:3])))) is Verdict.UNCLEAR
    assert verdict(lying, replace(terms, parts={})) is Verdict.UNCLEAR
    assert verdict(replace(lying, part_index=2), terms) is Verdict.UNCLEAR
    assert verdict(replace(lying, part_index=-1), terms) is Verdict.UNCLEAR


def test_a_reducer_that_uses_what_it_should_have_refused_is_at_fault():
    terms = terms_with()
    vectors = gradients()
    vectors[1][0] = math.nan
    assert verdict(made(terms, vectors, lie=torch.zeros_like), terms) is Verdict.FALSE
    assert verdict(made(terms_with(CODECS["float16"])), terms) is Verdict.UNCLEAR, "unreadable here, not elsewhere"
    honest = made(terms)
    signature = MEMBERS["reducer"].record_key.sign(answer_statement(GROUP, honest.reducer, PART, honest.buffer, ()))
    of_nothing = replace(honest, signature=signature, contributions=(), inputs=())
    assert verdict(of_nothing, terms) is Verdict.FALSE


@pytest.mark.parametrize("side", [1 - BORDER / 2, 1 + BORDER / 2])
def test_a_sender_at_the_border_of_being_left_out_may_count_or_not(side):
    """Else such a sender could have a reducer with another processor convicted."""
    common, *own = torch.randn(4, NUM_VALUES, generator=torch.Generator().manual_seed(3))
    vectors = [common + 0.1 * noise for noise in own]

    def excess(scale):
        return aggregate(torch.stack([*vectors, common + scale * own[0]]), [1.0] * 4, RULE).excess[3]

    low, high = 0.1, 10.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) < FAR_OFF * side else (low, middle)
    assert excess(low) == pytest.approx(FAR_OFF * side, rel=1e-4)
    terms, vectors = terms_with(), [*vectors, common + low * own[0]]
    for far_off in (0.99 * FAR_OFF, 1.01 * FAR_OFF):
        otherwise = aggregate(torch.stack(vectors), [1.0] * 4, RULE, far_off).values
        told = made(terms, vectors, declared=(1.0,) * 4, lie=lambda average, other=otherwise: other)
        assert verdict(told, terms) is Verdict.SOUND
    lying = made(terms, vectors, declared=(1.0,) * 4, lie=torch.zeros_like)
    assert verdict(lying, terms) is Verdict.FALSE


def test_evidence_is_the_same_after_it_was_sent_and_holds_nothing_else():
    terms = terms_with()
    evidence = made(terms, lie=torch.zeros_like)
    stranger = {STRANGER.peer_id: STRANGER.token}
    padded = replace(evidence, tokens=evidence.tokens | stranger)
    messages = padded.messages()
    messages[1].group_id = b"x" * 1000
    reducer, part_index, tokens = read_header(padded.header())
    assert Evidence.of(reducer, part_index, tokens, messages) == evidence


@pytest.mark.parametrize("content", [b"", b"\xc1", seal(b"", ()), b"\x93\xc4\x01a\xc4\x01b\x90"])
def test_a_header_that_is_none_is_refused(content):
    with pytest.raises(ValueError, match="not the header"):
        read_header(content)
