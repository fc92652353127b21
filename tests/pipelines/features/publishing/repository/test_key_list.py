"""The list of a run's keys: signed by the organiser, with roles and revocations in time; older ones are refused."""

import json

import pytest
from swarm_of_processes import tiny_run

from pipelines.core.signing.publisher_keys import PublisherKey
from pipelines.core.signing.signed_statement import signed_bytes
from pipelines.features.publishing.repository.key_list import (
    ANCHOR,
    MAX_BYTES,
    MAX_KEPT_MANIFESTS,
    MAX_KEYS,
    PUBLISHER,
    ROLES,
    KeyList,
    KeysRefusedError,
    ListedKey,
    TrustedKeys,
    read_key_list,
    unsigned_list,
)

UNSIGNED_RUN = tiny_run(run_id="birds")


@pytest.fixture
def new_key(tmp_path):
    return lambda name: PublisherKey.load_or_create(tmp_path / f"{name}.pem")


@pytest.fixture
def organiser(new_key):
    return new_key("organiser")


@pytest.fixture
def run(organiser):
    return UNSIGNED_RUN.replace(organiser_key=organiser.public)


@pytest.fixture
def listed(new_key):
    """A list with a key for both roles and one for an anchor alone."""
    both = KeyList(serial=1).adding(new_key("both").public, ROLES, now=100.9)
    return both.adding(new_key("anchor").public, [ANCHOR], now=200)


def signed_anew(text, organiser, **changes):
    """The text with some values changed, signed by the organiser as if they were right."""
    values = json.loads(text) | {"key": organiser.public} | changes
    del values["signature"]
    return json.dumps(values | {"signature": organiser.sign(signed_bytes("publisher keys", values))})


def test_a_signed_list_comes_back_as_it_was(listed, organiser, run, new_key):
    whole = listed.revoking(new_key("both").public, now=300).keeping("ab" * 32)
    text = whole.signed(organiser, "birds")
    assert read_key_list(text, run) == whole
    values = json.loads(text)
    assert (values["serial"], values["run_id"], values["key"]) == (1, "birds", organiser.public)
    assert values["keys"][0] == dict(
        key=new_key("both").public, roles=["publisher", "anchor"], added_at=100, revoked_at=300
    )


def test_what_was_signed_before_a_revocation_counts_and_nothing_from_then_on(listed, new_key):
    both, anchor = new_key("both").public, new_key("anchor").public
    assert listed.has_role(both, PUBLISHER, at=1e9) and listed.has_role(both, ANCHOR, at=0)
    assert listed.has_role(anchor, ANCHOR, at=1e9) and not listed.has_role(anchor, PUBLISHER, at=1e9)
    assert not listed.has_role(new_key("stranger").public, ANCHOR, at=1e9)
    revoked = listed.revoking(both, now=500)
    assert [revoked.has_role(both, PUBLISHER, at=time) for time in (499.9, 500, 501)] == [True, False, False]
    assert revoked.holders(ANCHOR, at=499) == (both, anchor) and revoked.holders(ANCHOR, at=500) == (anchor,)
    assert revoked.revoking(both, now=900) == revoked, "the first revocation counts"


def test_a_key_gets_more_roles_but_never_comes_back_once_it_is_revoked(listed, new_key):
    anchor = new_key("anchor").public
    more = listed.adding(anchor, [PUBLISHER], now=900)
    assert more.find(anchor) == ListedKey(key=anchor, roles=ROLES, added_at=200)
    assert listed.adding(anchor, [ANCHOR], now=900) == listed
    with pytest.raises(ValueError, match=r"was revoked at 1970-01-01 00:05:00 UTC, and that is for good"):
        listed.revoking(anchor, now=300).adding(anchor, ROLES, now=900)
    with pytest.raises(ValueError, match=r"is not listed. See the list: dalle-collab run keys"):
        listed.revoking(new_key("stranger").public, now=300)
    with pytest.raises(ValueError, match="'me' is not a key; expected ed25519:"):
        listed.adding("me", ROLES, now=300)


def test_a_list_has_room_for_a_bounded_number_of_keys_and_kept_manifests(run, organiser):
    keys = [f"ed25519:{number:043d}=" for number in range(MAX_KEYS + 1)]
    full = KeyList(serial=1)
    for key in keys[:-1]:
        full = full.adding(key, ROLES, now=2e9).revoking(key, now=2e9)
    for number in range(MAX_KEPT_MANIFESTS + 5):
        full = full.keeping(f"{number:064x}")
    assert full.kept_manifests[0] == f"{5:064x}" and len(full.kept_manifests) == MAX_KEPT_MANIFESTS
    text = full.signed(organiser, "birds")
    assert len(text) < MAX_BYTES and read_key_list(text, run) == full
    with pytest.raises(ValueError, match="has 64 keys, the limit"):
        full.adding(keys[-1], ROLES, now=2e9)
    one = dict(key=keys[-1], roles=["anchor"], added_at=1, revoked_at=None)
    for entries in ([*json.loads(text)["keys"], one], [one, one]):
        with pytest.raises(KeysRefusedError, match=r"cannot be read .*expected at most 64, each once"):
            read_key_list(signed_anew(text, organiser, keys=entries), run)


