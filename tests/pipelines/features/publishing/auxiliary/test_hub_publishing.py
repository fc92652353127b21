"""Publishing over HTTP to the embedded Hub: in order, within the budget, through outages; rolled back bit by bit."""

import json
import shutil
import subprocess
import sys
import threading
import time

import pytest
from huggingface_hub import ModelCard
from isolation import environment_without, packages_beside
from language_material import GPT2
from running_programs import wait_for
from support_files import SUPPORT

from hub_tools.local_hub.store.consistency import check_consistency
from pipelines.core.signing.publisher_keys import PublisherKey
from pipelines.core.signing.signed_statement import signed_bytes
from pipelines.features.publishing.metrics.credit.contribution_files import read_contributions
from pipelines.features.publishing.metrics.history import read_history_files

pytestmark = pytest.mark.slow

PROGRAM = SUPPORT / "publishing_program.py"
LOADING = SUPPORT / "checkpoint_loading.py"


class Publishing:
    """A run on the embedded Hub and what is done to it."""

    def __init__(self, material, commands, repository, folder):
        self.material, self.commands, self.repository, self.folder = material, commands, repository, folder

    def publish(self, *epochs, check=True, **settings):
        """Let a publisher work; return its last words."""
        values = dict(folder=str(self.folder / "publisher"), epochs=epochs) | settings
        done = self.commands.run_program(PROGRAM, self.repository, json.dumps(values))
        assert not check or done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1]) if check else done

    def load(self, revision=None):
        """Load a checkpoint in a process of its own."""
        return self.commands.run_program(LOADING, self.repository, *([revision] if revision else []))

    def loaded(self, revision=None):
        done = self.load(revision)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def forget_downloads(self):
        """Let the next one who loads a checkpoint download all of it."""
        name = "models--" + self.repository.replace("/", "--")
        shutil.rmtree(self.material.hub.root / "client_home" / "hub" / name, ignore_errors=True)

    def titles(self):
        """Titles of the publishers' commits but those of metrics alone, oldest first."""
        titles = [commit.title for commit in self.material.api.list_repo_commits(self.repository)][::-1]
        return [
            title
            for title in titles
            if not title.startswith(("initial commit", "Create training run", "Metrics up to"))
        ]

    def tags(self):
        return {tag.name: tag.target_commit for tag in self.material.api.list_repo_refs(self.repository).tags}

    def files(self, revision=None):
        return set(self.material.api.list_repo_files(self.repository, revision=revision))

    def read(self, name):
        return self.material.file(self.repository, name).read_text()


@pytest.fixture
def publishing(training_material, commands, tmp_path, request):
    def start(name, task="text-to-image", **settings):
        if task == "text-to-image":
            arguments = training_material.create_arguments(f"org/{name}", **settings)
        else:
            arguments = training_material.language_arguments(f"org/{name}", task, GPT2, **settings)
        done = commands.run(*arguments)
        assert done.returncode == 0, done.stderr
        return Publishing(training_material, commands, f"org/{name}", tmp_path)

    return start


@pytest.mark.timeout(600)
def test_checkpoints_are_published_signed_tagged_and_only_the_newest_optimizer_states_are_kept(publishing):
    run = publishing("kept-run", keep_optimizer_states=2)
    records = [(epoch, 30 * epoch) for epoch in range(1, 10)]
    edited = run.read("README.md").replace("library_name", "license: cc-by-4.0\nlanguage: [en]\nlibrary_name", 1)
    run.material.api.upload_file(
        path_or_fileobj=edited.encode(),
        path_in_repo="README.md",
        repo_id=run.repository,
        commit_message="initial commit",
    )
    assert run.publish(3, 6, 9, records=records) == dict(event="ended", published=9, waiting=[])
    assert run.titles() == ["Announce entry addresses", *(f"Checkpoint of epoch {epoch}" for epoch in (3, 6, 9))]
    assert set(run.tags()) == {"epoch-3", "epoch-6", "epoch-9"}
    manifest = json.loads(run.read("checkpoint_manifest.json"))
    assert (manifest["epoch"], manifest["parent_epoch"], manifest["parent_commit"]) == (9, 6, run.tags()["epoch-6"])
    assert manifest["contributors"] == {"ann": 270}
    loaded = [run.loaded(revision) for revision in (None, "epoch-9", "epoch-6")]
    assert [state["epoch"] for state in loaded] == [9, 9, 6] and loaded[0]["digest"] == loaded[1]["digest"]
    assert loaded[0]["history"] == list(range(1, 10))
    # The weights of epoch 3 are there, its optimizer state is not, and nothing else has changed.
    gone = run.load("epoch-3")
    assert gone.returncode == 1 and "optimizer_state.safetensors" in gone.stderr
    assert run.material.api.file_exists(run.repository, "model.safetensors", revision="epoch-3")
    assert "optimizer_state.safetensors" in run.files("epoch-3")
    assert check_consistency(run.material.hub.root).problems == ()
    # What a page and a dashboard read.
    snapshot = run.material.snapshot(run.repository)
    summary = json.loads((snapshot / "metrics" / "summary.json").read_text())
    assert summary["history"]["epoch"] == list(range(1, 10)) and summary["num_epochs"] == 10_000
    (row,) = summary["leaderboard"]
    assert (row["username"], row["samples_today"], row["samples_all"]) == ("ann", 270, 270)
    assert [point["epoch"] for point in read_history_files(snapshot / "metrics")] == list(range(1, 10))
    assert read_contributions(snapshot / "metrics").total()["ann"].samples == 270
    card = ModelCard(run.read("README.md"))
    assert (card.data.license, card.data.language, card.data.library_name) == ("cc-by-4.0", ["en"], "transformers")
    assert "| ann | 270 |" in card.text and "T4 |" in card.text and "| codec | [" in card.text
    refused = run.commands.run("run", "rollback", run.repository, "3", "--yes")
    assert refused.returncode == 1 and "The checkpoint of epoch 3 is incomplete on the Hub" in refused.stderr


