"""What waits for the Hub: whole or not at all, bounded, in order; and how often the Hub is written to."""

import json

import pytest

from pipelines.core.signing.publisher_keys import PublisherKey
from pipelines.features.publishing.auxiliary.auxiliary_options import AuxiliaryOptions, sole_user
from pipelines.features.publishing.auxiliary.publishing.commit_budget import CommitBudget, seconds_until_commit
from pipelines.features.publishing.auxiliary.publishing.publication_spool import PublicationSpool, epochs_to_drop
from pipelines.features.publishing.auxiliary.publishing.publisher_election import candidacy, elect, proven_keys
from pipelines.features.publishing.repository.manifest import CheckpointRefusedError


def writing(text):
    return lambda folder: (folder / "file.txt").write_text(text)


def test_what_waits_survives_a_restart_in_the_order_of_its_epochs(tmp_path):
    spool = PublicationSpool(tmp_path, max_bytes=1000)
    for epoch in (300, 20, 100):
        spool.add(epoch, writing(f"epoch {epoch}"))
    (tmp_path / ".partial-00000400").mkdir()
    again = PublicationSpool(tmp_path, max_bytes=1000)
    assert [entry.epoch for entry in again.entries()] == [20, 100, 300] and again.newest_epoch() == 300
    assert (again.entries()[0].folder / "file.txt").read_text() == "epoch 20"
    assert not (tmp_path / ".partial-00000400").exists()
    again.remove(300)
    assert again.newest_epoch() == 100


def test_a_checkpoint_that_could_not_be_written_whole_is_not_in_the_spool(tmp_path):
    spool = PublicationSpool(tmp_path, max_bytes=1000)

    def write(folder):
        (folder / "file.txt").write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        spool.add(5, write)
    assert spool.entries() == [] and list(tmp_path.iterdir()) == []


def test_what_the_disk_has_damaged_is_refused_by_name(tmp_path):
    spool = PublicationSpool(tmp_path, max_bytes=1000)
    spool.add(5, writing("epoch 5"))
    (entry,) = spool.entries()
    entry.check()
    (entry.folder / "file.txt").write_text("epoch 6")
    with pytest.raises(CheckpointRefusedError, match=r"file.txt is damaged: .* the spool's record of epoch 5 says"):
        entry.check()


@pytest.mark.parametrize(
    ("sizes", "max_bytes", "dropped"),
    [
        ({}, 10, []),
        ({1: 50}, 10, []),
        ({1: 5, 2: 5}, 10, []),
        ({100: 4, 200: 4, 300: 4}, 10, [100]),
        ({100: 4, 150: 4, 300: 4, 320: 4, 340: 4}, 12, [100, 320]),
        ({1: 9, 2: 9, 3: 9}, 10, [1, 2]),
    ],
)
def test_a_full_spool_gives_up_what_lies_closest_together_and_never_the_newest(sizes, max_bytes, dropped):
    assert epochs_to_drop(sizes, max_bytes) == dropped


def test_a_full_spool_says_what_it_gave_up(tmp_path, caplog):
    spool = PublicationSpool(tmp_path, max_bytes=20)
    for epoch in (1, 2, 3):
        spool.add(epoch, writing("0123456789"))
    assert [entry.epoch for entry in spool.entries()] == [2, 3]
    assert "the checkpoint of epoch 1 was dropped" in caplog.text


@pytest.mark.parametrize(
    ("times", "now", "wait"),
    [
        ([], 0.0, 0.0),
        ([0, 10], 20, 0.0),
        ([0, 10, 15], 20, 3580.0),
        ([0, 10, 15], 3601, 0.0),
        ([0, 1, 2, 3], 5, 3596.0),
    ],
)
def test_no_hour_has_more_commits_than_the_limit(times, now, wait):
    assert seconds_until_commit(times, now, max_per_hour=3) == wait


def test_a_restarted_peer_remembers_its_commits_and_a_set_back_clock_closes_for_no_more_than_an_hour(tmp_path):
    budget = CommitBudget(tmp_path / "times.json", max_per_hour=4)
    for now in (1000.0, 1001.0, 1002.0):
        assert budget.seconds_until_commit(now) == 0.0
        budget.count(now)
    again = CommitBudget(tmp_path / "times.json", max_per_hour=4)
    assert again.seconds_until_commit(1003.0) == 0.0
    assert again.seconds_until_commit(1003.0, share=0.5) == pytest.approx(3598.0)
    again.count(1003.0)
    assert again.seconds_until_commit(1003.0) == 3597.0
    assert again.seconds_until_commit(10.0) == 3600.0
    (tmp_path / "times.json").write_text("damaged")
    assert CommitBudget(tmp_path / "times.json", max_per_hour=4).seconds_until_commit(1003.0) == 0.0


def test_one_publisher_is_elected_by_the_order_of_the_list_and_the_next_one_after_it():
    listed = ["first", "second", "third"]
    assert elect({"third", "second", "first"}, listed) == "first"
    assert elect({"third", "second"}, listed) == "second"
    assert elect({"stranger", "third"}, listed) == "third"
    assert elect({"stranger"}, listed) is None and elect(set(), listed) is None


def test_a_candidacy_counts_for_its_own_record_and_swarm_alone(tmp_path):
    key = PublisherKey.load_or_create(tmp_path / "key.pem")
    own = candidacy(key, "birds", b"owner")
    assert proven_keys([(b"owner", own)], "birds") == {key.public}
    assert proven_keys([(b"thief", own)], "birds") == set() == proven_keys([(b"owner", own)], "birds-generation-1")


def test_the_folder_of_an_auxiliary_peer_has_one_user(tmp_path):
    refused = pytest.raises(ValueError, match=r"Another auxiliary peer .* uses .*folder.*--state-folder")
    with sole_user(tmp_path / "folder"), refused, sole_user(tmp_path / "folder"):
        pass
    with sole_user(tmp_path / "folder"):
        pass


@pytest.mark.parametrize(
    "name", ["takeover_seconds", "metrics_interval_seconds", "retry_seconds",
             "max_spool_gigabytes"]
)  # fmt: skip
def test_a_time_or_size_that_cannot_be_is_refused_by_name(tmp_path, name):
    with pytest.raises(ValueError, match=f"{name} is 0; expected a number above 0"):
        AuxiliaryOptions(folder=tmp_path, **{name: 0})


def test_digests_in_the_spool_are_readable_json(tmp_path):
    PublicationSpool(tmp_path, max_bytes=100).add(7, writing("seven"))
    digests = json.loads((tmp_path / "epoch-00000007" / "digests.json").read_text())
    assert digests["file.txt"]["size"] == 5
