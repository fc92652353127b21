"""`dalle-collab run keys` on the embedded Hub: what it shows, what it takes to change the list, what is put back."""

import json
from pathlib import Path

import pytest
from published_runs import the_line

from pipelines.core.signing.publisher_keys import PublisherKey
from pipelines.features.publishing.repository.key_list import read_key_list

pytestmark = pytest.mark.slow


class KeysOfARun:
    """A run and its list of keys, with a file for the organiser's key."""

    def __init__(self, material, commands, repository, key_file):
        self.material, self.commands, self.repository, self.key_file = material, commands, repository, key_file

    def command(self, *options, key_file=None):
        arguments = ("run", "keys", self.repository, "--organiser-key", key_file or self.key_file, *options)
        return self.commands.run(*arguments)

    def done(self, *options):
        done = self.command(*options)
        assert done.returncode == 0, done.stderr
        return done.stdout

    @property
    def listed(self):
        text = self.material.file(self.repository, "publisher_keys.json").read_text()
        return read_key_list(text, self.material.settings(self.repository))

    def titles(self):
        return [commit.title for commit in self.material.api.list_repo_commits(self.repository)]

    def write(self, text):
        self.material.api.upload_file(
            repo_id=self.repository, path_in_repo="publisher_keys.json", path_or_fileobj=text.encode()
        )


@pytest.fixture(scope="module")
def run(training_material, commands, tmp_path_factory):
    key_file = tmp_path_factory.mktemp("organiser") / "organiser.pem"
    repository = "org/listed-run"
    made = commands.run(*training_material.create_arguments(repository), "--organiser-key", key_file)
    assert made.returncode == 0, made.stderr
    last = made.stdout.splitlines()[-1]
    assert f"is in {key_file} and nowhere else" in last
    assert last.endswith(f"dalle-collab run keys {repository} --organiser-key {key_file} --backup-key FILE")
    return KeysOfARun(training_material, commands, repository, key_file)


@pytest.fixture
def new_key(tmp_path):
    return lambda name: PublisherKey.load_or_create(tmp_path / f"{name}.pem").public


def test_keys_are_added_with_roles_and_revoked_each_in_one_commit_that_the_organiser_signs(run, new_key):
    assert run.key_file.stat().st_mode & 0o777 == 0o600
    assert run.material.settings(run.repository).organiser_key == PublisherKey.load_or_create(run.key_file).public
    assert not {"organiser.pem", "organiser_key.pem"} & set(run.material.api.list_repo_files(run.repository))
    before, one, two = run.titles(), new_key("one"), new_key("two")
    assert one in run.done("--add", one)
    run.done("--add", two, "--role", "anchor")
    shown = run.done("--revoke", one)
    assert run.titles() == ["Revoke a key", "List a key", "List a key", *before]
    assert [(entry.key, entry.roles, entry.revoked_at is None) for entry in run.listed.entries] == [
        (one, ("publisher", "anchor"), False), (two, ("anchor",), True),
    ]  # fmt: skip
    assert run.listed.serial == 3 and "Serial 3, signed by the organiser" in shown
    assert "publisher, anchor" in shown and f"This machine has the organiser's key: {run.key_file}" in shown
    assert run.done("--add", two, "--role", "anchor") and len(run.titles()) == len(before) + 3, "nothing to change"
    assert run.done() == run.done("--revoke", one), "showing it is the same, and changes nothing"


def test_a_list_that_somebody_with_write_access_changed_is_refused_and_put_back(run, new_key):
    run.done("--add", new_key("kept"))
    good = run.listed
    old = run.material.file(run.repository, "publisher_keys.json").read_text()
    changed = json.loads(old)
    changed["keys"].append(dict(key=new_key("thief"), roles=["publisher"], added_at=1, revoked_at=None))
    run.write(json.dumps(changed))
    line = the_line(run.command())
    assert "is not signed by the run's organiser" in line and line.endswith(f"run keys {run.repository} --restore")
    shown = run.done("--restore")
    assert new_key("thief") not in shown and run.titles()[0] == "Put the list of keys back"
    assert (run.listed.entries, run.listed.serial) == (good.entries, good.serial + 1)
    # An older list of the organiser's own is as good as none: what was changed since then is not lost.
    run.done("--revoke", new_key("kept"))
    run.write(old)
    run.done("--add", new_key("next"))
    assert run.listed.find(new_key("kept")).revoked_at and run.listed.find(new_key("next"))
    assert run.listed.serial == good.serial + 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--add", "me"), "'me' is not a key; expected ed25519: and the base64 of 32 bytes"),
        (("--revoke", f"ed25519:{0:043d}="), "= is not listed. See the list: dalle-collab run keys org/listed-run"),
        (("--add", f"ed25519:{0:043d}=", "--role", "king"), "--role got king; expected publisher or anchor"),
        (("--add", f"ed25519:{0:043d}=", "--restore"), "Expected one of --add, --revoke, --restore, --backup-key and"),
        (("--role", "anchor"), "and --role only with --add"),
        (("--restore-key", "nowhere.pem"), "nowhere.pem: No such file"),
    ],
    ids=["no key", "unlisted", "unknown role", "two changes", "role alone", "no backup"],
)
def test_a_mistake_is_one_line_and_changes_nothing(run, options, message):
    before = run.titles()
    assert message in the_line(run.command(*options))
    assert run.titles() == before


def test_it_takes_the_organisers_key(run, new_key, tmp_path):
    key, wanted = new_key("one"), run.material.settings(run.repository).organiser_key
    line = the_line(run.command("--add", key, key_file=tmp_path / "none.pem"))
    assert f"none.pem does not exist; expected the private half of {wanted}" in line and "--organiser-key FILE" in line
    line = the_line(run.command("--add", key, key_file=tmp_path / "one.pem"))
    assert "one.pem has another key than the organiser's" in line
    assert not Path(tmp_path / "none.pem").exists()


def test_a_backup_makes_another_machine_the_organisers(run, tmp_path):
    backup, restored = tmp_path / "backup.pem", tmp_path / "new" / "organiser.pem"
    said = run.done("--backup-key", backup)
    assert "NOT encrypted" in said and backup.stat().st_mode & 0o777 == 0o600
    assert "exists already" in the_line(run.command("--backup-key", backup))
    moved = KeysOfARun(run.material, run.commands, run.repository, restored)
    assert moved.done("--restore-key", backup) == f"This machine has the organiser's key: {restored}\n"
    assert restored.read_bytes() == run.key_file.read_bytes() and restored.stat().st_mode & 0o777 == 0o600
    assert f"This machine has the organiser's key: {restored}" in moved.done()


def test_a_run_without_an_organisers_key_shows_its_unsigned_list(training_material, commands, new_key):
    repository = training_material.create_run("org/unsigned-run", organiser_key="")
    run = KeysOfARun(training_material, commands, repository, Path("none.pem"))
    run.write(json.dumps(dict(format_version=1, keys=[new_key("old")])))
    shown = run.done()
    assert new_key("old") in shown and "The list is not signed: whoever may write" in shown
    assert f"{repository} was created without an organiser's key" in the_line(run.command("--add", new_key("new")))
