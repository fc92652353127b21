"""The signed list of a checkpoint's contents: a digest of every file and of every tensor in it.

A checkpoint is loaded only if a publisher of `publisher_keys.json` signed its manifest and every file matches the
manifest; a damaged one is refused with the name of the file and of the tensor. A publisher could make up the time of a
manifest: once its key is revoked, one counts only if the organiser has kept it, by its SHA-256, in the same list.
"""

import dataclasses
import hashlib
import mmap
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from hub_tools.atomic_files import file_digest
from hub_tools.foreign.json_texts import parse_json, read_json
from hub_tools.run_files import MANIFEST_FILE, OPTIMIZER_FILE, RUN_STATE_FILE, WEIGHTS_FILE
from pipelines.core.run.training_run import TrainingRun
from pipelines.core.signing.publisher_keys import PublisherKey
from pipelines.core.signing.signed_statement import NotSignedError, StatementRefusedError, read_statement, signed_text
from pipelines.features.publishing.repository.key_list import PUBLISHER, KeyList, utc

NEEDED_FILES = (WEIGHTS_FILE, OPTIMIZER_FILE, RUN_STATE_FILE)
MUST_BE_LISTED = (".safetensors", ".py", ".bin", ".pt", ".ckpt", ".pkl")
"""Files of these kinds are loaded or run: all in a checkpoint's folder must be listed."""

PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
MOST_HEADER_BYTES = 2**24
"""Of a safetensors file."""


class CheckpointRefusedError(ValueError):
    """A checkpoint that is damaged or not signed by a trusted key."""


@dataclass(frozen=True, kw_only=True)
class FileDigest:
    """What a file must contain."""

    sha256: str
    size: int
    tensors: dict[str, str] = field(default_factory=dict)
    """Of a safetensors file: the SHA-256 of each tensor's bytes."""

    def __post_init__(self) -> None:
        if not 0 <= self.size < 2**53:
            raise ValueError(f"a file of {self.size} bytes")


@dataclass(frozen=True, kw_only=True)
class CheckpointManifest:
    """A checkpoint's contents and origin."""

    PURPOSE: ClassVar[str] = "checkpoint"
    MOST_BYTES: ClassVar[int] = 2**26

    run_id: str
    generation: int
    epoch: int
    dataset_repository: str
    dataset_revision: str
    package_version: str
    parent_commit: str
    """Commit of the run's repository that the checkpoint was published on top of."""

    parent_epoch: int | None
    """Epoch of the checkpoint before, if there is one."""

    parent_manifest: str | None
    """SHA-256 of that checkpoint's signed manifest file."""

    contributors: dict[str, int]
    """Users and the samples they had contributed to the run."""

    files: dict[str, FileDigest]
    key: str = ""
    """The publisher's, once it has signed."""

    def __post_init__(self) -> None:
        if strange := [name for name in self.files if not PLAIN_NAME.fullmatch(name)]:
            raise ValueError(f"a file of the name {strange[0]!r}")

    def signed(self, key: PublisherKey) -> str:
        """Return the text of `checkpoint_manifest.json`."""
        return signed_text(dataclasses.replace(self, key=key.public), key, indent=1).decode()


def digest_files(folder: Path) -> dict[str, FileDigest]:
    """Return the digests of all files in a checkpoint's folder, by name."""
    return {path.name: digest_file(path) for path in sorted(folder.iterdir()) if path.is_file()}


def digest_file(path: Path) -> FileDigest:
    """Return a file's digest; a safetensors file's tensors have their own."""
    tensors = tensor_digests(path) if path.suffix == ".safetensors" else {}
    return FileDigest(sha256=file_digest(path), size=path.stat().st_size, tensors=tensors)


