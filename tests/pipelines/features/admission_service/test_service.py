"""The admission service over HTTP, as a process of its own, against the embedded Hub."""

import time

import httpx2
import pytest
from admission_material import body_of, edit_lists, publish_run, request_for, running_service
from admission_tokens import peer_id, rsa_key
from swarm_of_processes import tiny_run

from hub_tools.local_hub import LocalHub
from pipelines.core.admission.tokens import TokenCheck
from pipelines.features.admission_service.server import load_or_create_key
from pipelines.features.admission_service.service import LivePeers, RateLimit

pytestmark = pytest.mark.slow

REPOSITORY = "org/guarded"


@pytest.fixture(scope="module")
def users(hub):
    """Hub tokens of members, of a stranger and of a member who will misbehave."""
    tokens = {name: hub.create_user(f"{name}-of-service") for name in ("bob", "carol", "dave", "mallory")}
    for name in ("bob", "dave", "mallory"):
        hub.add_member("org", f"{name}-of-service", "read")
    return tokens


@pytest.fixture(scope="module")
def service(hub, tmp_path_factory):
    publish_run(hub, REPOSITORY, tiny_run(run_id="run").to_json())
    with running_service(hub, REPOSITORY, tmp_path_factory.mktemp("service"), lifetime_seconds=60) as running:
        yield running


def refusal(response, status):
    assert response.status_code == status, response.text
    return response.json()["reason"], response.json()["message"]


def test_a_member_is_admitted_with_its_two_keys_for_the_lifetime(service, users):
    before = time.time()
    response = service.ask_as(users["bob"])
    assert response.status_code == 200, response.text
    admission = TokenCheck("run", service.key.public).check(response.json()["token"], time.time())
    assert admission.username == "bob-of-service"
    assert (admission.peer_id, admission.record_key) == (peer_id("peer").hex(), rsa_key("record").public)
    assert before + 60 <= admission.expires_at <= time.time() + 60
    assert response.json()["lifetime_seconds"] == 60


def test_strangers_are_refused_until_moderators_allow_them_and_members_are_once_they_are_banned(hub, service, users):
    reason, message = refusal(service.ask_as(users["carol"]), 403)
    assert reason == "not_member"
    assert "carol-of-service is not a member of org. Ask to join" in message and "admission.json" in message
    assert service.ask_as(users["mallory"]).status_code == 200
    edit_lists(hub, REPOSITORY, {"allow": ["carol-of-service"], "ban": ["mallory-of-service"]})
    assert service.ask_as(users["carol"]).status_code == 200
    reason, message = refusal(service.ask_as(users["mallory"]), 403)
    assert reason == "banned"
    assert f"mallory-of-service is banned from {REPOSITORY}" in message and "/discussions" in message

    # A mistake of a moderator lifts no ban, and the service says that there is one.
    edit_lists(hub, REPOSITORY, '{"ban": [}')
    assert refusal(service.ask_as(users["mallory"]), 403)[0] == "banned"
    assert "admission.json is not JSON" in httpx2.get(service.address).json()["lists_problem"]
    edit_lists(hub, REPOSITORY, {})
    assert service.ask_as(users["mallory"]).status_code == 200
    assert httpx2.get(service.address).json()["lists_problem"] is None


