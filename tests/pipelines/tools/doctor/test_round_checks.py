"""What the doctor finds of a run whose only wire is the Hub: rights, the link, and who closes the rounds."""

import time

import pytest
from hub_round_parts import TinyRun, log_in
from huggingface_hub import HfApi

from pipelines.core.peer.volunteer import ANONYMOUS
from pipelines.core.signing.signed_statement import signed_text
from pipelines.features.hub_rounds.following import Presence
from pipelines.features.hub_rounds.statements import fingerprint
from pipelines.features.publishing.repository.key_list import unsigned_list
from pipelines.features.publishing.repository.snapshot import RunSnapshot
from pipelines.tools.doctor.round_checks import check_bucket, check_closer


@pytest.fixture
def tiny(hub, monkeypatch):
    log_in(monkeypatch, hub)
    run = TinyRun(window_seconds=600.0)
    HfApi().create_repo(run.repository)
    yield run
    run.close()


def test_who_may_write_reads_how_long_a_contribution_takes_and_leaves_no_file(tiny):
    found = list(check_bucket(tiny.files, tiny.repository, "alice", 125_000_000))
    assert [(one.name, one.status) for one in found] == [("own bucket", "ok"), ("upload", "ok")]
    bucket = tiny.files.bucket_of("alice")
    assert list(HfApi().list_bucket_tree(bucket, recursive=True)) == []
    late = list(check_bucket(tiny.files, tiny.repository, "alice", 10**13))[-1]
    assert late.status == "warn" and "window_seconds" in late.cure


def test_who_may_not_write_reads_which_right_is_missing(tiny, hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", hub.create_user("outsider"))
    (found,) = check_bucket(tiny.files, tiny.repository, "outsider", 1)
    assert found.status == "fail" and "the role contributor in org" in found.cure
    (found,) = check_bucket(tiny.files, tiny.repository, ANONYMOUS, 1)
    assert found.seen == "nobody is logged in"


def test_an_auxiliary_peer_is_there_was_there_or_never_was(tiny):
    key = tiny.keys[0]
    snapshot = RunSnapshot(repository=tiny.repository, commit="", run=tiny.run)
    snapshot.__dict__["keys"] = unsigned_list([key.public])
    assert check_closer(tiny.files, snapshot, tiny.run).seen == "none has been there"

    def announce(seconds_ago):
        presence = Presence(
            swarm_id=tiny.run.swarm_id, held_epoch=1, published_epoch=0, proof="", time=time.time() - seconds_ago,
            key=key.public,
        )  # fmt: skip
        path = tiny.files.presence_path(fingerprint(key.public))
        tiny.files.put(tiny.files.run_bucket, {path: signed_text(presence, key)})
        return check_closer(tiny.files, snapshot, tiny.run)

    assert announce(10).status == "ok"
    gone = announce(3600)
    assert gone.status == "warn" and f"dalle-collab run assist {tiny.repository}" in gone.cure
