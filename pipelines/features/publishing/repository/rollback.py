"""Going back to an older epoch: its checkpoint becomes the head again, and the run starts a new generation.

A run is rolled back when its newest epochs are worthless: poisoned, diverged, trained on the wrong data. Live peers
have those epochs and would serve them to newcomers, and the newest epoch wins. So one commit does both: it restores the
old checkpoint's files, bit for bit, and raises `generation` in `training_run.json`. A generation is a separate swarm in
the DHT. Auxiliary peers and trainers of the old one notice the change on the Hub, leave it and join the new swarm,
whose state is the restored checkpoint. Nothing is lost: the commits of the discarded epochs stay in the repository's
history, with their tags until the run publishes those epochs again.
"""

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import CommitOperationAdd, CommitOperationCopy, CommitOperationDelete, HfApi, snapshot_download
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
from huggingface_hub.hf_api import RepoFile

from hub_tools.run_files import (
    COUNTERS_FILE,
    ENTRIES_FILE,
    METRICS_FOLDER,
    OPTIMIZER_FILE,
    PUBLISHER_KEYS_FILE,
    TRAINING_RUN_FILE,
    VOLUNTEERS_FOLDER,
)
from pipelines.features.publishing.repository.commits import commit_changes
from pipelines.features.publishing.repository.epoch_tags import epoch_tag, find_epoch
from pipelines.features.publishing.repository.key_list import KeyList
from pipelines.features.publishing.repository.manifest import (
    CheckpointManifest,
    CheckpointRefusedError,
    verify_checkpoint,
)
from pipelines.features.publishing.repository.organiser import Organiser, organiser_here
from pipelines.features.publishing.repository.snapshot import NOT_OF_A_CHECKPOINT, RunSnapshot

KEPT_FILES = (
    *(TRAINING_RUN_FILE, PUBLISHER_KEYS_FILE, ENTRIES_FILE, f"{METRICS_FOLDER}/{COUNTERS_FILE}", ".gitattributes"),
)
KEPT_PREFIXES = (f"{METRICS_FOLDER}/contributions-", f"{VOLUNTEERS_FOLDER}/")
"""Contributions stay counted, the publishers' keys and the entries stay known, and strangers admitted or barred."""


@dataclass(frozen=True, kw_only=True)
class RollbackPlan:
    """What a rollback would do; nothing has been changed."""

    head: RunSnapshot
    newest_epoch: int
    """Epoch of the head's checkpoint; 0 if no trusted key has signed it."""

    epoch: int
    source: str
    """Commit of the epoch's checkpoint."""

    manifest: CheckpointManifest
    restored: dict[str, str]
    """Files to restore, with the id of their old content on the Hub."""

    deleted: tuple[str, ...]
    """Files to delete: the epoch's commit did not have them."""

    organiser: Organiser | None
    """The run's organiser, if this machine has the key."""

    kept_manifest: str | None
    """SHA-256 of the epoch's manifest, if its key was revoked afterwards: it is kept in the list of keys."""

    @property
    def generation(self) -> int:
        """The new generation."""
        return self.head.run.generation + 1


def plan_rollback(repository: str, epoch: int, organiser_key_file: Path | None = None) -> RollbackPlan:
    """Find an epoch's checkpoint, download it, and check it against its signed manifest.

    A key that was revoked after the epoch was published, by the Hub's times, is no obstacle for the run's organiser,
    whose key is in the given file or where `run create` puts it.

    Raises:
        ValueError: there is no such epoch, it is already the head, or its optimizer state is no longer kept.
        CheckpointRefusedError: the checkpoint is damaged.
    """
    api, head = HfApi(), RunSnapshot.read(repository)
    source, epochs = find_epoch(api, repository, epoch)
    if source is None:
        known = ", ".join(map(str, epochs[-12:])) or "none"
        raise ValueError(f"{repository} has published no checkpoint of epoch {epoch}; its newest are: {known}.")
    newest_epoch = _newest_epoch(head)
    if newest_epoch == epoch:
        raise ValueError(f"{repository} is already at epoch {epoch}; there is nothing to roll back.")
    organiser = organiser_here(repository, head.run, organiser_key_file)
    keys = organiser.newest(head) if organiser else head.keys
    kept_manifest = _manifest_to_keep(repository, source, keys) if organiser else None
    manifest = _verified_manifest(head, source, epoch, keys.keeping(kept_manifest))
    before, after = _identities(api, repository, head.commit), _identities(api, repository, source)
    restored, deleted = changed_files(before, after)
    return RollbackPlan(
        head=head,
        newest_epoch=newest_epoch,
        epoch=epoch,
        source=source,
        manifest=manifest,
        restored=restored,
        deleted=deleted,
        organiser=organiser,
        kept_manifest=kept_manifest,
    )


