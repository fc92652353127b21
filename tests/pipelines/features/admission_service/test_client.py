"""A peer's admission against the real service: renewed in time, kept through an outage, ended by a ban."""

import logging
import threading
import time
from types import SimpleNamespace

import pytest
from admission_material import edit_lists, publish_run, running_service
from admission_tokens import rsa_key
from huggingface_hub import HfApi
from running_programs import wait_for
from swarm_of_processes import tiny_run

from hub_tools.publishing.account_proof import HubAccount
from pipelines.core.admission.client import (
    AdmissionRefusedError,
    AdmissionUnreachableError,
    PeerAdmission,
    peer_admission,
    seek_admission,
)
from pipelines.core.admission.identity import read_identity
from pipelines.core.run.admission_config import admission_config_of
from pipelines.core.signing.publisher_keys import PublisherKey
from pipelines.core.signing.rsa_keys import peer_id_of

pytestmark = [pytest.mark.slow, pytest.mark.swarm]

REPOSITORY = "org/admission"
LIFETIME_SECONDS = 4.0


@pytest.fixture(scope="module")
def member(hub):
    account = account_of(hub, hub.create_user("member-of-admission"))
    hub.add_member("org", "member-of-admission", "read")
    return account


def account_of(hub, token):
    return HubAccount(HfApi(endpoint=hub.endpoint, token=token))


@pytest.fixture(scope="module")
def run(hub):
    run = tiny_run(run_id="run", matchmaking_seconds=1.0, averaging_timeout_seconds=LIFETIME_SECONDS / 2)
    publish_run(hub, REPOSITORY, run.to_json())
    return run


def admission_at(service, run, account, **changes):
    settings = dict(authorization_service=service.address, authorization_key=service.key.public)
    admission_config = admission_config_of(run.replace(**(settings | changes)), REPOSITORY)
    return peer_admission(admission_config, rsa_key("peer"), account, seconds_to_try=0.0)


def test_an_admission_is_renewed_in_time_survives_an_outage_and_ends_with_a_ban(hub, run, member, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    with running_service(hub, REPOSITORY, tmp_path, lifetime_seconds=LIFETIME_SECONDS) as service:
        port = int(service.address.rpartition(":")[2])
        with admission_at(service, run, member) as admission:
            assert admission.username == "member-of-admission"
            first, renewed = admission.token, threading.Event()
            shown = "".join(map(repr, (admission, admission._issuer, member)))
            assert first not in shown and member.api.token not in shown
            admission.on_renewal(renewed.set)
            started = time.monotonic()
            assert renewed.wait(60) and admission.token != first
            assert time.monotonic() - started > 0.3 * LIFETIME_SECONDS, "not more often than needed"
            expiry = admission.check.check(first, now=0.0).expires_at
            assert time.time() < expiry, "before the first one has expired"

            service.kill()
            held = admission.token
            wait_for(lambda: "Admission could not be renewed" in caplog.text, "an attempt in vain")
            assert admission.token == held and admission.refusal is None
            renewed.clear()
            with running_service(hub, REPOSITORY, tmp_path, port, lifetime_seconds=LIFETIME_SECONDS):
                assert renewed.wait(60), "goes on when the service is back"
                stopped = threading.Event()
                admission.on_refusal(stopped.set)
                edit_lists(hub, REPOSITORY, {"ban": ["member-of-admission"]})
                assert stopped.wait(60)
            with pytest.raises(AdmissionRefusedError, match="member-of-admission is banned from org/admission"):
                admission.raise_refusal()
    assert member.api.token not in caplog.text and first not in caplog.text
    assert "service.log" in {path.name for path in tmp_path.iterdir()}
    edit_lists(hub, REPOSITORY, {})


def test_who_is_not_admitted_reads_why_and_what_to_do(hub, run, member, tmp_path):
    stranger = account_of(hub, hub.create_user("stranger-of-admission"))
    reader = account_of(hub, hub.create_user("reader-of-admission", token_role="read"))
    with running_service(hub, REPOSITORY, tmp_path, lifetime_seconds=LIFETIME_SECONDS) as service:
        with pytest.raises(AdmissionRefusedError, match=r"stranger-of-admission is not a member of org. Ask to join"):
            admission_at(service, run, stranger).__enter__()
        with pytest.raises(
            AdmissionRefusedError, match=r"may not write to reader-of-admission/dalle-collab-proof.*hf auth login"
        ):
            admission_at(service, run, reader).__enter__()
        with pytest.raises(AdmissionRefusedError, match=r"does not know your token.*hf auth login") as caught:
            admission_at(service, run, account_of(hub, "hf_nobody")).__enter__()
        assert "hf_nobody" not in str(caught.value)
        other = PublisherKey.generate().public
        with pytest.raises(
            AdmissionUnreachableError, match=r"its key is not the run's: dalle-collab run authorize org/admission"
        ):
            admission_at(service, run, member, authorization_key=other).__enter__()
        with pytest.raises(AdmissionRefusedError, match="admits to the run 'run', not 'elsewhere'"):
            admission_at(service, run, member, run_id="elsewhere").__enter__()
        nobody = admission_at(service, run, member, authorization_service=f"{service.address}/nobody")
        with pytest.raises(AdmissionRefusedError, match="it answers 404"):
            nobody.__enter__()
        service.kill()
        with pytest.raises(AdmissionUnreachableError, match=r"does not answer .*dalle-collab run authorize"):
            admission_at(service, run, member).__enter__()


def test_in_an_open_run_a_peer_signs_its_own_token_and_a_guarded_one_needs_a_hub_token(run, tmp_path):
    with seek_admission(admission_config_of(run, REPOSITORY), tmp_path / "own.key", None) as (identity_file, admission):
        assert identity_file == tmp_path / "own.key" and not admission.has_authority
        own = peer_id_of(read_identity(identity_file).public)
        record_key = admission.record_key.get_public_key().to_bytes()
        held = admission.check.check(admission.token, time.time(), peer_id=own, record_key=record_key)
        assert held.username == admission.username == "anonymous" and held.expires_at < time.time() + 3600
    guarded = run.replace(
        authorization_service="https://door.example",
        authorization_key=PublisherKey.generate().public,
    )
    with (
        pytest.raises(AdmissionRefusedError, match=r"org/admission is not open to everybody.*hf auth login"),
        seek_admission(admission_config_of(guarded, REPOSITORY), None, None),
    ):
        pass


class ShortLivedTokens:
    """Issues tokens of a fifth of a second, and counts them."""

    def __init__(self):
        self.num_issued, self.enough = 0, threading.Event()

    def issue(self, old):
        self.num_issued += 1
        if self.num_issued >= 5:
            self.enough.set()
        return "token", 0.2


def test_the_admission_is_renewed_on_and_on_where_telling_it_has_failed_once(caplog):
    issuer = ShortLivedTokens()
    admission = PeerAdmission(SimpleNamespace(authority_key=""), issuer)

    def tell():
        if issuer.num_issued == 2:
            raise OSError("the DHT's process does not answer")

    admission.on_renewal(tell)
    with admission:
        assert issuer.enough.wait(60)
    assert admission.refusal is None
    assert "Admission was not renewed everywhere (1), retrying: OSError" in caplog.text
