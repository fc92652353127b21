"""What is read of a run belongs to one commit, whatever is published between two reads."""

import json
import os
import subprocess
import sys

import pytest
from huggingface_hub import HfApi, constants
from support_files import SUPPORT
from swarm_of_processes import tiny_run

from hub_tools.local_hub import LocalHub
from pipelines.training.repository.key_list import read_key_list, unsigned_list
from pipelines.training.repository.manifest import (
    CheckpointManifest,
    CheckpointRefusedError,
    digest_files,
    verify_checkpoint,
)
from pipelines.training.repository.publisher_keys import PublisherKey
from pipelines.training.repository.snapshot import RunSnapshot

pytestmark = pytest.mark.slow


@pytest.mark.timeout(600)
def test_a_rollback_between_two_reads_changes_nothing_for_who_has_begun_to_read(training_material, commands, tmp_path):
    repository = "org/read-run"
    created = commands.run(*training_material.create_arguments(repository))
    assert created.returncode == 0, created.stderr

    def publish(*epochs):
        settings = dict(folder=str(tmp_path / "publisher"), epochs=epochs, records=[(epoch, 20) for epoch in epochs])
        done = commands.run_program(SUPPORT / "publishing_program.py", repository, json.dumps(settings))
        assert done.returncode == 0, done.stderr

    publish(3)
    publish(6, 9)
    settings = training_material.settings(repository)
    head = training_material.api.repo_info(repository).sha
    done = commands.run_program(SUPPORT / "rollback_between_reads.py", repository, "3")
    assert done.returncode == 0, done.stderr
    read = json.loads(done.stdout)
    old = dict(generation=0, state=9, manifest=9, history=[3, 6, 9], checkpoint=9, num_keys=1)
    assert read["before"] == read["fresh"] == dict(old, commit=head)
    new = dict(generation=1, state=3, manifest=3, history=[3], checkpoint=3, num_keys=1)
    assert read["after"] == dict(new, commit=read["rolled_back"])
    files = training_material.api.list_repo_files(repository)
    assert "news.md" not in files, "what is published between plan and commit is undone, too"
    # Settings of the old generation with a checkpoint of the new one: no peer takes that.
    publish(6)
    checkpoint = training_material.snapshot(repository)
    keys = read_key_list((checkpoint / "publisher_keys.json").read_text(), settings)
    assert verify_checkpoint(checkpoint, keys, settings.replace(generation=1)).epoch == 6
    with pytest.raises(CheckpointRefusedError, match="epoch 6 is of run org-read-run, generation 1; the settings"):
        verify_checkpoint(checkpoint, keys, settings)


READING = """
import json, sys
from pipelines.training.repository.snapshot import RunSnapshot
said = {}
for name, options in dict(cached={}, fresh=dict(in_cache=False)).items():
    try:
        said[name] = RunSnapshot.read(sys.argv[1], **options).commit
    except Exception as error:
        said[name] = f"{type(error).__name__}: {error}"
print(json.dumps(said))
"""


def test_while_the_hub_is_away_the_commit_in_the_cache_is_read_unless_that_is_not_wanted(tmp_path):
    with LocalHub(tmp_path / "hub") as hub:
        api = HfApi(endpoint=hub.endpoint, token=hub.create_user("alice"))
        api.create_repo("alice/known")
        text = tiny_run().to_json().encode()
        upload = api.upload_file(repo_id="alice/known", path_in_repo="training_run.json", path_or_fileobj=text)

        def read(repository="alice/known"):
            arguments = [sys.executable, "-W", "ignore", "-c", READING, repository]
            environment = {**os.environ, **hub.environment()}
            done = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=120, check=False)
            assert done.returncode == 0, done.stderr
            return json.loads(done.stdout)

        assert read() == dict(cached=upload.oid, fresh=upload.oid)
        (said,) = set(read("alice/unknown").values())
        assert said.startswith("ValueError: There is no model repository alice/unknown on this Hub")
        hub.kill()
        away = read()
        hub.start()
    assert away["cached"] == upload.oid
    assert away["fresh"].startswith("ConnectError: ")


def test_what_is_read_of_a_signed_run_is_what_its_manifest_lists_and_no_other_file(hub, tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
    template = hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    run, key = tiny_run(run_id="birds"), PublisherKey.load_or_create(tmp_path / "key.pem")
    files = {"tokenizer.json": "{}", "tokenizer_config.json": '{"a": 1}', "run_state.json": "{}"}
    (folder := tmp_path / "checkpoint").mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    manifest = CheckpointManifest(
        run_id="birds", generation=0, epoch=12, dataset_repository="org/codes", dataset_revision="abc",
        package_version="0.1.0", parent_commit="def", parent_epoch=9, parent_manifest="0" * 64,
        contributors={}, files=digest_files(folder),
    )  # fmt: skip
    (folder / "checkpoint_manifest.json").write_text(manifest.signed(key))
    (folder / "publisher_keys.json").write_text(unsigned_list([key.public]).unsigned())
    (folder / "training_run.json").write_text(run.to_json())
    (folder / "added_tokens.json").write_text('{"nobody has signed this": 3}')
    api = HfApi(endpoint=hub.endpoint, token=hub.alice_token)
    api.create_repo("org/signed-processor")
    api.upload_folder(repo_id="org/signed-processor", folder_path=str(folder))
    everything = RunSnapshot.read("org/signed-processor").download_matching("*.json")
    taken = RunSnapshot.read("org/signed-processor").download_signed()
    assert (everything / "added_tokens.json").exists()
    assert sorted(path.name for path in taken.iterdir()) == sorted(files)
    api.upload_file(
        repo_id="org/signed-processor", path_in_repo="tokenizer_config.json", path_or_fileobj=b'{"auto_map": {}}'
    )
    with pytest.raises(CheckpointRefusedError, match=r"tokenizer_config\.json of org/\S+ at \S+ is not what the run's"):
        RunSnapshot.read("org/signed-processor").download_signed()
