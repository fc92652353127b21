"""Older checkpoints: each epoch's commit has the tag `epoch-N`; only the newest optimizer states are kept.

The weights of every published epoch stay loadable, `from_pretrained(RUN, revision="epoch-300")`. Optimizer states are
as large as the weights and needed only to resume from an epoch: the content of old ones is deleted from the Hub's
storage. No commit is rewritten; at an old tag the file is still listed, but its content is gone.
"""

from collections.abc import Mapping

from huggingface_hub import HfApi

from hub_tools.run_files import OPTIMIZER_FILE
from pipelines.features.publishing.repository.manifest import FileDigest


def epoch_tag(epoch: int) -> str:
    """Return the tag of an epoch's commit."""
    return f"epoch-{epoch}"


def tag_epoch(api: HfApi, repository: str, epoch: int, commit: str, *, only_if_missing: bool = False) -> None:
    """Point the epoch's tag to a commit; a tag outdated by a rollback is kept under a longer name."""
    name = epoch_tag(epoch)
    tags = {tag.name: tag.target_commit for tag in api.list_repo_refs(repository).tags}
    if name in tags:
        if only_if_missing or tags[name] == commit:
            return
        api.create_tag(repository, tag=f"{name}-before-{commit[:8]}", revision=tags[name], exist_ok=True)
        api.delete_tag(repository, tag=name)
    api.create_tag(repository, tag=name, revision=commit, exist_ok=True)


def find_epoch(api: HfApi, repository: str, epoch: int) -> tuple[str | None, list[int]]:
    """Return the commit of an epoch's checkpoint, None if there is none, and the epochs that have tags, in order."""
    tags = tagged_epochs(api, repository)
    commit = tags.get(epoch)
    if commit is None:
        titles = (c for c in api.list_repo_commits(repository) if c.title == f"Checkpoint of epoch {epoch}")
        commit = next((found.commit_id for found in titles), None)
    return commit, list(tags)


def tagged_epochs(api: HfApi, repository: str) -> dict[int, str]:
    """Return the commits of the epochs that have tags, in the order of the epochs."""
    tags = {tag.name: tag.target_commit for tag in api.list_repo_refs(repository).tags}
    prefix = epoch_tag(0).removesuffix("0")
    names = {name.removeprefix(prefix): commit for name, commit in tags.items() if name.startswith(prefix)}
    return {int(name): names[name] for name in sorted(filter(str.isdecimal, names), key=int)}


def drop_old_optimizer_states(api: HfApi, repository: str, head: Mapping[str, FileDigest], num_kept: int) -> int:
    """Delete the contents of all but the newest optimizer states, never the head's; return how many were deleted."""
    stored = [file for file in api.list_lfs_files(repository) if file.filename == OPTIMIZER_FILE]
    stored.sort(key=lambda file: file.pushed_at, reverse=True)
    old = [file for file in stored[num_kept:] if file.file_oid != head[OPTIMIZER_FILE].sha256]
    if old:
        # Rewriting the history would change every commit's id and break the tags and the manifests' parents.
        api.permanently_delete_lfs_files(repository, old, rewrite_history=False)
    return len(old)
