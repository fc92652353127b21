"""What is read of a run belongs to one commit, whatever is published between two reads."""

import json
import os
import subprocess
import sys

import pytest
from huggingface_hub import HfApi, constants
from support_files import SUPPORT
from swarm_of_processes import tiny_run

from hub_tools.foreign.downloads import TooLargeError
from hub_tools.local_hub import LocalHub
from hub_tools.run_files import MODEL_FILES
from pipelines.core.signing.publisher_keys import PublisherKey
from pipelines.features.memory_estimate import hub_config
from pipelines.features.publishing.repository.key_list import ROLES, KeyList, read_key_list, unsigned_list
from pipelines.features.publishing.repository.manifest import (
    CheckpointManifest,
    CheckpointRefusedError,
    digest_files,
    verify_checkpoint,
)
from pipelines.features.publishing.repository.run_bucket import newest_checkpoint
from pipelines.features.publishing.repository.snapshot import RunSnapshot
from pipelines.tools.pages.memory_calculator import calculator

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
from pipelines.features.publishing.repository.snapshot import RunSnapshot
said = {}
for name, options in dict(cached={}, fresh=dict(in_cache=False)).items():
    try:
        said[name] = RunSnapshot.read(sys.argv[1], **options).commit
    except Exception as error:
        said[name] = f"{type(error).__name__}: {error}"
print(json.dumps(said))
"""


@pytest.mark.long
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


@pytest.fixture
def here(hub, tmp_path, monkeypatch):
    """Make this process a client of the Hub under test, with an empty cache."""
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
    template = hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    return HfApi(endpoint=hub.endpoint, token=hub.alice_token)


def published(api, repository, folder, **texts):
    """Upload a folder with these texts besides, by the names of JSON files, into a new repository."""
    for name, text in texts.items():
        (folder / f"{name}.json").write_text(text)
    api.create_repo(repository)
    api.upload_folder(repo_id=repository, folder_path=str(folder))


def test_what_is_read_of_a_signed_run_is_what_its_manifest_lists_and_no_other_file(here, tmp_path):
    api = here
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
    published(
        api,
        "org/signed-processor",
        folder,
        checkpoint_manifest=manifest.signed(key),
        publisher_keys=unsigned_list([key.public]).unsigned(),
        training_run=run.to_json(),
        added_tokens='{"nobody has signed this": 3}',
    )
    everything = RunSnapshot.read("org/signed-processor").download_matching("*.json")
    taken = RunSnapshot.read("org/signed-processor").download_signed()
    assert (everything / "added_tokens.json").exists()
    assert sorted(path.name for path in taken.iterdir()) == sorted(files)
    api.upload_file(
        repo_id="org/signed-processor", path_in_repo="tokenizer_config.json", path_or_fileobj=b'{"auto_map": {}}'
    )
    with pytest.raises(CheckpointRefusedError, match=r"tokenizer_config\.json of org/\S+ at \S+ is not what the run's"):
        RunSnapshot.read("org/signed-processor").download_signed()


@pytest.mark.parametrize("has_organiser", [True, False])
def test_who_removes_the_manifest_of_a_checkpoint_gets_no_file_of_its_own_in(here, tmp_path, has_organiser):
    key, repository = PublisherKey.load_or_create(tmp_path / "key.pem"), f"org/no-manifest-{has_organiser}"
    run = tiny_run(run_id="birds", organiser_key=key.public if has_organiser else "")
    keys = KeyList(serial=1).adding(key.public, ROLES, now=1).signed(key, "birds")
    if not has_organiser:
        keys = unsigned_list([key.public]).unsigned()
    (folder := tmp_path / "run").mkdir()
    published(here, repository, folder, training_run=run.to_json(), publisher_keys=keys, tokenizer="{}")
    new = RunSnapshot.read(repository)
    assert (new.download_signed() / "tokenizer.json").exists(), "of a run without a checkpoint all is read"
    assert newest_checkpoint(new) is None and new.weights_sha256 is None
    for name, content in (("run_state.json", b'{"epoch": 3}'), ("model-00001-of-00002.safetensors", b"weights")):
        here.upload_file(repo_id=repository, path_in_repo=name, path_or_fileobj=content)
        snapshot = RunSnapshot.read(repository)
        reads = (RunSnapshot.download_signed, RunSnapshot.download_checkpoint, newest_checkpoint)
        for read in (*reads, lambda seen: seen.weights_sha256):
            with pytest.raises(CheckpointRefusedError, match=r"has no checkpoint_manifest\.json, but the run has keys"):
                read(snapshot)
        here.delete_file(name, repository)


def test_a_run_state_that_is_none_is_named(here, tmp_path):
    (folder := tmp_path / "run").mkdir()
    published(here, "org/strange-state", folder, training_run=tiny_run().to_json(), run_state='{"epoch": "9"}')
    for text in ('{"epoch": "9"}', "[3]", '{"epoch": -1}', "{}", '{"epoch": true}'):
        here.upload_file(repo_id="org/strange-state", path_in_repo="run_state.json", path_or_fileobj=text.encode())
        with pytest.raises(ValueError, match=r"run_state\.json of org/strange-state has the epoch .*; expected"):
            RunSnapshot.read("org/strange-state").epoch  # noqa: B018


def test_the_calculator_says_how_to_join_a_run_until_it_is_over(here, tmp_path, monkeypatch):
    (folder := tmp_path / "run").mkdir()
    published(here, "org/ended", folder, training_run=tiny_run(num_epochs=6).to_json(), run_state='{"epoch": 5}')
    monkeypatch.setattr(calculator, "_minute", iter(range(9)).__next__)  # the Hub is read each time
    given = calculator.CalculatorInput(repository="org/ended")
    assert calculator.answer(given, first=None, run="").command.startswith("dalle-collab join org/ended --micro-batch")
    here.upload_file(repo_id="org/ended", path_in_repo="run_state.json", path_or_fileobj=b'{"epoch": 6}')
    said = "# The run is over. Draw with it:\ndalle-collab generate org/ended 'a caption'"
    assert calculator.answer(given, first=None, run="").command == said


def test_unsigned_weights_are_taken_as_large_as_the_models_parameters_can_be(here, tmp_path, monkeypatch):
    monkeypatch.setattr(hub_config, "SPARE_BYTES", 2**12)
    sizes = dict(model_type="gpt2", vocab_size=10, n_embd=8, n_layer=1, n_head=1, n_positions=10)
    most = 32 * (10 * 8 + 10 * 8 + 12 * 8**2 + 13 * 8 + 2 * 8) + 2**12
    (folder := tmp_path / "run").mkdir()
    weights = folder / "model.safetensors"
    weights.write_bytes(bytes(most))
    texts = dict(training_run=tiny_run().to_json(), config=json.dumps(sizes), run_state='{"epoch": 3}')
    published(here, "org/unsigned-weights", folder, **texts)
    assert (RunSnapshot.read("org/unsigned-weights").download_checkpoint() / weights.name).stat().st_size == most
    weights.write_bytes(bytes(most + 1))
    here.upload_file(repo_id="org/unsigned-weights", path_in_repo=weights.name, path_or_fileobj=weights)
    snapshot = RunSnapshot.read("org/unsigned-weights")
    for read in (snapshot.download_checkpoint, lambda: snapshot.download_signed(MODEL_FILES)):
        with pytest.raises(TooLargeError, match=rf"has {most + 1} bytes, expected at most {most}; it is not taken"):
            read()
