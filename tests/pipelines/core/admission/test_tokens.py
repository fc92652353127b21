"""Tokens and requests of admission: what is signed is admitted, everything else is refused with its reason."""

import base64
import dataclasses
import json

import pytest
from admission_tokens import AUTHORITY, admission, peer_id, rsa_key
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from hivemind.p2p import P2P, PeerID

from pipelines.core.admission import tokens as tokens_module
from pipelines.core.admission.identity import read_identity
from pipelines.core.admission.tokens import Admission, TokenCheck, TokenRefusedError, token_of
from pipelines.core.signing.publisher_keys import PublisherKey
from pipelines.core.signing.rsa_keys import is_rsa_key, peer_id_of
from pipelines.core.signing.signed_statement import signed_bytes

NOW = 1_800_000_000.0
CHECK = TokenCheck("run", AUTHORITY.public)
OPEN = TokenCheck("run", "")
PEER_ID, RECORD_KEY = peer_id("peer"), rsa_key("record").public.encode()


def changed(token, **values):
    """The token with other values under the same signature."""
    return json.dumps(json.loads(token) | values)


def test_a_token_says_what_the_authority_signed_until_it_expires():
    given = admission(NOW)
    token = token_of(given, AUTHORITY)
    assert CHECK.check(token, NOW + 59.9, peer_id=PEER_ID, record_key=RECORD_KEY) == given
    with pytest.raises(TokenRefusedError, match="The token of alice expired 0 s ago"):
        CHECK.check(token, NOW + 60.0)


@pytest.mark.parametrize(
    ("changes", "shown", "message"),
    [
        ({"run_id": "other"}, {}, "admits to the run 'other', not to 'run'"),
        ({}, {"peer_id": peer_id("stranger")}, "belongs to another peer"),
        ({}, {"record_key": rsa_key("stranger").public.encode()}, "belongs to another record key"),
        ({"expires_at": NOW - 5}, {}, "expired 5 s ago"),
    ],
    ids=["other run", "other peer", "other record key", "expired"],
)
def test_a_token_that_is_for_somebody_else_is_refused(changes, shown, message):
    token = token_of(admission(NOW, **changes), AUTHORITY)
    with pytest.raises(TokenRefusedError, match=message):
        CHECK.check(token, NOW, **({"peer_id": PEER_ID, "record_key": RECORD_KEY} | shown))


def self_signed(name="peer", **changes):
    return token_of(admission(NOW, **({"key": rsa_key(name).public} | changes)), rsa_key(name))


def test_where_everybody_may_join_a_peer_signs_for_its_own_two_keys():
    assert OPEN.check(self_signed(), NOW, peer_id=PEER_ID, record_key=RECORD_KEY) == admission(
        NOW, key=rsa_key("peer").public
    )
    with pytest.raises(TokenRefusedError, match="expired"):
        OPEN.check(self_signed(), NOW + 60.0)


def test_nobody_signs_a_token_in_the_name_of_another_peer():
    with pytest.raises(TokenRefusedError, match="not signed by the peer that it names"):
        OPEN.check(self_signed("stranger"), NOW)
    for values in (dict(record_key=rsa_key("stranger").public), dict(key=rsa_key("stranger").public)):
        with pytest.raises(TokenRefusedError, match="not signed by the peer that it names"):
            OPEN.check(changed(self_signed(), **values), NOW)


def test_a_self_signed_token_is_worth_nothing_to_an_authority_and_the_other_way_round():
    with pytest.raises(TokenRefusedError, match="not signed by the run's authority"):
        CHECK.check(self_signed(), NOW)
    with pytest.raises(TokenRefusedError, match="not signed by the peer that it names"):
        OPEN.check(token_of(admission(NOW), AUTHORITY), NOW)


def test_a_token_of_another_authority_is_refused():
    other = PublisherKey.generate()
    token = token_of(admission(NOW, key=other.public), other)
    for shown in (token, changed(token, key=AUTHORITY.public)):
        with pytest.raises(TokenRefusedError, match="not signed by the run's authority"):
            CHECK.check(shown, NOW)


