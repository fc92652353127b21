"""Tokens and requests of admission: what is signed is admitted, everything else is refused with its reason."""

import base64
import dataclasses
import json

import pytest
from admission_material import admission, body_of, der, rsa_key, signed_request, ssh, unsigned_request
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from hivemind.p2p import P2P, PeerID

from pipelines.core.admission import tokens as tokens_module
from pipelines.core.admission.identity import read_identity
from pipelines.core.admission.tokens import (
    Admission,
    AdmissionRequest,
    TokenCheck,
    TokenRefusedError,
    check_request,
    is_peer_key,
    is_record_key,
    issue_token,
    peer_id_of,
    public_text,
    self_signed_token,
)

NOW = 1_800_000_000.0
AUTHORITY = ed25519.Ed25519PrivateKey.generate()
CHECK = TokenCheck("run", public_text(AUTHORITY))
OPEN = TokenCheck("run", "")
PEER_ID, RECORD_KEY = peer_id_of(der(rsa_key("peer"))), ssh(rsa_key("record")).encode()


def test_a_token_says_what_the_authority_signed_until_it_expires():
    given = admission(NOW)
    token = issue_token(given, AUTHORITY)
    assert CHECK.check(token, NOW + 59.9, peer_id=PEER_ID, record_key=RECORD_KEY) == given
    with pytest.raises(TokenRefusedError, match="The token of alice expired 0 s ago"):
        CHECK.check(token, NOW + 60.0)


@pytest.mark.parametrize(
    ("changes", "shown", "message"),
    [
        ({"run_id": "other"}, {}, "admits to the run 'other', not to 'run'"),
        ({}, {"peer_id": peer_id_of(der(rsa_key("stranger")))}, "belongs to another peer"),
        ({}, {"record_key": ssh(rsa_key("stranger")).encode()}, "belongs to another record key"),
        ({"expires_at": NOW - 5}, {}, "expired 5 s ago"),
    ],
    ids=["other run", "other peer", "other record key", "expired"],
)
def test_a_token_that_is_for_somebody_else_is_refused(changes, shown, message):
    token = issue_token(admission(NOW, **changes), AUTHORITY)
    with pytest.raises(TokenRefusedError, match=message):
        CHECK.check(token, NOW, **({"peer_id": PEER_ID, "record_key": RECORD_KEY} | shown))


def self_signed(name="peer", **changes):
    return self_signed_token(admission(NOW, **changes), rsa_key(name))


def test_where_everybody_may_join_a_peer_signs_for_its_own_two_keys():
    token = self_signed()
    assert OPEN.check(token, NOW, peer_id=PEER_ID, record_key=RECORD_KEY) == admission(NOW)
    with pytest.raises(TokenRefusedError, match="expired"):
        OPEN.check(token, NOW + 60.0)


def test_nobody_signs_a_token_in_the_name_of_another_peer():
    with pytest.raises(TokenRefusedError, match="not signed by the peer that it names"):
        OPEN.check(self_signed("stranger"), NOW)
    claims, key, signature = self_signed().split(".")
    changed = json.loads(base64.urlsafe_b64decode(claims)) | {"record_key": ssh(rsa_key("stranger"))}
    forged = base64.urlsafe_b64encode(json.dumps(changed).encode()).decode()
    with pytest.raises(TokenRefusedError, match="not signed by the peer that it names"):
        OPEN.check(f"{forged}.{key}.{signature}", NOW)


def test_a_self_signed_token_is_worth_nothing_to_an_authority_and_the_other_way_round():
    with pytest.raises(TokenRefusedError):
        CHECK.check(self_signed(), NOW)
    with pytest.raises(TokenRefusedError):
        OPEN.check(issue_token(admission(NOW), AUTHORITY), NOW)


def test_a_token_of_another_authority_is_refused():
    token = issue_token(admission(NOW), ed25519.Ed25519PrivateKey.generate())
    with pytest.raises(TokenRefusedError, match="not signed by the run's authority"):
        CHECK.check(token, NOW)


def test_a_token_whose_claims_were_changed_is_refused():
    claims, _, signature = issue_token(admission(NOW), AUTHORITY).partition(".")
    changed = json.loads(base64.urlsafe_b64decode(claims)) | {"expires_at": NOW + 1e9}
    forged = base64.urlsafe_b64encode(json.dumps(changed).encode()).decode()
    with pytest.raises(TokenRefusedError, match="not signed by the run's authority"):
        CHECK.check(f"{forged}.{signature}", NOW)


@pytest.mark.parametrize(
    "token",
    ["", ".", "a.b", "é.é", "x" * 5000, "e30=.e30=", None, ["token"]],
    ids=["empty", "dot", "letters", "accents", "long", "json", "none", "list"],
)
def test_what_is_no_token_is_refused(token):
    for check in (CHECK, OPEN):
        with pytest.raises(TokenRefusedError):
            check.check(token, NOW)