@pytest.mark.timeout(600)
def test_through_an_outage_and_a_restart_every_due_checkpoint_is_published_in_order_within_the_budget(publishing):
    run = publishing("outage-run", max_commits_per_hour=6)
    hub, begun, away = run.material.hub, run.folder / "begun", run.folder / "away"
    words = []

    def publish():
        settings = dict(begun_file=str(begun), wait_for_file=str(away), die_when_spooled=True)
        words.append(run.publish(3, 6, 9, check=False, **settings))

    thread = threading.Thread(target=publish)
    thread.start()
    wait_for(begun.exists, "begun", 120)
    hub.kill()
    try:
        away.touch()  # the publisher spools three checkpoints and is killed while the Hub is away
        thread.join(120)
        assert words[0].returncode == 9, words[0].stderr
    finally:
        hub.start()
    assert run.titles() == ["Announce entry addresses"]
    # One is announced already, three have waited; of three more two are within the hour's budget of six.
    assert run.publish(12, 15, 18, until=15, seconds_more=3) == dict(event="ended", published=15, waiting=[18])
    published = [f"Checkpoint of epoch {epoch}" for epoch in (3, 6, 9, 12, 15)]
    assert run.titles() == ["Announce entry addresses", *published]
    assert run.loaded("epoch-3")["epoch"] == 3 and run.loaded()["epoch"] == 15


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_run_with_a_bucket_continues_from_its_newest_checkpoint_until_a_rollback(publishing):
    run = publishing("bucket-run", bucket="org/bucket-run-live")
    records = [(epoch, 30 * epoch) for epoch in range(1, 10)]
    run.publish(3, records=records[:3], bucket_epochs=[5])
    assert run.titles() == ["Announce entry addresses", "Checkpoint of epoch 3"], "a bucket makes no commits"
    newest = run.loaded()
    assert (newest["epoch"], run.loaded("epoch-3")["epoch"], newest["history"]) == (5, 3, [1, 2, 3])
    run.publish(until=3, records=records, bucket_epochs=[7])
    assert (run.loaded()["epoch"], run.loaded()["history"]) == (7, list(range(1, 10))), "metrics are newer there, too"
    run.publish(9, records=records)
    assert run.loaded()["epoch"] == 9, "the repository's is newer now"
    done = run.commands.run("run", "rollback", run.repository, "3", "--yes")
    assert done.returncode == 0, done.stderr
    assert run.loaded()["epoch"] == 3, "what was discarded stays so in the bucket"
    run.publish(until=3, bucket_epochs=[4], folder=str(run.folder / "other"))
    assert run.loaded()["epoch"] == 4
    run.material.api.delete_bucket("org/bucket-run-live")
    assert run.loaded()["epoch"] == 3


@pytest.mark.long
@pytest.mark.timeout(600)
def test_two_publishers_never_publish_the_same_epoch_twice(publishing):
    run = publishing("fenced-run")
    assert run.publish(3, folder=str(run.folder / "one"))["published"] == 3
    # The second one believes itself elected, and holds an epoch that is published and one that is not.
    assert run.publish(3, 6, folder=str(run.folder / "two")) == dict(event="ended", published=6, waiting=[])
    assert run.publish(6, folder=str(run.folder / "one")) == dict(event="ended", published=6, waiting=[])
    checkpoints = [title for title in run.titles() if title.startswith("Checkpoint")]
    assert checkpoints == ["Checkpoint of epoch 3", "Checkpoint of epoch 6"]
    assert len(json.loads(run.read("publisher_keys.json"))["keys"]) == 2


