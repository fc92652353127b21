"""The organiser's key: where it lives, how it leaves a cache, and what becomes of it in a backup."""

from pathlib import Path

import pytest
from huggingface_hub import constants
from swarm_of_processes import tiny_run

from pipelines.core.signing.publisher_keys import PublisherKey
from pipelines.features.publishing.repository.organiser import (
    KEY_FILE,
    found_organiser,
    local_folder,
    organiser_key_file,
    restore_organiser,
)

BIRDS = "my-org/birds"


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def old_file(name=KEY_FILE):
    return local_folder("organiser", BIRDS) / name


def test_a_new_key_is_in_the_folder_of_configuration_and_only_its_owner_reads_it(tmp_path):
    path = found_organiser(BIRDS).key_file
    assert path.is_relative_to(tmp_path / "config" / "dalle-collab") and path.stat().st_mode & 0o777 == 0o600
    assert organiser_key_file("my-org/bees") != path and not old_file().exists()


def test_without_the_variable_it_is_in_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable in ("", "relative/is/none"):
        monkeypatch.setenv("XDG_CONFIG_HOME", variable)
        assert organiser_key_file(BIRDS).is_relative_to(tmp_path / ".config" / "dalle-collab")


def test_a_key_of_an_older_version_is_moved_with_the_list_beside_it():
    key = PublisherKey.load_or_create(old_file())
    old_file().chmod(0o644)
    old_file("publisher_keys.json").write_text("{}")
    organiser = found_organiser(BIRDS)
    assert organiser.key.public == key.public and organiser.key_file.stat().st_mode & 0o777 == 0o600
    assert organiser.copy.read_text() == "{}" and organiser.copy.parent == organiser.key_file.parent
    assert list(local_folder("organiser", BIRDS).iterdir()) == []


def test_a_key_that_is_in_its_place_is_not_replaced_by_an_older_one():
    new = found_organiser(BIRDS).key.public
    old = PublisherKey.load_or_create(old_file()).public
    assert found_organiser(BIRDS).key.public == new
    assert PublisherKey.load(old_file()).public == old, "nor is the older one lost"


def test_a_key_that_cannot_be_moved_is_used_where_it_is(tmp_path, caplog):
    key = PublisherKey.load_or_create(old_file())
    (tmp_path / "config").write_text("a file where the folder should be")
    assert (found_organiser(BIRDS).key.public, organiser_key_file(BIRDS)) == (key.public, old_file())
    assert "could not be moved" in caplog.text and "PRIVATE" not in caplog.text


def test_a_backup_is_encrypted_and_read_with_its_passphrase_alone(tmp_path):
    key = PublisherKey.load_or_create(tmp_path / "key.pem")
    backup = tmp_path / "backup.pem"
    key.save(backup, "larks at dawn")
    assert b"ENCRYPTED" in backup.read_bytes() and backup.stat().st_mode & 0o777 == 0o600
    assert PublisherKey.load(backup, lambda: "larks at dawn").public == key.public
    with pytest.raises(ValueError, match="cannot be decrypted with this passphrase"):
        PublisherKey.load(backup, lambda: "owls at dusk")
    for ask in (None, lambda: ""):
        with pytest.raises(ValueError, match=r"backup.pem is encrypted; expected"):
            PublisherKey.load(backup, ask)
    assert PublisherKey.load(tmp_path / "key.pem", pytest.fail).public == key.public, "nobody is asked"


def test_only_the_runs_own_key_is_restored_and_no_other_is_overwritten(tmp_path):
    key, other = (PublisherKey.load_or_create(tmp_path / name) for name in ("key.pem", "other.pem"))
    run, place = tiny_run(organiser_key=key.public), tmp_path / "place" / "organiser.pem"
    with pytest.raises(ValueError, match="Name the backup of this run's key"):
        restore_organiser(other, run, place)
    assert not place.exists()
    restore_organiser(key, run, place)
    restore_organiser(key, run, place)
    assert PublisherKey.load(place).public == key.public
    with pytest.raises(ValueError, match=r"other.pem has another key than the run's. Move it away first"):
        restore_organiser(key, run, tmp_path / "other.pem")
    assert PublisherKey.load(Path(tmp_path / "other.pem")).public == other.public
