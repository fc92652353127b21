"""A service that a stranger's run names, and that keeps all that it is told: no token of the volunteer is in it."""

import base64
import hashlib
import json
import time

import httpx2
import pytest
from admission_material import body_of, edit_lists, publish_run, request_for, running_service
from admission_tokens import rsa_key
from hostile_service import HostileService, http
from huggingface_hub import HfApi
from published_runs import the_line
from swarm_of_processes import tiny_run

from hub_tools.publishing.account_proof import PROOF_REPOSITORY, HubAccount
from pipelines.core.admission.client import AdmissionRefusedError, AdmissionUnreachableError, peer_admission
from pipelines.core.admission.settings import AdmissionConfig
from pipelines.core.run.training_run import TrainingRun
from pipelines.core.signing.publisher_keys import PublisherKey
from pipelines.features.admission_service.requests import proof_name
from pipelines.features.admission_service.tokens_of_service import REQUEST_TIMEOUT_SECONDS

pytestmark = pytest.mark.slow

DEAD_ADDRESS = "/ip4/127.0.0.1/tcp/9/p2p/12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo"
KEY = PublisherKey.generate().public
ASKS_FOR_THE_TOKEN = http("401 Unauthorized", json.dumps(dict(reason="no_token", message="Show it.")).encode())
ASKS_FOR_A_PROOF = http("401 Unauthorized", json.dumps(dict(reason="no_proof", message="Place it.")).encode())
TOO_MUCH = http("200 OK", b" " * 10_000_000)
DEEP = http("200 OK", b"[" * 60_000)


@pytest.fixture(scope="module")
def volunteer(hub):
    return hub.create_user("volunteer-of-hostile")


@pytest.fixture
def hostile():
    with HostileService() as service:
        yield service


def account_of(hub, token):
    return HubAccount(HfApi(endpoint=hub.endpoint, token=token))


def seek(hub, address, token, key=KEY):
    admission_config = AdmissionConfig(
        repository="org/hostile", run_id="run", service_address=address, authority_key=key
    )
    account = account_of(hub, token)
    with peer_admission(admission_config, rsa_key("peer"), account, seconds_to_try=0.0) as admission:
        return admission.username


def assert_not_told(token, heard):
    """Neither the token nor a part, a digest or another spelling of it."""
    spellings = [token[3:15], token[-12:], hashlib.sha256(token.encode()).hexdigest(), token.encode().hex()[:24]]
    encoded = base64.b64encode(token.encode()).decode()
    for spelling in (token, encoded[:16], *spellings):
        assert spelling.encode() not in heard
    assert b"authorization" not in heard.lower()


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (ASKS_FOR_THE_TOKEN, AdmissionRefusedError, "does not admit you: Show it"),
        (ASKS_FOR_A_PROOF, AdmissionUnreachableError, "cannot admit: Place it"),
        (TOO_MUCH, AdmissionUnreachableError, r"does not answer \(ValueError\)"),
        (DEEP, AdmissionUnreachableError, r"does not answer \(ValueError\)"),
        (http("200 OK", b'{"token": "x", "lifetime_seconds": 60}'), AdmissionRefusedError, "do not admit"),
        (b"\x00 no HTTP", AdmissionUnreachableError, "does not answer"),
    ],
    ids=["asks for the token", "never content", "too much", "too deep", "false token", "nonsense"],
)
def test_no_answer_of_a_service_makes_a_peer_show_its_token(hub, volunteer, hostile, answer, error, message):
    hostile.answer = answer
    with pytest.raises(error, match=message) as caught:
        seek(hub, hostile.address, volunteer)
    assert volunteer not in str(caught.value)
    assert b"POST /token" in hostile.everything(), "it was asked"
    assert_not_told(volunteer, hostile.everything())


@pytest.mark.parametrize(
    "status", ["301 Moved", "302 Found", "303 See Other", "307 Temporary Redirect", "308 Permanent"]
)
def test_a_peer_follows_no_redirect(hub, volunteer, hostile, status):
    with HostileService() as other:
        hostile.answer = http(status, Location=f"{other.address}/token")
        with pytest.raises((AdmissionRefusedError, AdmissionUnreachableError)):
            seek(hub, hostile.address, volunteer)
        assert other.heard == []
    assert_not_told(volunteer, hostile.everything())


@pytest.mark.parametrize(
    "answer",
    [[b"HTTP/1.1 200 OK\r\nX: ", b"x"], [b"H"], [http("200 OK", Content_Length=10**9), b" "]],
    ids=["head", "one byte", "body"],
)
def test_an_answer_that_never_ends_is_given_up_in_time(hub, volunteer, hostile, answer, monkeypatch):
    assert REQUEST_TIMEOUT_SECONDS <= 30.0
    monkeypatch.setattr("pipelines.features.admission_service.tokens_of_service.REQUEST_TIMEOUT_SECONDS", 1.0)
    hostile.answer = answer
    with pytest.raises(AdmissionUnreachableError, match="does not answer"):
        seek(hub, hostile.address, volunteer)


