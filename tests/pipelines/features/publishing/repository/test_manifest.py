"""Signed manifests: what is whole is taken, what was changed is refused by file and tensor."""

import json

import pytest
import torch
from damaged_files import flip_byte_of_tensor
from safetensors.torch import save_file
from swarm_of_processes import tiny_run

from pipelines.core.signing.publisher_keys import PublisherKey, is_signed_by
from pipelines.features.publishing.repository.key_list import KeyList, unsigned_list
from pipelines.features.publishing.repository.manifest import (
    CheckpointManifest,
    CheckpointRefusedError,
    digest_files,
    manifest_digest,
    read_manifest,
    tensor_digests,
    verify_checkpoint,
)

MANIFEST = "checkpoint_manifest.json"
RUN = tiny_run(run_id="birds")


@pytest.fixture
def key(tmp_path):
    return PublisherKey.load_or_create(tmp_path / "keys" / "key.pem")


@pytest.fixture
def checkpoint(tmp_path, key):
    """A small checkpoint with a signed manifest."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    weights = {"layers.0.weight": torch.arange(12.0).reshape(3, 4), "head.bias": torch.ones(5)}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    save_file({"head.bias.exp_avg": torch.zeros(5)}, folder / "optimizer_state.safetensors")
    (folder / "run_state.json").write_text(json.dumps(dict(run_id="birds", epoch=12)))
    (folder / "modeling.py").write_text("print('a model')\n")
    manifest = manifest_of(folder)
    (folder / MANIFEST).write_text(manifest.signed(key), encoding="utf-8")
    return folder


def manifest_of(folder, **changes):
    values = dict(
        run_id="birds", generation=0, epoch=12, dataset_repository="org/codes", dataset_revision="abc",
        package_version="0.1.0", parent_commit="def", parent_epoch=9, parent_manifest="0" * 64,
        contributors={"ann": 10, "Zoë": 7}, files=digest_files(folder),
    )  # fmt: skip
    return CheckpointManifest(**(values | changes))


def test_a_whole_checkpoint_is_taken_with_all_that_its_manifest_says(checkpoint, key):
    manifest = verify_checkpoint(checkpoint, unsigned_list([key.public]), RUN)
    (checkpoint / MANIFEST).unlink()
    assert manifest == manifest_of(checkpoint, key=key.public)
    assert set(manifest.files) == {"model.safetensors", "optimizer_state.safetensors", "run_state.json", "modeling.py"}
    assert set(manifest.files["model.safetensors"].tensors) == {"layers.0.weight", "head.bias"}


@pytest.mark.parametrize(
    ("file", "tensor"),
    [("model.safetensors", "layers.0.weight"), ("model.safetensors", "head.bias"),
     ("optimizer_state.safetensors", "head.bias.exp_avg")],
)  # fmt: skip
def test_a_flipped_byte_is_refused_with_the_name_of_file_and_tensor(checkpoint, key, file, tensor):
    flip_byte_of_tensor(checkpoint / file, tensor, position=7)
    message = rf"{file} is damaged: .* \(tensor {tensor}\)\. Delete .* and download the checkpoint again"
    with pytest.raises(CheckpointRefusedError, match=message):
        verify_checkpoint(checkpoint, unsigned_list([key.public]), RUN)


def test_damage_outside_of_tensors_is_refused_by_file(checkpoint, key):
    weights, original = checkpoint / "model.safetensors", (checkpoint / "model.safetensors").read_bytes()
    for damaged in (original[:12] + b"!" + original[13:], b"\xff" * 8 + original[8:]):
        weights.write_bytes(damaged)
        with pytest.raises(CheckpointRefusedError, match=r"model.safetensors is damaged: .* \(its header\)"):
            verify_checkpoint(checkpoint, unsigned_list([key.public]), RUN)
    weights.write_bytes(original[:-1])
    with pytest.raises(CheckpointRefusedError, match=r"model.safetensors is damaged: it has \d+ bytes, .* says \d+"):
        verify_checkpoint(checkpoint, unsigned_list([key.public]), RUN)
    weights.unlink()
    with pytest.raises(CheckpointRefusedError, match=r"model.safetensors is missing, but the manifest of epoch 12"):
        verify_checkpoint(checkpoint, unsigned_list([key.public]), RUN)


@pytest.mark.parametrize("name", ["evil.py", "pytorch_model.bin", "model-00002.safetensors"])
def test_code_and_tensors_that_nobody_signed_are_refused(checkpoint, key, name):
    (checkpoint / name).write_bytes(b"import os\n")
    with pytest.raises(CheckpointRefusedError, match=f"{name} is not in the manifest of epoch 12, so it is not signed"):
        verify_checkpoint(checkpoint, unsigned_list([key.public]), RUN)


def test_a_changed_manifest_a_foreign_key_and_a_missing_manifest_are_refused(checkpoint, key, tmp_path):
    other = PublisherKey.load_or_create(tmp_path / "other.pem")
    path = checkpoint / MANIFEST
    signed = json.loads(path.read_text())
    changed = signed | {"epoch": 13}
    path.write_text(json.dumps(changed))
    with pytest.raises(CheckpointRefusedError, match="does not match its content: it was changed after it was signed"):
        verify_checkpoint(checkpoint, unsigned_list([key.public]), RUN)
    path.write_text(json.dumps(signed))
    with pytest.raises(CheckpointRefusedError, match=r"not one of the 1 in the run's publisher_keys.json"):
        verify_checkpoint(checkpoint, unsigned_list([other.public]), RUN)
    path.unlink()
    with pytest.raises(CheckpointRefusedError, match=f"has no {MANIFEST}, but the run has keys"):
        verify_checkpoint(checkpoint, unsigned_list([key.public]), RUN)
    assert verify_checkpoint(checkpoint, KeyList(), RUN) is None, "a run that began without keys"


def test_a_manifest_of_another_run_state_or_form_is_refused(checkpoint, key):
    (checkpoint / MANIFEST).unlink()
    (checkpoint / "run_state.json").write_text(json.dumps(dict(run_id="birds", epoch=11)))
    manifest = manifest_of(checkpoint)
    (checkpoint / MANIFEST).write_text(manifest.signed(key), encoding="utf-8")
    with pytest.raises(CheckpointRefusedError, match="is of run birds at epoch 11, its manifest of run birds at epoch"):
        verify_checkpoint(checkpoint, unsigned_list([key.public]), RUN)
    more = json.dumps(json.loads(manifest.signed(key)) | {"more": 1})
    strange = manifest.signed(key).replace('"modeling.py"', '"../modeling.py"')
    for text in (
        "{",
        "[]",
        '{"files": 3}',
        more,
        strange,
        manifest.signed(key).replace('"epoch": 12', '"epoch": "12"'),
    ):
        with pytest.raises(CheckpointRefusedError, match=r"cannot be read .*or update: pip install -U dalle-collab"):
            read_manifest(text, unsigned_list([key.public]), RUN)


def test_a_key_is_kept_in_a_private_file_and_its_signatures_are_its_own(tmp_path):
    path = tmp_path / "key.pem"
    key = PublisherKey.load_or_create(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert PublisherKey.load_or_create(path).public == key.public
    signature = key.sign(b"text")
    assert is_signed_by(key.public, b"text", signature)
    other = PublisherKey.load_or_create(tmp_path / "other.pem")
    assert not is_signed_by(key.public, b"texT", signature) and not is_signed_by(other.public, b"text", signature)
    assert not is_signed_by("ed25519:nonsense", b"text", signature) and not is_signed_by(key.public, b"text", "?")
    path.write_text("no key")
    with pytest.raises(ValueError, match=r"key.pem is not a key in PEM format"):
        PublisherKey.load_or_create(path)


def test_digests_of_tensors_are_those_of_their_bytes(checkpoint):
    import hashlib

    expected = hashlib.sha256(torch.ones(5).numpy().tobytes()).hexdigest()
    assert tensor_digests(checkpoint / "model.safetensors")["head.bias"] == expected


@pytest.mark.parametrize(
    ("changes", "seen"),
    [(dict(generation=2), "run birds, generation 2"), (dict(run_id="fish"), "run fish, generation 0")],
)
def test_a_checkpoint_of_a_newer_generation_or_of_another_run_is_refused(key, checkpoint, changes, seen):
    text = manifest_of(checkpoint, **changes).signed(key)
    with pytest.raises(CheckpointRefusedError, match=f"epoch 12 is of {seen}; the settings are of run birds, gener"):
        read_manifest(text, unsigned_list([key.public]), RUN.replace(generation=1))


def test_a_checkpoint_of_an_older_generation_is_what_a_rollback_leaves(key, checkpoint):
    assert verify_checkpoint(checkpoint, unsigned_list([key.public]), RUN.replace(generation=3)).generation == 0


def test_a_revoked_keys_manifest_counts_only_if_the_organiser_has_kept_it(key, checkpoint):
    text = (checkpoint / MANIFEST).read_text(encoding="utf-8")
    listed = KeyList(serial=1).adding(key.public, ["publisher"], now=100)
    assert verify_checkpoint(checkpoint, listed, RUN).epoch == 12
    revoked = listed.revoking(key.public, now=200)
    with pytest.raises(CheckpointRefusedError, match=r"revoked at 1970-01-01 00:03:20 UTC, .* run rollback ORG/RUN"):
        verify_checkpoint(checkpoint, revoked, RUN)
    assert verify_checkpoint(checkpoint, revoked.keeping(manifest_digest(text)), RUN).epoch == 12
    newer = manifest_of(checkpoint, epoch=13).signed(key)
    with pytest.raises(CheckpointRefusedError, match="the organiser has not kept this manifest"):
        read_manifest(newer, revoked.keeping(manifest_digest(text)), RUN)


def test_an_anchor_that_is_no_publisher_signs_no_checkpoint_and_a_signed_run_has_no_unsigned_ones(key, checkpoint):
    anchor = KeyList(serial=1).adding(key.public, ["anchor"], now=100)
    with pytest.raises(CheckpointRefusedError, match=r"not one of the 1 in the run's publisher_keys.json"):
        verify_checkpoint(checkpoint, anchor, RUN)
    signed_run = RUN.replace(organiser_key=key.public)
    for refused in ("not one of the 0", f"has no {MANIFEST}"):
        with pytest.raises(CheckpointRefusedError, match=refused):
            verify_checkpoint(checkpoint, KeyList(), signed_run)
        (checkpoint / MANIFEST).unlink(missing_ok=True)
