"""What a reader remembers of tokens that cost nothing: not for long, and not many."""

import dataclasses

import hivemind
import pytest
from admission_tokens import admission, rsa_key
from hivemind.dht.crypto import RSASignatureValidator
from hivemind.utils import get_dht_time
from hivemind.utils.crypto import RSAPrivateKey
from swarm_of_processes import tiny_run

from pipelines.core.admission.client import SELF_SIGNED_SECONDS, peer_admission
from pipelines.core.admission.record_owners import AdmissionRecords, bounded
from pipelines.core.admission.tokens import token_of
from pipelines.core.run.admission_config import admission_config_of

# hivemind 1.1.12 finds its daemon's executable in an old-fashioned way.
pytestmark = pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")


def test_in_an_open_run_a_token_that_lives_for_a_day_does_not_count():
    reader = peer_admission(admission_config_of(tiny_run(run_id="run"), "org/run"), rsa_key("reader"), None)
    node = hivemind.DHT(host_maddrs=["/ip4/127.0.0.1/tcp/0"], use_ipfs=False, start=True)
    try:
        owners, now = [], get_dht_time()
        for seconds in (SELF_SIGNED_SECONDS, 86_400.0):
            key = RSAPrivateKey()
            record_key, peer = key.get_public_key().to_bytes().decode(), rsa_key("peer")
            claims = admission(now, record_key=record_key, expires_at=now + seconds, key=peer.public)
            owners.append(RSASignatureValidator(key).local_public_key)
            token = token_of(claims, peer)
            assert node.store("run_admissions", subkey=owners[-1], value=token, expiration_time=now + seconds)
        assert set(AdmissionRecords(node, "run", admission=reader).admitted(owners)) == {owners[0]}
    finally:
        node.shutdown()


def test_of_too_many_admissions_those_that_are_asked_for_are_kept_then_those_that_last_longest():
    one = admission(0.0)
    known = {bytes([number]): dataclasses.replace(one, expires_at=float(number)) for number in range(10)}
    assert sorted(bounded(known, {b"\x01"}, most=3)) == [b"\x01", b"\x08", b"\x09"]
    assert bounded(known, (), most=10) == known
