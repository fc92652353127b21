"""A swarm with an authority, of real processes: strangers get nowhere, members do, and a ban ends a membership."""

import time

import pytest
from admission_material import edit_lists, publish_run, running_service
from published_runs import command_environment
from swarm_of_processes import Swarm, tiny_run

from pipelines.core.run.compute_options import ComputeOptions
from pipelines.core.swarm.network_options import NetworkOptions
from pipelines.tools.doctor.examination import Examination
from pipelines.tools.doctor.swarm_examination import check_swarm

pytestmark = [pytest.mark.slow, pytest.mark.swarm]

REPOSITORY = "org/door"
LIFETIME_SECONDS = 20.0
AVERAGING_SECONDS = LIFETIME_SECONDS / 2


@pytest.fixture(scope="module")
def tokens(hub):
    """Hub tokens of two members and of somebody whom moderators have allowed."""
    users = {name: hub.create_user(f"{name}-of-door") for name in ("first", "second", "third")}
    for name in ("first", "second"):
        hub.add_member("org", f"{name}-of-door", "read")
    return users


@pytest.fixture(scope="module")
def service(hub, tmp_path_factory):
    run = tiny_run(run_id="door", num_epochs=10_000, averaging_timeout_seconds=AVERAGING_SECONDS)
    publish_run(hub, REPOSITORY, run.to_json())
    edit_lists(hub, REPOSITORY, {"allow": ["third-of-door"]})
    folder = tmp_path_factory.mktemp("door")
    with running_service(hub, REPOSITORY, folder, lifetime_seconds=LIFETIME_SECONDS) as running:
        running.run = run.replace(authorization_service=running.address, authorization_key=running.key.public)
        yield running


@pytest.fixture(scope="module")
def swarm(hub, service, tokens, tmp_path_factory):
    """Two members who train and have averaged with each other."""
    environment = command_environment(hub, hub.alice_token)
    with Swarm(tmp_path_factory.mktemp("swarm"), service.run, num_peers=2, environment=environment) as swarm:
        for name in ("first", "second"):
            swarm.start(name, hub_token=tokens[name], seconds_per_batch=0.3, ignores_refusal=True)
        for peer in swarm.peers:
            peer.wait_for("step", has_averaged=True)
        yield swarm


@pytest.fixture(scope="module")
def visitors(swarm, tokens):
    """What a stranger, a thief and an admitted visitor found at the door of that swarm."""
    caller = swarm.start("caller", "swarm_stranger.py", hub_token=tokens["third"])
    return {kind: caller.wait_for(kind, seconds=240) for kind in ("stranger", "thief", "visitor")}


def test_members_average_with_each_other(swarm):
    assert all(peer.events("step")[-1]["share_averaged"] == 1.0 for peer in swarm.peers[:2])


def test_a_stranger_is_refused_by_the_dht(visitors):
    assert visitors["stranger"]["dht"] == "out"


def test_a_peer_with_a_members_token_and_record_key_but_another_identity_is_refused_by_the_dht(visitors):
    assert visitors["thief"]["dht"] == "out"


def test_a_stranger_is_refused_in_group_assembly(visitors):
    assert visitors["stranger"]["group"].startswith("refused") and "shows no token" in visitors["stranger"]["group"]
    assert "refused" not in visitors["visitor"]["group"]


def test_a_stranger_is_refused_in_aggregation(visitors):
    assert visitors["stranger"]["aggregation"].startswith("refused")
    assert "has not introduced itself" in visitors["stranger"]["aggregation"]
    assert visitors["visitor"]["aggregation"] == "BAD_GROUP_ID"


def test_a_stranger_is_refused_the_state(visitors):
    assert visitors["stranger"]["state"].startswith("refused")
    assert "has not admitted the asking peer" in visitors["stranger"]["state"]
    assert visitors["visitor"]["state"] == "state"


def test_records_count_under_the_name_and_key_that_the_authority_admitted_and_no_other(visitors):
    records = visitors["visitor"]["records"]
    assert records["honest"] == ["first-of-door", "second-of-door", "third-of-door"]
    assert "many" in records["stored"] and records["stored"].count("first-of-door") == 2
    assert records["counted"] == ["first-of-door", "second-of-door"]
    assert records["names"] == ["first-of-door", "second-of-door", "third-of-door"]


def test_the_doctor_sees_the_swarm_of_a_run_with_an_authority_as_a_member_and_as_a_stranger(
    hub, swarm, service, tokens, monkeypatch
):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.endpoint)
    entry_addresses = tuple(swarm.peers[0].wait_for("ready")["addresses"])
    examination = Examination(
        repository=REPOSITORY,
        network=NetworkOptions(host_addresses=("/ip4/127.0.0.1/tcp/0",)),
        compute=ComputeOptions(),
    )
    run = service.run.replace(entry_addresses=entry_addresses)
    monkeypatch.setenv("HF_TOKEN", tokens["third"])
    found = {" ".join(result.name.split()[:2]): result for result in check_swarm(examination, run)}
    assert found["admission"].seen == "the authority admits third-of-door"
    assert found["entry address"].status == "ok" and "2 training peers" in found["entry address"].seen
    monkeypatch.delenv("HF_TOKEN")
    found = {" ".join(result.name.split()[:2]): result for result in check_swarm(examination, run)}
    assert found["admission"].status == "fail" and found["admission"].cure == "Log in: hf auth login."
    assert found["entry address"].status == "fail" and "refuses" in found["entry address"].seen


@pytest.mark.long
def test_a_banned_users_peer_is_out_within_the_lifetime_of_its_token(hub, swarm, visitors):
    first, second = swarm.peers[:2]
    edit_lists(hub, REPOSITORY, {"ban": ["second-of-door"]})
    banned_at = time.time()
    deadline = banned_at + LIFETIME_SECONDS
    alone = first.wait_for("step", seconds=120, after=banned_at, num_peers=1)
    # A step that began with both of them tells only when it has given up waiting for a group.
    assert alone["time"] < deadline + AVERAGING_SECONDS + 8.0, "counted in the token's lifetime, and a look at the DHT"
    # The banned peer goes on as if nothing had happened; nobody takes notice of it any more.
    rounds = alone["num_rounds"]
    second.wait_for("step", seconds=120, after=deadline)
    # So may the epoch that was under way then.
    later = first.wait_for("step", seconds=120, after=max(deadline + 5.0, alone["time"]), ended_epoch=True)
    assert later["num_peers"] == 1 and later["num_rounds"] == rounds
    assert "second-of-door is banned from org/door" in second.log()


def test_no_token_is_in_what_peers_print_or_write(swarm, service, tokens, visitors):
    texts = {path: path.read_bytes() for path in swarm.folder.iterdir() if not path.name.endswith(".json")}
    texts[service.log_file] = service.log_file.read_bytes()
    secrets = [token.encode() for token in tokens.values()]
    assert [path.name for path, text in texts.items() if any(secret in text for secret in secrets)] == []
