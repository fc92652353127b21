"""A run's Storage Bucket: its metrics, and checkpoints between those of the run's repository.

A bucket keeps no history, and changes of several files may be seen one by one. So a checkpoint lies in a folder of its
own and counts once its manifest is there, which is sent after everything else: who dies in between leaves an incomplete
folder that nobody reads, and two publishers at once do no harm. Nothing in a bucket is believed: checkpoints are
verified as those of the repository are, and what is downloaded is bounded by what the signed manifest lists.
"""

import contextlib
import itertools
import logging
import re
import shutil
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2
from huggingface_hub import BucketFile, HfApi
from huggingface_hub.errors import BucketNotFoundError

from hub_tools.one_line_errors import explain_error
from hub_tools.run_files import MANIFEST_FILE, METRICS_FOLDER
from pipelines.core.run.training_run import TrainingRun
from pipelines.features.publishing.repository.key_list import KeyList
from pipelines.features.publishing.repository.manifest import (
    NEEDED_FILES,
    PLAIN_NAME,
    CheckpointManifest,
    CheckpointRefusedError,
    manifest_digest,
    read_manifest,
    verify_checkpoint,
)
from pipelines.features.publishing.repository.organiser import local_folder
from pipelines.features.publishing.repository.snapshot import RunSnapshot

if TYPE_CHECKING:
    from pipelines.features.publishing.publishable_task import PublishableTask

logger = logging.getLogger(__name__)

KEPT_CHECKPOINTS = 2
"""The newest, and the one that somebody may still be downloading."""

LONGEST_DOWNLOAD_SECONDS = 24 * 3600.0
MAX_FILES = 20_000
MAX_METRICS_BYTES = 2**28
MAX_MANIFEST_BYTES = 2**24
MAX_CANDIDATES = 20
CHECKPOINT_FOLDER = re.compile(r"epoch-([0-9]{8})-[0-9a-f]{16}")


class BucketError(OSError):
    """The bucket could not be read or written: the caller goes on without it, and may try again."""


@dataclass(frozen=True)
class StoredCheckpoint:
    """A folder in the bucket that holds a checkpoint with its manifest, if what it says of itself is true."""

    epoch: int
    folder: str
    files: Mapping[str, BucketFile]