def tensor_digests(path: Path) -> dict[str, str]:
    """Return the SHA-256 of every tensor's bytes in a safetensors file; raises ValueError if the header is damaged."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = parse_json(file.read(length)) if length < min(path.stat().st_size, MOST_HEADER_BYTES) else {}
        if not isinstance(header, dict) or not header:
            raise ValueError(f"{path.name} has no safetensors header")
        # The format: 8 bytes of length, a JSON header, then the tensors at the offsets in the header.
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return {
                name: hashlib.sha256(content[8 + length + start : 8 + length + end]).hexdigest()
                for name, (start, end) in sorted(
                    (name, entry["data_offsets"]) for name, entry in header.items() if name != "__metadata__"
                )
            }


def read_manifest(text: str, keys: KeyList, run: TrainingRun) -> CheckpointManifest:
    """Return the manifest in the text of `checkpoint_manifest.json`.

    Raises:
        CheckpointRefusedError: it is not signed by a publisher of the list, it is of a format that this package lacks,
            or the checkpoint is not of this run and generation.
    """
    manifest = _signed_manifest(text, keys)
    _check_is_of(run, manifest)
    return manifest


def _signed_manifest(text: str, keys: KeyList) -> CheckpointManifest:
    try:
        manifest = read_statement(CheckpointManifest, text.encode())
    except NotSignedError as error:
        raise CheckpointRefusedError(
            f"The signature of {MANIFEST_FILE} does not match its content: it was changed after it was signed. Load an "
            "older epoch, or ask the run's organiser to roll back: dalle-collab run rollback"
        ) from error
    except StatementRefusedError as error:
        raise CheckpointRefusedError(
            f"{MANIFEST_FILE} cannot be read ({error}). Download it again, or update: pip install -U dalle-collab"
        ) from error
    _check_signer(manifest.key, manifest_digest(text), keys)
    return manifest


def manifest_digest(text: str) -> str:
    """Return the SHA-256 by which the list of keys and the next manifest name this one."""
    return hashlib.sha256(text.encode()).hexdigest()


def signer_of(text: str) -> str:
    """Return the key with which a manifest says that it is signed; raises CheckpointRefusedError if it is damaged."""
    try:
        return str(parse_json(text)["key"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointRefusedError(f"{MANIFEST_FILE} cannot be read ({error!r}).") from error


def _check_signer(public_key: str, digest: str, keys: KeyList) -> None:
    entry = keys.find(public_key)
    if entry is None or PUBLISHER not in entry.roles:
        raise CheckpointRefusedError(
            f"{MANIFEST_FILE} is signed with the key {public_key}, not one of the {len(keys.entries)} in the "
            "run's publisher_keys.json. Ask the run's organiser who published this checkpoint."
        )
    if entry.revoked_at is not None and digest not in keys.kept_manifests:
        raise CheckpointRefusedError(
            f"{MANIFEST_FILE} is signed with the key {public_key}, which was revoked at {utc(entry.revoked_at)}, and "
            "the organiser has not kept this manifest as an older one. Whoever has the organiser's key goes back to an "
            "epoch that was published before: dalle-collab run rollback ORG/RUN EPOCH"
        )


def _check_is_of(run: TrainingRun, manifest: CheckpointManifest) -> None:
    """A rollback restores a checkpoint of an older generation; one of a newer generation belongs to another swarm."""
    if manifest.run_id != run.run_id or manifest.generation > run.generation:
        raise CheckpointRefusedError(
            f"The checkpoint of epoch {manifest.epoch} is of run {manifest.run_id}, generation {manifest.generation}; "
            f"the settings are of run {run.run_id}, generation {run.generation}. Restart the command to "
            "read the run's settings again."
        )


def verify_checkpoint(folder: Path, keys: KeyList, run: TrainingRun) -> CheckpointManifest | None:
    """Check a checkpoint's folder against its manifest and return the manifest; None for an unsigned run without keys.

    Raises:
        CheckpointRefusedError: names the damaged, missing or unlisted file, and the damaged tensor; or the
            generation, if the checkpoint's is newer than that of the run's settings.
    """
    if not keys.entries and not run.organiser_key:
        return None
    path = folder / MANIFEST_FILE
    if not path.exists():
        raise CheckpointRefusedError(
            f"The checkpoint has no {MANIFEST_FILE}, but the run has keys to sign checkpoints with. Somebody has "
            "removed it; load an older epoch, or ask the run's organiser."
        )
    manifest = read_manifest(path.read_text(encoding="utf-8"), keys, run)
    check_files(folder, manifest.files, f"the manifest of epoch {manifest.epoch}")
    if missing := sorted(set(NEEDED_FILES) - set(manifest.files)):
        raise CheckpointRefusedError(f"The manifest of epoch {manifest.epoch} does not list {', '.join(missing)}.")
    _check_run_state(folder, manifest)
    return manifest


def check_files(folder: Path, expected: Mapping[str, FileDigest], source: str) -> None:
    """Compare every listed file with its digest, and refuse files that are loaded or run without being listed.

    Raises:
        CheckpointRefusedError: names the file and the tensor.
    """
    for name, digest in expected.items():
        path = folder / name
        if Path(name).name != name or not path.is_file():
            raise CheckpointRefusedError(f"{name} is missing, but {source} lists it. {_cure(folder)}")
        seen = path.stat().st_size
        if seen != digest.size:
            raise CheckpointRefusedError(
                f"{name} is damaged: it has {seen} bytes, {source} says {digest.size}. {_cure(folder)}"
            )
        sha256 = file_digest(path)
        if sha256 != digest.sha256:
            raise CheckpointRefusedError(_explain_damage(path, digest, sha256, source))
    for path in sorted(folder.iterdir()):
        if path.suffix in MUST_BE_LISTED and path.name not in expected:
            raise CheckpointRefusedError(f"{path.name} is not in {source}, so it is not signed. {_cure(folder)}")


def _explain_damage(path: Path, digest: FileDigest, sha256: str, source: str) -> str:
    where = f"{path.name} is damaged: its SHA-256 is {sha256[:16]}..., {source} says {digest.sha256[:16]}..."
    if digest.tensors:
        try:
            seen = tensor_digests(path)
            names = [name for name in digest.tensors if seen.get(name) != digest.tensors[name]]
        except (ValueError, KeyError, TypeError, AttributeError):
            names = []
        where += f" (tensor {', '.join(names[:3])})" if names else " (its header)"
    return f"{where}. {_cure(path.parent)}"


def _check_run_state(folder: Path, manifest: CheckpointManifest) -> None:
    state = read_json(folder / RUN_STATE_FILE)
    if (state.get("run_id"), state.get("epoch")) != (manifest.run_id, manifest.epoch):
        raise CheckpointRefusedError(
            f"{RUN_STATE_FILE} is of run {state.get('run_id')} at epoch {state.get('epoch')}, its manifest of run "
            f"{manifest.run_id} at epoch {manifest.epoch}."
        )


def _cure(folder: Path) -> str:
    return f"Delete {folder} and download the checkpoint again."