@pytest.mark.timeout(600)
def test_a_byte_that_was_flipped_on_the_hub_is_refused_by_file_and_tensor(publishing):
    from damaged_files import flip_byte_of_tensor

    run = publishing("damaged-run")
    run.publish(3)
    files = json.loads(run.read("checkpoint_manifest.json"))["files"]
    for name, tensor in [("model.safetensors", -1), ("optimizer_state.safetensors", 0)]:
        digest, tensor = files[name]["sha256"], sorted(files[name]["tensors"])[tensor]
        stored = run.material.hub.root / "objects" / digest[:2] / digest[2:4] / digest
        run.forget_downloads()
        flip_byte_of_tensor(stored, tensor)
        refused = run.load()
        assert refused.returncode == 1
        assert f"{name} is damaged: its SHA-256 is" in refused.stderr and f"(tensor {tensor})" in refused.stderr
        flip_byte_of_tensor(stored, tensor)  # back again; the copy in the cache is replaced by a second download
        assert run.loaded()["epoch"] == 3


@pytest.mark.timeout(600)
@pytest.mark.parametrize("task", ["text-to-image", pytest.param("text-generation", marks=pytest.mark.long)])
def test_a_rollback_restores_an_epoch_bit_by_bit_in_one_commit_and_the_run_goes_on_from_there(publishing, task):
    run = publishing(f"rolled-back-{task}-run", task)
    run.publish(3, 6, 9, records=[(epoch, 20 * epoch) for epoch in range(1, 10)])
    before, commits, files = run.loaded("epoch-3"), run.titles(), run.files("epoch-3")
    dry = run.commands.run("run", "rollback", run.repository, "3", "--dry-run")
    assert dry.returncode == 0 and "becomes generation 1" in dry.stdout and "Nothing was changed" in dry.stdout
    unknown = run.commands.run("run", "rollback", run.repository, "5", "--yes")
    assert "has published no checkpoint of epoch 5; its newest are: 3, 6, 9." in unknown.stderr
    same = run.commands.run("run", "rollback", run.repository, "9", "--yes")
    assert "is already at epoch 9" in same.stderr
    assert run.titles() == commits
    done = run.commands.run("run", "rollback", run.repository, "3", "--yes")
    assert done.returncode == 0, done.stderr
    assert run.titles() == [*commits, "Roll back to epoch 3: generation 1"]
    after = run.loaded()
    assert (after["epoch"], after["digest"], after["generation"]) == (3, before["digest"], 1)
    assert run.files() >= files and max(after["history"]) <= 9
    # A publisher of the old generation can publish no more, one of the new generation goes on from epoch 3.
    assert run.publish(6)["published"] == 6
    assert run.titles()[-1] == "Checkpoint of epoch 6"
    manifest = json.loads(run.read("checkpoint_manifest.json"))
    assert (manifest["generation"], manifest["epoch"], manifest["parent_epoch"]) == (1, 6, 3)
    # The epoch that was taken back is still there under a longer name.
    (kept,) = [name for name in run.tags() if name.startswith("epoch-6-before-")]
    assert run.loaded(kept)["epoch"] == 6 and run.tags()["epoch-6"] != run.tags()[kept]
    total = read_contributions(run.material.snapshot(run.repository) / "metrics").total()
    assert total["ann"].samples == 180, "contributions stay counted"


WRITES = """
import sys
from transformers import pipeline
write = pipeline("text-generation", model=sys.argv[1])
print(len(write("The north wind", max_new_tokens=8, do_sample=False)[0]["generated_text"]))
"""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_language_runs_checkpoint_writes_where_only_transformers_and_torch_are_installed(publishing):
    run = publishing("writing-checkpoint-run", "text-generation")
    run.publish(3)
    folder = run.material.snapshot(run.repository)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", WRITES, str(folder)],
        env=environment_without(packages_beside(["transformers", "torch"])), capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.splitlines()[-1]) > len("The north wind")
    assert "auto_map" not in (folder / "config.json").read_text()


@pytest.mark.timeout(600)
def test_a_publisher_of_an_older_generation_gives_up_without_a_commit(publishing):
    run = publishing("superseded-run")
    begun, rolled_back, words = run.folder / "begun", run.folder / "rolled_back", []
    run.publish(3, 6, folder=str(run.folder / "first"))

    def publish():
        settings = dict(begun_file=str(begun), wait_for_file=str(rolled_back))
        words.append(run.publish(9, check=False, **settings))

    # In a process of its own: the roll-back must come in the middle.
    thread = threading.Thread(target=publish)
    thread.start()
    wait_for(begun.exists, "begun", 120)

    done = run.material.commands.run("run", "rollback", run.repository, "3", "--yes")
    rolled_back.touch()
    assert done.returncode == 0, done.stderr
    thread.join(120)
    assert words[0].returncode == 1 and "was rolled back to epoch 3: it continues as generation 1" in words[0].stderr
    assert run.titles()[-1] == "Roll back to epoch 3: generation 1"