class RunBucket:
    """The part of the bucket that belongs to the run's present generation."""

    def __init__(self, run: TrainingRun) -> None:
        self.name, self._run = run.bucket, run
        self._prefix = f"{run.run_id}/generation-{run.generation}"

    def create(self, *, private: bool) -> None:
        """Create the bucket if it is not there; BucketError for a public one that is to be private."""
        with _errors_named(self.name):
            HfApi().create_bucket(self.name, private=private, exist_ok=True)
            is_public = private and not HfApi().bucket_info(self.name).private
        if is_public:
            raise BucketError(
                f"Bucket {self.name} is public, the run's repository is private: nothing is put there. Make the bucket "
                "private, or name another one in training_run.json."
            )

    def put_metrics(self, files: Sequence[Path]) -> None:
        """Replace the metrics by these files."""
        with _errors_named(self.name):
            gone = {file.path for file in self._files(METRICS_FOLDER)}
            additions = [(path, f"{self._prefix}/{METRICS_FOLDER}/{path.name}") for path in files]
            gone -= {path for _, path in additions}
            HfApi().batch_bucket_files(self.name, add=list(additions), delete=sorted(gone))

    def get_metrics(self, folder: Path) -> Path:
        """Download the metrics into a folder, and return it; it stays empty if there are none.

        What is more than `MAX_METRICS_BYTES`, or has a strange name, is left out.
        """
        with _errors_named(self.name):
            start, left, wanted = f"{self._prefix}/{METRICS_FOLDER}/", MAX_METRICS_BYTES, []
            for file in self._files(METRICS_FOLDER):
                if PLAIN_NAME.fullmatch(file.path.removeprefix(start)) and file.size <= left:
                    wanted.append((file, folder / _name(file)))
                    left -= file.size
            HfApi().download_bucket_files(self.name, list(wanted))
        return folder

    def checkpoints(self) -> list[StoredCheckpoint]:
        """Return the checkpoints that say they are complete, newest first."""
        with _errors_named(self.name):
            by_folder = itertools.groupby(self._files("checkpoints"), key=lambda file: file.path.rpartition("/")[0])
            found = [(folder, {_name(file): file for file in files}) for folder, files in by_folder]
        named = [(CHECKPOINT_FOLDER.fullmatch(folder.rpartition("/")[2]), folder, files) for folder, files in found]
        stored = [
            StoredCheckpoint(int(match[1]), folder, files)
            for match, folder, files in named
            if match is not None and MANIFEST_FILE in files and files[MANIFEST_FILE].size <= MAX_MANIFEST_BYTES
        ]
        return sorted(stored, key=lambda it: it.epoch, reverse=True)

    def signed_checkpoints(self, keys: KeyList) -> Iterator[tuple[StoredCheckpoint, CheckpointManifest]]:
        """Yield the checkpoints whose manifest a publisher of the list has signed, newest first; the others are named.

        Only their manifests were read.
        """
        for stored in self.checkpoints()[:MAX_CANDIDATES]:
            with tempfile.TemporaryDirectory(prefix="dalle-collab-manifest-") as folder:
                try:
                    with _errors_named(self.name):
                        self._fetch(stored, [MANIFEST_FILE], Path(folder))
                        text = (Path(folder) / MANIFEST_FILE).read_text(encoding="utf-8")
                    manifest = read_manifest(text, keys, self._run)
                    _check_listing(stored, manifest)
                except (CheckpointRefusedError, BucketError) as error:
                    self._pass_over(stored, error)
                    continue
            yield stored, manifest

    def put_checkpoint(self, folder: Path, manifest: CheckpointManifest, signed: str, keys: KeyList) -> None:
        """Upload the files of a checkpoint, then its signed manifest, and then remove what is no longer needed."""
        target = f"{self._prefix}/checkpoints/epoch-{manifest.epoch:08d}-{manifest_digest(signed)[:16]}"
        with _errors_named(self.name):
            api = HfApi()
            api.batch_bucket_files(self.name, add=[(folder / name, f"{target}/{name}") for name in manifest.files])
            api.batch_bucket_files(self.name, add=[(signed.encode(), f"{target}/{MANIFEST_FILE}")])
            kept = [it.folder for it, _ in itertools.islice(self.signed_checkpoints(keys), KEPT_CHECKPOINTS)]
            complete = {it.folder for it in self.checkpoints()}
            if old := outdated_files(self._files("checkpoints"), complete, {*kept, target}, manifest.epoch):
                api.batch_bucket_files(self.name, delete=old)

    def get_checkpoint(self, keys: KeyList, *, newer_than: int, into: Path) -> Path | None:
        """Download the newest checkpoint that a publisher of the list has signed; None if none is newer than an epoch.

        What is damaged, incomplete or not signed is passed over with a warning.
        """
        for stored, manifest in self.signed_checkpoints(keys):
            if stored.epoch <= newer_than:
                return None
            try:
                with _errors_named(self.name):
                    return self._download(stored, manifest, keys, into)
            except (CheckpointRefusedError, BucketError) as error:
                self._pass_over(stored, error)
        return None

    def _pass_over(self, stored: StoredCheckpoint, error: Exception) -> None:
        logger.warning("The checkpoint %s of bucket %s is passed over: %s", stored.folder, self.name, error)

    def _download(self, stored: StoredCheckpoint, manifest: CheckpointManifest, keys: KeyList, into: Path) -> Path:
        into.mkdir(parents=True, exist_ok=True)
        for left in into.glob(".partial-*"):  # by a download that was killed; others may be at work
            if time.time() - left.stat().st_mtime > LONGEST_DOWNLOAD_SECONDS:
                shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=into, prefix=".partial-") as partial:
            target = Path(partial) / stored.folder.rpartition("/")[2]
            self._fetch(stored, [*manifest.files, MANIFEST_FILE], target)
            verify_checkpoint(target, keys, self._run)
            for old in into.glob("epoch-*"):
                shutil.rmtree(old, ignore_errors=True)
            return target.rename(into / target.name)

    def _fetch(self, stored: StoredCheckpoint, names: Sequence[str], target: Path) -> None:
        target.mkdir(exist_ok=True)
        HfApi().download_bucket_files(self.name, [(stored.files[name], target / name) for name in names])

    def _files(self, folder: str) -> list[BucketFile]:
        """Return the files below a folder, by path; none while there is no bucket."""
        listing = HfApi().list_bucket_tree(self.name, f"{self._prefix}/{folder}", recursive=True)
        with contextlib.suppress(BucketNotFoundError):
            items = list(itertools.islice(listing, MAX_FILES + 1))
            if len(items) > MAX_FILES:
                raise BucketError(f"{folder} of bucket {self.name} has more than {MAX_FILES} files.")
            return sorted((item for item in items if isinstance(item, BucketFile)), key=lambda item: item.path)
        return []