def test_a_list_that_the_organiser_did_not_sign_is_refused_and_so_is_another_runs(listed, organiser, run, new_key):
    thief = new_key("thief")
    text = listed.signed(organiser, "birds")
    with_thief = [*json.loads(text)["keys"], dict(key=thief.public, roles=["publisher"], added_at=1, revoked_at=None)]
    refused = r"not signed by the run's organiser, whose key is ed25519:.* dalle-collab run keys ORG/RUN --restore"
    for changed in (
        json.dumps(json.loads(text) | {"keys": with_thief}),
        signed_anew(text, thief, keys=with_thief),
        signed_anew(text, organiser).replace('"serial": 1', '"serial": 2'),
        json.dumps(json.loads(text) | {"key": thief.public}),
    ):
        with pytest.raises(KeysRefusedError, match=refused):
            read_key_list(changed, run)
    with pytest.raises(KeysRefusedError, match="is of the run fish, expected birds"):
        read_key_list(listed.signed(organiser, "fish"), run)


@pytest.mark.parametrize(
    "changes",
    [
        dict(serial=0), dict(serial=True), dict(serial=1.0), dict(serial=2**60), dict(more=1), dict(keys=3),
        dict(keys=[{}]), dict(keys=["ed25519:x"]), dict(kept_manifests="ab"), dict(kept_manifests=["zz"]),
        *(
            dict(keys=[dict(dict(key=f"ed25519:{0:043d}=", roles=["anchor"], added_at=1, revoked_at=None), **bad)])
            for bad in (
                dict(roles=[]), dict(roles=["king"]), dict(roles=["anchor", "publisher"]), dict(roles=["anchor"] * 2),
                dict(added_at=-1), dict(added_at=None), dict(revoked_at="now"), dict(revoked_at=1.5), dict(key=3),
                dict(key="ed25519:" + "A" * 44), dict(name="more"),
            )
        ),
    ],
    ids=str,
)  # fmt: skip
def test_even_a_signed_list_is_read_strictly(listed, organiser, run, changes):
    with pytest.raises(KeysRefusedError, match=r"publisher_keys.json of the run cannot be read"):
        read_key_list(signed_anew(listed.signed(organiser, "birds"), organiser, **changes), run)


@pytest.mark.parametrize(
    "text", ["", "{", "3", "[]", "{}", '{"keys": 3}', '{"signature": 2}', "[" * 60_000, " " * 70_000]
)
def test_garbage_is_refused_whether_the_list_should_be_signed_or_not(run, text):
    for settings in (run, UNSIGNED_RUN):
        with pytest.raises(KeysRefusedError, match=r"publisher_keys.json"):
            read_key_list(text, settings)


def test_an_unsigned_list_gives_all_roles_and_goes_with_a_run_without_an_organisers_key_alone(
    listed, organiser, run, new_key
):
    key = new_key("old").public
    text = json.dumps(dict(keys=[key]))
    read = read_key_list(text, UNSIGNED_RUN)
    assert read == unsigned_list([key]) and all(read.has_role(key, role, at=1e9) for role in ROLES)
    assert read_key_list(read.unsigned(), UNSIGNED_RUN) == read
    with pytest.raises(KeysRefusedError, match="cannot be read"):
        read_key_list(text, run)
    with pytest.raises(KeysRefusedError, match="is signed, but the run's settings name no organiser's key"):
        read_key_list(listed.signed(organiser, "birds"), UNSIGNED_RUN)
    assert read_key_list(None, run) == read_key_list(None, UNSIGNED_RUN) == KeyList()


def test_a_process_keeps_its_list_when_an_older_a_foreign_or_no_list_is_put_in_its_place(
    listed, organiser, run, new_key, caplog
):
    trusted, thief = TrustedKeys(run), new_key("thief")
    assert trusted.newest() == KeyList()
    with pytest.raises(KeysRefusedError, match="not signed by the run's organiser"):
        trusted.take(run, listed.signed(thief, "birds"))
    first = listed.signed(organiser, "birds")
    second = KeyList(**{**vars(listed.revoking(new_key("both").public, now=300)), "serial": 2})
    assert trusted.take(run, first) == listed and trusted.take(run, first) == listed
    assert trusted.take(run, second.signed(organiser, "birds")) == second
    other_second = KeyList(**{**vars(listed), "serial": 2}).signed(organiser, "birds")
    stolen = run.replace(organiser_key=thief.public)
    for settings, text, words in (
        (run, first, "has serial 1, and this process has seen another list with serial 2"),
        (run, other_second, "has serial 2, and this process has seen another list with serial 2"),
        (run, None, "has serial 0"),
        (run, "{", "cannot be read"),
        (stolen, listed.signed(thief, "birds"), f"settings name {thief.public} as the organiser's, this process began"),
        (run.replace(organiser_key=""), '{"keys": []}', "settings name no key as the organiser's"),
    ):
        caplog.clear()
        assert trusted.take(settings, text) == second == trusted.newest()
        assert words in caplog.text and "the list with serial 2 counts" in caplog.text
    assert trusted.accepts(run.replace(generation=1)) and not trusted.accepts(stolen)


def test_the_list_of_a_run_without_an_organisers_key_changes_freely(new_key):
    trusted, (one, two) = TrustedKeys(UNSIGNED_RUN), (unsigned_list([new_key(name).public]) for name in ("a", "b"))
    assert [trusted.take(UNSIGNED_RUN, keys.unsigned()) for keys in (one, two, one)] == [one, two, one]
