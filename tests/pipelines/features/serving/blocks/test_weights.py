"""A server reads the bytes of its own layers, and no tensor that the run's publisher has not signed."""

import hashlib
import json

import pytest
from damaged_files import flip_byte_of_tensor
from huggingface_hub import HfApi, constants
from support_files import SUPPORT
from swarm_of_processes import tiny_run
from tiny_models import tiny_dalle

from pipelines.core.signing.publisher_keys import PublisherKey
from pipelines.features.publishing.repository.manifest import CheckpointManifest, digest_files
from pipelines.features.serving.blocks.weights import find_model

NAME = "model.stack.layers.4.attention.scale"


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "model"
    tiny_dalle(made)
    return made


@pytest.mark.slow
def test_a_layer_of_a_signed_run_is_read_alone_and_a_changed_one_is_refused(
    folder, hub, commands, tmp_path, monkeypatch
):
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    key = PublisherKey.load_or_create(tmp_path / "key.pem")
    run = tiny_run(run_id="birds")
    (folder / "training_run.json").write_text(run.to_json())
    (folder / "publisher_keys.json").write_text(json.dumps(dict(format_version=1, keys=[key.public])))
    files = {name: one for name, one in digest_files(folder).items() if name.endswith(".safetensors")}
    manifest = CheckpointManifest(
        run_id="birds", generation=0, epoch=12, dataset_repository="made/up", dataset_revision="abc",
        package_version="0.1.0", parent_commit="def", parent_epoch=9, parent_manifest="0" * 64, contributors={},
        files=files,
    )  # fmt: skip
    (folder / "checkpoint_manifest.json").write_text(manifest.signed(key), encoding="utf-8")
    api, name = HfApi(endpoint=hub.endpoint, token=hub.alice_token), "org/read-by-layers"
    api.create_repo(name)

    def publish_and_read(**options):
        api.upload_folder(repo_id=name, folder_path=folder, **options)
        done = commands.run_program(SUPPORT / "weights_reader.py", name, "4", "5")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    found = publish_and_read()
    assert found["signed"] and found["revision"] == files["model.safetensors"].sha256
    assert all("layers.4." in name or "groups.0." in name for name in found["names"]) and NAME in found["names"]
    assert found["read"] < found["whole"] / 3
    flip_byte_of_tensor(folder / "model.safetensors", NAME)
    refused = publish_and_read()["error"]
    assert f"Tensor {NAME} of {name}" in refused and "is not what the run's publisher signed" in refused
    (folder / "checkpoint_manifest.json").unlink()
    refused = publish_and_read(delete_patterns="checkpoint_manifest.json")["error"]
    assert "has no checkpoint_manifest.json, but the run has keys to sign checkpoints with" in refused


def test_the_revision_of_a_folder_is_the_digest_of_its_weights(folder):
    model = find_model(str(folder))
    weights = (folder / "model.safetensors").read_bytes()
    assert model.revision == hashlib.sha256(weights).hexdigest() and model.commit is None and model.digests is None


@pytest.mark.parametrize("content", [b"", b"\xff" * 64, b"\x02" + b"\0" * 7 + b"{}"[:1]])
def test_weights_without_a_header_are_refused(folder, content):
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match="has no safetensors header"):
        find_model(str(folder))


def test_offsets_outside_the_file_are_refused(folder):
    header = json.dumps({"x": dict(dtype="F32", shape=[4], data_offsets=[0, 2**40])}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(ValueError, match=r"Tensor x of .* which this package cannot read"):
        find_model(str(folder))


def test_a_folder_without_weights_says_what_to_name(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"has no model\.safetensors\. Name a folder with a checkpoint"):
        find_model(str(folder))