@pytest.mark.parametrize(
    ("changes", "status", "reason", "message"),
    [
        ({"run_id": "other"}, 404, "other_run", "admits to the run 'run', not 'other'"),
        ({"moment": 1_000_000_000}, 400, "clock", "Your clock is -"),
        ({"username": "a/b"}, 400, "bad_request", "names no user"),
        ({"nonce": "short"}, 400, "bad_request", "names no user"),
    ],
    ids=["other run", "clock", "no user", "no nonce"],
)
def test_a_request_that_is_wrong_is_answered_clearly(service, changes, status, reason, message):
    response = service.ask(request_for(**changes))
    assert refusal(response, status)[0] == reason
    assert message in response.json()["message"]


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{", b'{"run_id": 3}', b"\xff", b"[" * 10_000, b"x" * 20_000],
    ids=["empty", "list", "cut", "wrong type", "no text", "deep", "long"],
)
def test_a_body_that_is_no_request_is_answered_clearly(service, content):
    response = httpx2.post(f"{service.address}/token", content=content)
    assert response.status_code == (413 if len(content) > 16_384 else 400)
    assert response.json()["reason"] == "bad_request"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(signature="AAAA"), "is not signed with the key that it names"),
        (dict(peer_signature="AAAA"), "the request is not signed by its peer_key"),
        (dict(peer_key="ssh-rsa AAAA"), "peer_key is not an RSA key of 2048 bits"),
        (dict(key="ssh-rsa AAAA"), "record_key is not an RSA key of 2048 bits"),
        (dict(key=rsa_key("stranger").public), "the request is not signed by its peer_key"),
        (dict(time=1.0), "the request is not signed by its peer_key"),
        (dict(username="mallory"), "is not signed with the key that it names"),
        (dict(more=1), "the fields are"),
        (dict(time="now"), "time is 'now'; expected float"),
        (dict(time=10**400), "request is invalid"),
        (dict(peer_key="x" * 5000), "peer_key is 'xxx"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_request_that_its_two_keys_have_not_signed_as_it_is_is_refused(service, changes, message):
    response = httpx2.post(f"{service.address}/token", json=body_of(request_for()) | changes)
    assert message in refusal(response, 400)[1]


def test_the_logs_of_the_service_hold_no_token_at_their_most_talkative(service, users):
    response = service.ask_as(users["bob"])
    log = service.log()
    assert "DEBUG" in log and "AdmissionService" in log
    secrets = [*users.values(), response.json()["token"], request_for().peer_signature]
    key_line = (service.log_file.parent / "authority.key").read_text().strip()
    assert [text[:6] for text in [*secrets, key_line] if text in log] == []
    assert all(token.encode() not in path.read_bytes() for token in users.values()
               for path in service.log_file.parent.rglob("*") if path.is_file())  # fmt: skip


def test_while_the_hub_is_away_admitted_peers_go_on_for_the_grace_and_others_wait(tmp_path):
    with LocalHub(tmp_path / "hub") as hub:
        hub.alice_token = hub.create_user("alice")
        hub.create_organization("org", members={"alice": "admin"})
        publish_run(hub, REPOSITORY, tiny_run(run_id="run").to_json())
        folder = tmp_path / "service"
        folder.mkdir()
        with running_service(
            hub, REPOSITORY, folder, lifetime_seconds=60, grace_seconds=1.5, requests_per_minute=9
        ) as service:
            held = service.ask_as(hub.alice_token).json()["token"]
            hub.kill()
            reason, message = refusal(service.ask_as(hub.alice_token), 503)
            assert reason == "hub_away" and "Try again later" in message
            check = TokenCheck("run", service.key.public)
            renewed = service.ask_as(hub.alice_token, token=held).json()["token"]
            first, second = check.check(held, time.time()), check.check(renewed, time.time())
            assert second.expires_at > first.expires_at and second.confirmed_at == first.confirmed_at
            while time.time() < first.confirmed_at + 1.5:
                time.sleep(0.05)
            assert "longer than peers may stay" in refusal(service.ask_as(hub.alice_token, token=renewed), 503)[1]
            hub.start()
            assert service.ask_as(hub.alice_token, token=held).status_code == 200

            # Who asks too often hears for how long to be quiet; the count may start anew once, with the minute.
            answers = [service.ask(request_for(username="nobody")) for _ in range(20)]
            refused = next(answer for answer in answers if answer.status_code == 429)
            assert "Too many requests from your address. Try again in" in refusal(refused, 429)[1]
            # Members behind the same address renew all the same, and junk counts for nobody.
            assert service.ask_as(hub.alice_token, token=held).status_code == 200
            junk = [httpx2.post(f"{service.address}/token", content=b"{}").status_code for _ in range(20)]
            assert set(junk) == {400}


def test_one_user_has_so_many_peers_and_no_more(service, users):
    def ask(number):
        return service.ask_as(users["dave"], peer=f"peer-{number}")

    assert {ask(number).status_code for number in range(8)} == {200}
    reason, message = refusal(ask(8), 403)
    assert reason == "too_many_peers"
    assert "dave-of-service has 8 peers in this run, the most that its organiser allows. Stop one" in message
    assert ask(3).status_code == 200, "those that are admitted renew"


def test_a_peer_that_left_makes_room_when_its_token_expires():
    book = LivePeers(2)
    assert book.admit("bob", "a", 0.0, 60.0) == book.admit("bob", "b", 10.0, 70.0) == 0.0
    assert book.admit("bob", "c", 20.0, 80.0) == 40.0
    assert book.admit("bob", "b", 30.0, 90.0) == book.admit("carol", "c", 30.0, 90.0) == 0.0
    assert book.admit("bob", "c", 60.0, 120.0) == 0.0
    assert book.admit("bob", "a", 61.0, 121.0) == pytest.approx(29.0)


def test_one_address_may_ask_only_so_often():
    limit = RateLimit(2)
    assert [limit.seconds_to_wait("a", 120.0) for _ in range(3)] == [0.0, 0.0, 60.0]
    assert limit.seconds_to_wait("b", 150.0) == 0.0
    assert limit.seconds_to_wait("a", 165.0) == 15.0
    assert limit.seconds_to_wait("a", 180.0) == 0.0


def test_the_key_is_made_for_its_owner_alone_and_read_again(tmp_path):
    path = tmp_path / "authority.key"
    first = load_or_create_key(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert load_or_create_key(path).public == first.public
    path.chmod(0o644)
    with pytest.raises(ValueError, match=f"Others can read the key in .*chmod 600 {path}"):
        load_or_create_key(path)
    path.chmod(0o600)
    path.write_text("no key")
    with pytest.raises(ValueError, match="has no key of an authority"):
        load_or_create_key(path)