def test_a_token_whose_claims_were_changed_is_refused():
    token = token_of(admission(NOW), AUTHORITY)
    for values in (dict(expires_at=NOW + 1e9), dict(username="mallory"), dict(signature="AAAA"), dict(signature="")):
        with pytest.raises(TokenRefusedError, match="not signed by the run's authority"):
            CHECK.check(changed(token, **values), NOW)
    for values in (dict(more=1), dict(expires_at="9"), dict(confirmed_at=None), dict(peer_id=["a"])):
        with pytest.raises(TokenRefusedError, match="damaged"):
            CHECK.check(changed(token, **values), NOW)


@pytest.mark.parametrize(
    "token",
    ["", ".", "{}", "é", "x" * 5000, "[]", "[" * 4000, '{"signature": 3}', None, ["token"], "\ud800"],
    ids=["empty", "dot", "object", "accents", "long", "list", "deep", "number", "none", "a list", "no text"],
)
def test_what_is_no_token_is_refused(token):
    for check in (CHECK, OPEN):
        with pytest.raises(TokenRefusedError):
            check.check(token, NOW)


@pytest.mark.parametrize("changes", [{"username": "a b"}, {"username": ""}, {"record_key": "ssh-rsa AAAA"}], ids=repr)
def test_even_the_authority_cannot_sign_an_admission_that_makes_no_sense(changes):
    with pytest.raises(TokenRefusedError):
        Admission(**(dataclasses.asdict(admission(NOW)) | changes))


def test_the_peer_id_of_an_identity_is_the_one_that_libp2p_knows(tmp_path):
    P2P.generate_identity(str(tmp_path / "identity"))
    key = read_identity(tmp_path / "identity")
    assert peer_id_of(key.public) == PeerID.from_identity((tmp_path / "identity").read_bytes()).to_bytes()


def rsa_text(exponent=65537, size=2048):
    """The text of another key, with this exponent; None: one as large as the modulus."""
    modulus = rsa.generate_private_key(65537, size).public_key().public_numbers().n
    key = rsa.RSAPublicNumbers(modulus - 2 if exponent is None else exponent, modulus).public_key()
    return key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()


def test_a_key_has_one_text_and_an_ordinary_exponent():
    key, other = RECORD_KEY, rsa_key("stranger").public.encode()
    assert is_rsa_key(key) and is_rsa_key(other) and is_rsa_key(rsa_text().encode())
    wrong = [
        key + b" comment", key + b"\n", b" " + key, key + b"=", key[:-1], key.replace(b" ", b"  "),
        key.replace(b"ssh-rsa", b"SSH-RSA"), key + b"AAAA", key.replace(b"AAAADAQAB", b"AAAADAQAD"),
        base64.b64encode(key), b"", *(text.encode() for text in (rsa_text(3), rsa_text(None), rsa_text(size=3072))),
    ]  # fmt: skip
    assert not any(map(is_rsa_key, wrong))


def test_a_dear_key_is_refused_before_any_mathematics_and_refusals_are_remembered():
    tokens = [changed(self_signed(), key=key) for key in (rsa_text(None), "ssh-rsa A", "")]
    for _ in range(2):
        for token in tokens:
            with pytest.raises(TokenRefusedError, match=r"not signed by the peer|damaged"):
                OPEN.check(token, NOW)
    assert tokens_module._read.cache_info().hits >= len(tokens)


def test_the_record_key_in_a_token_has_the_one_text_too():
    with pytest.raises(TokenRefusedError, match="exponent 65537"):
        OPEN.check(changed(self_signed(), record_key=rsa_key("record").public + " comment"), NOW)


def test_a_signature_for_another_purpose_is_no_token():
    claims = admission(NOW)
    text = json.loads(token_of(claims, AUTHORITY))
    text["signature"] = AUTHORITY.sign(signed_bytes("checkpoint", dataclasses.asdict(claims)))
    with pytest.raises(TokenRefusedError, match="not signed by the run's authority"):
        CHECK.check(json.dumps(text), NOW)
    text["signature"] = AUTHORITY.sign(signed_bytes("admission", dataclasses.asdict(claims)))
    assert CHECK.check(json.dumps(text), NOW) == claims