def changed_files(head: Mapping[str, str], source: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return which files must be copied from the source, with their content ids, and which must be deleted.

    Both arguments map names to content ids. Files that a rollback keeps are in neither.
    """
    restored = {name: oid for name, oid in source.items() if not _is_kept(name) and head.get(name) != oid}
    return restored, tuple(sorted(name for name in head if name not in source and not _is_kept(name)))


def carry_out(plan: RollbackPlan) -> str:
    """Roll back in one commit; return the commit. What the run has published since the plan was made is undone too.

    Raises:
        ValueError: somebody else has rolled the run back since.
        ConnectionError: the run keeps publishing in between.
        CheckpointRefusedError: the Hub did not restore what it was asked to.
    """
    api, repository = HfApi(), plan.head.repository
    wanted = _identities(api, repository, plan.source)

    def changes(head: RunSnapshot) -> Sequence[CommitOperationAdd | CommitOperationCopy | CommitOperationDelete]:
        if head.run.generation != plan.head.run.generation:
            raise ValueError(f"{repository} was rolled back by somebody else just now; look at it before you go on.")
        restored, deleted = changed_files(_identities(api, repository, head.commit), wanted)
        text = head.run.replace(generation=plan.generation).to_json()
        keys = plan.organiser.operations(head, lambda keys: keys.keeping(plan.kept_manifest)) if plan.organiser else []
        return [
            *keys,
            CommitOperationAdd(path_in_repo=TRAINING_RUN_FILE, path_or_fileobj=text.encode()),
            *(CommitOperationCopy(name, name, src_revision=plan.source) for name in restored),
            *(CommitOperationDelete(path_in_repo=name) for name in deleted),
        ]

    commit = commit_changes(repository, changes, f"Roll back to epoch {plan.epoch}: generation {plan.generation}")
    assert commit is not None, "a rollback always changes the generation"
    now = _identities(api, repository, commit)
    if wrong := sorted(name for name, oid in wanted.items() if not _is_kept(name) and now.get(name) != oid):
        raise CheckpointRefusedError(
            f"After the rollback {', '.join(wrong)} of {repository} is not what epoch {plan.epoch} had. "
            f"Roll back again, or restore the commit {plan.source} by hand."
        )
    return commit


def _newest_epoch(head: RunSnapshot) -> int:
    try:
        return head.signed_epoch
    except CheckpointRefusedError:  # a reason to roll back, and no reason not to
        return 0


def _manifest_to_keep(repository: str, source: str, keys: KeyList) -> str | None:
    published = RunSnapshot.read(repository, source, in_cache=False)
    entry = keys.find(published.manifest_signer or "")
    if entry is None or entry.revoked_at is None:
        return None
    time_of_commit = HfApi().list_repo_commits(repository, revision=source)[0].created_at.timestamp()
    return published.manifest_sha256 if time_of_commit < entry.revoked_at else None


def _verified_manifest(head: RunSnapshot, source: str, epoch: int, keys: KeyList) -> CheckpointManifest:
    with tempfile.TemporaryDirectory(prefix="dalle-collab-rollback-") as cache:
        ignored = list(NOT_OF_A_CHECKPOINT)
        try:
            folder = snapshot_download(head.repository, revision=source, ignore_patterns=ignored, cache_dir=cache)
        except LocalEntryNotFoundError:
            raise
        except EntryNotFoundError as error:
            raise ValueError(
                f"The checkpoint of epoch {epoch} is incomplete on the Hub ({error}). The optimizer states of the "
                f"newest {head.run.keep_optimizer_states} checkpoints are kept; choose one of those."
            ) from error
        if not (Path(folder) / OPTIMIZER_FILE).exists():
            raise ValueError(f"The checkpoint of epoch {epoch} has no {OPTIMIZER_FILE}; choose a newer one.")
        manifest = verify_checkpoint(Path(folder), keys, head.run)
        shutil.rmtree(folder)
    if manifest is None or manifest.epoch != epoch:
        seen = "no signed manifest" if manifest is None else f"the manifest of epoch {manifest.epoch}"
        raise CheckpointRefusedError(f"The commit {source} ({epoch_tag(epoch)}) has {seen}; expected epoch {epoch}.")
    return manifest


def _identities(api: HfApi, repository: str, revision: str) -> dict[str, str]:
    tree = api.list_repo_tree(repository, revision=revision, recursive=True)
    files = (item for item in tree if isinstance(item, RepoFile))
    return {file.path: file.lfs.sha256 if file.lfs else file.blob_id for file in files}


def _is_kept(name: str) -> bool:
    return name in KEPT_FILES or name.startswith(KEPT_PREFIXES)
