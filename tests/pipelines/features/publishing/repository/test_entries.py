"""Entries prove themselves: who may only write to a run's repository leads no newcomer to peers of its own."""

import dataclasses
import json

import pytest
from huggingface_hub import CommitOperationAdd, HfApi, constants
from swarm_of_processes import tiny_run

from pipelines.core.signing.publisher_keys import PublisherKey
from pipelines.core.signing.signed_statement import signed_bytes
from pipelines.core.swarm_time import SWARM_TIME
from pipelines.features.publishing.auxiliary.entry_keeping import entered_run
from pipelines.features.publishing.repository.announcements import announce_auxiliary, announce_entry
from pipelines.features.publishing.repository.entries import (
    LIFETIME_SECONDS,
    RENEWAL_SECONDS,
    EntriesRefusedError,
    SignedEntries,
)
from pipelines.features.publishing.repository.key_list import ANCHOR, ROLES, KeyList
from pipelines.features.publishing.repository.organiser import Organiser
from pipelines.features.publishing.repository.snapshot import RunSnapshot

OURS, OTHERS, HOSTILE = (f"/ip4/203.0.113.{number}/tcp/31337/p2p/Qm{number}" for number in (1, 2, 66))
NOW = 1e9


@pytest.fixture
def new_key(tmp_path):
    return lambda name: PublisherKey.load_or_create(tmp_path / f"{name}.pem")


@pytest.fixture
def run(new_key):
    return tiny_run(run_id="birds", organiser_key=new_key("organiser").public, entry_addresses=(HOSTILE,))


@pytest.fixture
def keys(new_key):
    listed = KeyList(serial=1).adding(new_key("publisher").public, ROLES, now=100)
    return listed.adding(new_key("anchor").public, [ANCHOR], now=100)


ENTRIES = SignedEntries(run_id="birds", addresses=(OURS, OTHERS), time=NOW)


def test_signed_entries_come_back_as_they_were(new_key, keys, run):
    text, entries = ENTRIES.signed(new_key("publisher")), dataclasses.replace(ENTRIES, key=new_key("publisher").public)
    for now in (NOW, NOW - LIFETIME_SECONDS, NOW + LIFETIME_SECONDS):
        assert SignedEntries.read(text, keys, run, now) == entries


@pytest.mark.parametrize("seconds", [-LIFETIME_SECONDS - 1, LIFETIME_SECONDS + 1])
def test_old_entries_do_not_count_nor_do_those_of_a_far_future(new_key, keys, run, seconds):
    text = ENTRIES.signed(new_key("publisher"))
    with pytest.raises(EntriesRefusedError, match=r"was signed at 2001-09-09 01:46:40 UTC; expected the last 14 days"):
        SignedEntries.read(text, keys, run, NOW + seconds)


def test_only_a_publisher_that_is_listed_and_not_revoked_signs_entries(new_key, keys, run):
    for name in ("stranger", "anchor", "organiser"):
        with pytest.raises(EntriesRefusedError, match=r"is not signed by one of the 1 publishers of birds, but"):
            SignedEntries.read(ENTRIES.signed(new_key(name)), keys, run, NOW)
    text, publisher = ENTRIES.signed(new_key("publisher")), new_key("publisher").public
    with pytest.raises(EntriesRefusedError, match=r"one of the 0 publishers of birds"):
        SignedEntries.read(text, keys.revoking(publisher, now=NOW), run, NOW + 1)
    values = json.loads(text)
    values["addresses"] = [HOSTILE]
    with pytest.raises(EntriesRefusedError, match=r"is not signed by one of the 1 publishers"):
        SignedEntries.read(json.dumps(values), keys, run, NOW)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(run_id="fish"), "is of run fish, expected birds"),
        (dict(addresses=("no address",)), "cannot be read .*expected at most 64 multiaddresses"),
        (dict(addresses=(OURS,) * 65), "cannot be read .*expected at most 64 multiaddresses"),
        (dict(time=1e300), "cannot be read"),
    ],
)
def test_what_a_publisher_signed_wrongly_is_named(new_key, keys, run, changes, words):
    text = dataclasses.replace(ENTRIES, **changes).signed(new_key("publisher"))
    with pytest.raises(EntriesRefusedError, match=words):
        SignedEntries.read(text, keys, run, NOW)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"addresses": 4}', "[" * 10**5, " " * 2**17, '{"time": 1e999}'])
def test_a_hostile_text_is_refused(keys, run, text):
    with pytest.raises(EntriesRefusedError, match=r"entries\.json of birds cannot be read"):
        SignedEntries.read(text, keys, run, NOW)


def test_another_statement_of_a_publisher_is_no_list_of_entries(new_key, keys, run):
    """The manifest of a checkpoint is signed with the same key, for its own purpose."""
    values, key = json.loads(ENTRIES.signed(new_key("publisher"))), new_key("publisher")
    del values["signature"]
    for purpose, counts in (("checkpoint", False), ("entries", True)):
        text = json.dumps(values | {"signature": key.sign(signed_bytes(purpose, values))})
        if counts:
            assert SignedEntries.read(text, keys, run, NOW).addresses == ENTRIES.addresses
            continue
        with pytest.raises(EntriesRefusedError, match="is not signed by one of"):
            SignedEntries.read(text, keys, run, NOW)