@pytest.mark.parametrize(
    "changes", [{"username": "a b"}, {"username": 3}, {"expires_at": float("nan")}, {"confirmed_at": "now"}], ids=repr
)
def test_even_the_authority_cannot_sign_an_admission_that_makes_no_sense(changes):
    with pytest.raises(TokenRefusedError):
        Admission(**(dataclasses.asdict(admission(NOW)) | changes))


def test_a_request_proves_both_keys_and_gives_the_peer_id_that_libp2p_knows(tmp_path):
    P2P.generate_identity(str(tmp_path / "identity"))
    content = (tmp_path / "identity").read_bytes()
    key = read_identity(tmp_path / "identity")
    assert peer_id_of(der(key)) == PeerID.from_identity(content).to_bytes()
    assert check_request(signed_request()) == PEER_ID.hex()


@pytest.mark.parametrize("name", ["peer_signature", "record_signature"])
def test_a_request_with_a_key_that_the_client_does_not_hold_is_refused(name):
    request = signed_request()
    other = "record_signature" if name == "peer_signature" else "peer_signature"
    forged = dataclasses.replace(request, **{name: getattr(request, other)})
    with pytest.raises(ValueError, match=f"the request is not signed by its {name.split('_')[0]}_key"):
        check_request(forged)


def test_a_request_that_was_changed_after_it_was_signed_is_refused():
    with pytest.raises(ValueError, match="not signed"):
        check_request(dataclasses.replace(signed_request(), time=1.0))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"run_id": 3}, "field run_id is missing, of the wrong type"),
        ({"time": float("inf")}, "field time"),
        ({"time": "now"}, "field time"),
        ({"peer_key": "x" * 5000}, "field peer_key is missing, of the wrong type or too long"),
        ({"extra": 1}, "unknown fields: 'extra'"),
    ],
    ids=["run", "infinite time", "time", "long key", "unknown"],
)
def test_a_request_with_a_wrong_field_names_it(changes, message):
    with pytest.raises(ValueError, match=message):
        AdmissionRequest.from_mapping(body_of(signed_request()) | changes)


@pytest.mark.parametrize(
    "changes",
    [{"peer_key": "AAAA"}, {"peer_key": "?"}, {"record_key": "ssh-rsa AAAA"}],
    ids=["short", "not base64", "record"],
)
def test_a_request_with_a_damaged_key_is_refused(changes):
    with pytest.raises(ValueError, match="key"):
        check_request(signed_request(**changes))


def test_neither_tokens_nor_signatures_are_shown():
    request = signed_request(token="the-token-text")
    assert "the-token-text" not in repr(request)
    assert request.peer_signature not in repr(request) and len(request.peer_signature) > 100
    assert "token" not in repr(unsigned_request())


def peer_der(exponent=65537, size=2048):
    number = rsa.generate_private_key(65537, size).public_key().public_numbers().n
    key = rsa.RSAPublicNumbers(number - 2 if exponent is None else exponent, number).public_key()
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def test_a_key_has_one_text_and_an_ordinary_exponent():
    record_key, other = RECORD_KEY, ssh(rsa_key("stranger")).encode()
    assert is_record_key(record_key) and is_record_key(other) and is_peer_key(der(rsa_key("peer")))
    changed = [
        record_key + b" comment", record_key + b"\n", b" " + record_key, record_key + b"=", record_key[:-1],
        record_key.replace(b" ", b"  "), record_key.replace(b"ssh-rsa", b"SSH-RSA"), record_key + b"AAAA",
        record_key.replace(b"AAAADAQAB", b"AAAADAQAD"), base64.b64encode(der(rsa_key("peer"))), b"",
    ]  # fmt: skip
    assert not any(map(is_record_key, changed))
    ordinary = peer_der()
    longer_length = ordinary[:1] + b"\x83\x00" + ordinary[2:]
    assert is_peer_key(ordinary) and not any(
        map(is_peer_key, (peer_der(3), peer_der(None), peer_der(size=3072), longer_length, ordinary + b"\0"))
    )


def test_a_dear_key_is_refused_before_any_mathematics_and_refusals_are_remembered():
    claims = base64.urlsafe_b64encode(b"{}").decode()
    tokens = [
        ".".join((claims, base64.urlsafe_b64encode(key).decode(), base64.urlsafe_b64encode(bytes(256)).decode()))
        for key in (peer_der(None), peer_der(size=4096))
    ]
    for token in tokens:
        with pytest.raises(TokenRefusedError, match="damaged"):
            OPEN.check(token, NOW)
    known = tokens_module._read.cache_info().hits
    for token in tokens:
        with pytest.raises(TokenRefusedError, match="damaged"):
            OPEN.check(token, NOW)
    assert tokens_module._read.cache_info().hits == known + len(tokens)


def test_the_record_key_in_a_token_has_the_one_text_too():
    with pytest.raises(TokenRefusedError, match="exponent 65537"):
        OPEN.check(self_signed(record_key=ssh(rsa_key("record")) + " comment"), NOW)
    with pytest.raises(TokenRefusedError, match="damaged"):
        OPEN.check("[" * 4000, NOW)