def test_a_peer_is_admitted_with_a_proof_that_is_for_itself_alone(hub, tmp_path, hostile):
    publish_run(hub, "org/proven", tiny_run(run_id="run").to_json())
    member = hub.create_user("member-of-proven")
    edit_lists(hub, "org/proven", {"allow": ["member-of-proven"]})
    with running_service(hub, "org/proven", tmp_path, lifetime_seconds=60) as service:
        key = service.key.public
        assert seek(hub, service.address, member, key=key) == "member-of-proven"
        assert member not in service.log()

        # What a hostile service has heard from this peer, for the same run and authority, it cannot use elsewhere.
        hostile.answer = ASKS_FOR_A_PROOF
        with pytest.raises(AdmissionUnreachableError):
            seek(hub, hostile.address, member, key=key)
        stolen = json.loads(hostile.heard[-1].partition(b"\r\n\r\n")[2])
        proof = {name: stolen[name] for name in ("username", "nonce", "proof_expires_at")}
        assert reason(service.ask(request_for(peer="thief", **proof))) == "no_proof"
        own = dict(peer_key=rsa_key("thief").public)
        refused = httpx2.post(f"{service.address}/token", json=body_of(request_for(**proof)) | own)
        assert "is not signed by its peer_key" in refused.json()["message"]
        assert reason(service.ask(request_for(**proof | dict(username="alice")))) == "no_proof"
        assert reason(service.ask(request_for(**proof | dict(proof_expires_at=4_000_000_000)))) == "no_proof"
        assert reason(service.ask(request_for(**proof | dict(username="alice/x")))) == "bad_request"

        # The account ends it: who has even the peer's keys is not admitted again.
        assert service.ask(request_for(**proof)).status_code == 200
        HfApi(endpoint=hub.endpoint, token=member).delete_repo(f"member-of-proven/{PROOF_REPOSITORY}")
        assert reason(service.ask(request_for(**proof))) == "no_proof"


def reason(response):
    assert response.status_code in (400, 401, 403), response.text
    return response.json()["reason"]


def test_what_an_organisation_has_in_its_repository_proves_no_user(hub, tmp_path):
    """Whoever may write for an organisation, a banned member of the run's for example, is not that organisation."""
    publish_run(hub, "org/unproven", tiny_run(run_id="run").to_json())
    request = request_for(username="org", nonce="n" * 64, proof_expires_at=int(time.time()) + 1000)
    with running_service(hub, "org/unproven", tmp_path, lifetime_seconds=60) as service:
        api, name = HfApi(endpoint=hub.endpoint, token=hub.alice_token), proof_name(request, service.key.public)
        api.create_repo(f"org/{PROOF_REPOSITORY}")
        api.upload_file(repo_id=f"org/{PROOF_REPOSITORY}", path_in_repo=name, path_or_fileobj=b"org")
        assert reason(service.ask(request)) == "no_user"


def test_a_proxy_of_the_environment_is_told_nothing_of_the_token(hub, hostile, monkeypatch):
    account = account_of(hub, hub.create_user("reader-behind-proxy"))
    assert account.username == "reader-behind-proxy"
    monkeypatch.setenv("HTTP_PROXY", hostile.address)
    hostile.answer = ASKS_FOR_THE_TOKEN
    admission_config = AdmissionConfig(
        repository="org/hostile", run_id="run", service_address="http://10.255.255.1", authority_key=KEY
    )
    with pytest.raises(AdmissionRefusedError, match="Show it"):
        peer_admission(admission_config, rsa_key("peer"), account, seconds_to_try=0.0).__enter__()
    assert b"POST http://10.255.255.1/token" in hostile.everything()
    assert_not_told(account.api.token, hostile.everything())


def test_join_tells_a_hostile_service_and_the_terminal_nothing_of_the_token(hub, commands, training_material, hostile):
    name = training_material.create_run("org/hostile-run", run_id="run", entry_addresses=[DEAD_ADDRESS])
    run = TrainingRun.from_file(training_material.file(name, "training_run.json"))
    run = run.replace(authorization_service=hostile.address, authorization_key=KEY)
    api = HfApi(endpoint=hub.endpoint, token=hub.alice_token)
    api.upload_file(repo_id=name, path_in_repo="training_run.json", path_or_fileobj=run.to_json().encode())
    token = hub.create_user("joiner-of-hostile")
    hostile.answer = ASKS_FOR_THE_TOKEN
    done = commands.run("join", name, token=token, is_worker=True)
    assert "does not admit you: Show it" in the_line(done)
    assert token not in done.stdout + done.stderr
    assert b"joiner-of-hostile" in hostile.everything(), "it was asked"
    assert_not_told(token, hostile.everything())