def keys_command(run, *options):
    done = run.commands.run("run", "keys", run.repository, *options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def key_of(run, name):
    return PublisherKey.load_or_create(run.folder / name / "signing_key.pem")


@pytest.mark.timeout(600)
def test_a_stolen_token_makes_nobody_a_publisher(publishing):
    run = publishing("stolen-run")
    run.publish(3)
    thief, text = key_of(run, "thief"), run.read("publisher_keys.json")
    listed, signed = json.loads(text), json.loads(run.read("checkpoint_manifest.json"))
    listed["keys"].append(dict(key=thief.public, roles=["publisher"], added_at=1, revoked_at=None))
    manifest = {name: value for name, value in signed.items() if name != "signature"} | {"key": thief.public}
    manifest["signature"] = thief.sign(signed_bytes("checkpoint", manifest))
    for path, values in (("publisher_keys.json", listed), ("checkpoint_manifest.json", manifest)):
        content = json.dumps(values).encode()
        run.material.api.upload_file(repo_id=run.repository, path_in_repo=path, path_or_fileobj=content)
    refused = run.load()
    assert refused.returncode == 1 and "is not signed by the run's organiser" in refused.stderr
    refused = run.publish(6, check=False, folder=str(run.folder / "thief"), has_organiser=False)
    assert refused.returncode == 1 and "is not signed by the run's organiser" in refused.stderr
    keys_command(run, "--restore")
    refused = run.load()
    assert refused.returncode == 1 and f"signed with the key {thief.public}, not one of the 1" in refused.stderr
    done = run.commands.run("run", "rollback", run.repository, "3", "--yes")
    assert done.returncode == 0 and run.loaded()["epoch"] == 3, done.stderr


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_revoked_key_publishes_no_more_and_what_it_published_before_still_counts(publishing):
    run = publishing("revoked-run")
    run.publish(3, 6, folder=str(run.folder / "one"))
    begun, revoked, words = run.folder / "begun", run.folder / "revoked", []

    def publish():
        settings = dict(begun_file=str(begun), wait_for_file=str(revoked), until=6, seconds_more=4)
        words.append(run.publish(9, folder=str(run.folder / "one"), **settings))

    thread = threading.Thread(target=publish)
    thread.start()
    wait_for(begun.exists, "begun", 120)
    keys_command(run, "--revoke", key_of(run, "one").public)
    revoked.touch()
    thread.join(120)
    assert words == [dict(event="ended", published=6, waiting=[9])] and run.titles()[-1] == "Revoke a key"
    assert run.loaded()["epoch"] == 6
    assert run.publish(9, folder=str(run.folder / "two"))["published"] == 9
    assert run.publish(12, folder=str(run.folder / "one"), until=9, seconds_more=2)["waiting"] == [9, 12]
    # An epoch of the revoked key becomes the newest again only with the organiser's key.
    rollback = ("run", "rollback", run.repository, "3", "--yes")
    refused = run.commands.run(*rollback, "--organiser-key", run.folder / "none.pem")
    assert refused.returncode == 1 and "which was revoked at" in refused.stderr and run.loaded()["epoch"] == 9
    done = run.commands.run(*rollback)
    assert done.returncode == 0, done.stderr
    assert run.loaded()["epoch"] == 3 and len(json.loads(run.read("publisher_keys.json"))["kept_manifests"]) == 2


@pytest.mark.long
@pytest.mark.timeout(600)
def test_on_a_second_machine_a_publisher_waits_until_the_organiser_lists_its_key(publishing):
    run = publishing("waiting-run")
    begun, words = run.folder / "begun", []
    settings = dict(
        folder=str(run.folder / "other"), has_organiser=False, begun_file=str(begun), head_check_seconds=2.0
    )
    thread = threading.Thread(target=lambda: words.append(run.publish(3, check=False, **settings)))
    thread.start()
    wait_for(begun.exists, "begun", 120)
    time.sleep(3)
    assert run.titles() == ["Announce entry addresses"] and "publisher_keys.json" not in run.files()
    keys_command(run, "--add", key_of(run, "other").public)
    thread.join(300)
    assert words[0].returncode == 0, words[0].stderr
    assert run.titles() == ["Announce entry addresses", "List a key", "Checkpoint of epoch 3"]
    assert run.loaded()["epoch"] == 3