@pytest.fixture
def publish(hub, tmp_path, monkeypatch, run):
    """Put files into a new repository with the run's settings, seen from an empty cache; return its name."""
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
    template = hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setenv("HF_TOKEN", hub.alice_token)
    repository = HfApi().create_repo(f"org/entries-{tmp_path.name}").repo_id

    def put(**files):
        operations = [CommitOperationAdd(f"{name}.json", text.encode()) for name, text in files.items()]
        HfApi().create_commit(repository, operations, commit_message="changed")
        return repository

    put(training_run=run.to_json())
    return put


@pytest.mark.slow
def test_newcomers_go_where_a_publisher_says_whoever_writes_to_the_repository(publish, run, new_key, tmp_path):
    repository, key = publish(notes="{}"), new_key("publisher")
    here = Organiser(key=new_key("organiser"), key_file=tmp_path / "organiser.pem", copy=tmp_path / "copy.json")
    commits = []

    def announce(keys, organiser=None):
        announce_auxiliary(
            repository, key=key, keys=keys, addresses=[OURS], organiser=organiser, now=SWARM_TIME(),
            before_commit=lambda: commits.append(1),
        )  # fmt: skip
        return RunSnapshot.read(repository)

    def refusal(**files):
        publish(**files)
        snapshot = RunSnapshot.read(repository)
        with pytest.raises(EntriesRefusedError) as caught:
            snapshot.run_to_enter  # noqa: B018
        assert entered_run(snapshot) == snapshot.run, "an auxiliary peer, who cures it, goes in as before"
        return str(caught.value)

    assert RunSnapshot.read(repository).run_to_enter == run, "as long as nobody can have signed"
    announced = announce(KeyList(), here)
    assert announced.run_to_enter.entry_addresses == announced.run.entry_addresses == (OURS,) and len(commits) == 1
    assert announce(announced.keys).commit == announced.commit and len(commits) == 1

    publish(training_run=run.to_json())  # with the hostile address
    changed = RunSnapshot.read(repository)
    assert changed.run.entry_addresses == (HOSTILE,) and changed.run_to_enter.entry_addresses == (OURS,)
    hostile = dataclasses.replace(ENTRIES, addresses=(HOSTILE,), time=SWARM_TIME())
    assert "is not signed by one of the 1 publishers" in refusal(entries=hostile.signed(new_key("stranger")))
    old = dataclasses.replace(ENTRIES, addresses=(OURS,), time=SWARM_TIME() - LIFETIME_SECONDS - 60)
    assert "was signed at" in refusal(entries=old.signed(key))
    HfApi().delete_file("entries.json", repository)
    assert "has no entries.json, but publishers to sign it" in refusal(notes="{1}")
    assert announce(announced.keys).run_to_enter.entry_addresses == (OURS,)

    due = dataclasses.replace(ENTRIES, addresses=(OURS,), time=SWARM_TIME() - RENEWAL_SECONDS - 60)
    publish(entries=due.signed(key))
    renewed = announce(announced.keys).signed_entries
    assert renewed.addresses == (OURS,) and renewed.time > due.time + RENEWAL_SECONDS


@pytest.mark.slow
def test_an_entry_signs_for_others_only_if_somebody_else_has(publish, run, new_key, tmp_path):
    listed = KeyList(serial=1).adding(new_key("publisher").public, ROLES, now=100)
    repository = publish(publisher_keys=listed.signed(new_key("organiser"), "birds"))
    here = dict(with_own=lambda others: (OURS, *others), now=SWARM_TIME())
    assert announce_entry(repository, key=new_key("stranger"), **here) == (OURS,)
    with pytest.raises(EntriesRefusedError, match=r"has no entries\.json"):
        RunSnapshot.read(repository).run_to_enter  # noqa: B018
    assert announce_entry(repository, key=new_key("publisher"), **here) == (OURS,)
    assert RunSnapshot.read(repository).run_to_enter.entry_addresses == (OURS,), "and not the hostile one"
    more = dict(here, with_own=lambda others: tuple({OTHERS, *others}))
    assert set(announce_entry(repository, key=new_key("publisher"), **more)) == {OURS, OTHERS}
    head = RunSnapshot.read(repository)
    assert set(announce_entry(repository, key=new_key("publisher"), **more)) == {OURS, OTHERS}
    assert RunSnapshot.read(repository).commit == head.commit


@pytest.mark.slow
def test_a_run_without_an_organiser_has_unsigned_entries_as_before(publish, run, new_key):
    repository = publish(training_run=run.replace(organiser_key="").to_json(), entries="{")
    announce_auxiliary(
        repository, key=new_key("publisher"), keys=KeyList(), addresses=[OURS], organiser=None, now=SWARM_TIME(),
        before_commit=lambda: None,
    )  # fmt: skip
    snapshot = RunSnapshot.read(repository)
    assert snapshot.run_to_enter == snapshot.run and snapshot.run.entry_addresses == (OURS,)
    assert snapshot.keys.find(new_key("publisher").public)