def _check_listing(stored: StoredCheckpoint, manifest: CheckpointManifest) -> None:
    """Refuse a checkpoint that cannot be what its manifest says before any of it is downloaded."""
    if manifest.epoch != stored.epoch:
        raise CheckpointRefusedError(f"Its manifest is of epoch {manifest.epoch}.")
    for name in {*NEEDED_FILES, *manifest.files}:
        seen = stored.files[name].size if name in stored.files else None
        expected = manifest.files[name].size if name in manifest.files else None
        if seen is None or seen != expected or not PLAIN_NAME.fullmatch(name):
            raise CheckpointRefusedError(f"{name!r} has {seen} bytes in the bucket, its manifest says {expected}.")


def outdated_files(
    files: Sequence[BucketFile], complete: Collection[str], kept: Collection[str], newest_epoch: int
) -> list[str]:
    """Return the files of checkpoints that are not kept: older ones, and complete ones that nobody of the run signed.

    What is incomplete and no older than the newest may be another publisher's at work.
    """
    return [
        file.path
        for file in files
        if (folder := file.path.rpartition("/")[0]) not in kept
        and (match := CHECKPOINT_FOLDER.fullmatch(folder.rpartition("/")[2])) is not None
        and (int(match[1]) < newest_epoch or folder in complete)
    ]


def newest_checkpoint(snapshot: RunSnapshot, task: "PublishableTask | None" = None) -> Path | None:
    """Download the run's newest checkpoint, check it, and return its folder; None if there is none yet.

    The run's bucket may have a newer one than its repository. Where it has none that can be used, or does not answer,
    the repository's is taken; for `task` see `RunSnapshot.download_checkpoint`.

    Raises:
        CheckpointRefusedError: the repository's was needed and is not what its manifest says.
    """
    run, published = snapshot.run, snapshot.epoch
    if run.bucket:
        newer_than = published or 0
        into = local_folder("bucket", snapshot.repository) / f"generation-{run.generation}"
        try:
            if (folder := RunBucket(run).get_checkpoint(snapshot.keys, newer_than=newer_than, into=into)) is not None:
                return folder
        except OSError as error:
            logger.warning("The run's bucket cannot be used, its repository is: %s", error)
    return snapshot.download_checkpoint(task) if published is not None or snapshot.signed_files else None


def _name(file: BucketFile) -> str:
    return file.path.rpartition("/")[2]


@contextlib.contextmanager
def _errors_named(bucket: str) -> Iterator[None]:
    """Turn what the client raises into BucketError; Xet's part of it raises RuntimeError."""
    try:
        yield
    except (BucketError, CheckpointRefusedError):
        raise
    except (OSError, httpx2.HTTPError, RuntimeError, ValueError, KeyError, TypeError) as error:
        said = explain_error(error).rstrip(".")
        raise BucketError(
            f"Bucket {bucket} cannot be used: {said}. Check that it exists and that your token may write there: "
            f"hf buckets info {bucket}"
        ) from error
