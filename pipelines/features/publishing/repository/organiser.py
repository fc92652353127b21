"""The organiser of a run on this machine: the key that alone can change the list of the run's keys, and the changes."""

import dataclasses
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import CommitOperationAdd, constants

from hub_tools.atomic_files import write_text_whole
from hub_tools.places import config_folder
from hub_tools.run_files import PUBLISHER_KEYS_FILE
from pipelines.core.run.training_run import TrainingRun
from pipelines.core.signing.publisher_keys import PublisherKey, write_private
from pipelines.features.publishing.repository.commits import commit_changes
from pipelines.features.publishing.repository.key_list import KeyList, KeysRefusedError, read_key_list
from pipelines.features.publishing.repository.snapshot import RunSnapshot

logger = logging.getLogger(__name__)

KEY_FILE = "organiser_key.pem"


def local_folder(purpose: str, repository: str) -> Path:
    """Return where this machine keeps a run's files of one purpose: next to the Hub client's, by Hub and repository."""
    return Path(constants.HF_HOME) / "dalle-collab" / purpose / _folder_name(repository)


def _folder_name(repository: str) -> str:
    names = [re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-") for text in (constants.ENDPOINT, repository)]
    return "--".join(names)


def link_file(repository: str) -> Path:
    """Return where this machine keeps what its link was measured to carry in a run."""
    return local_folder("links", repository) / "link.json"


def organiser_key_file(repository: str) -> Path:
    """Return where `run create` puts the organiser's key unless it is told otherwise.

    What an older version has put into the cache is moved from there, or used there if that cannot be done.
    """
    folder, old = config_folder() / "organiser" / _folder_name(repository), local_folder("organiser", repository)
    try:
        for name in (PUBLISHER_KEYS_FILE, KEY_FILE):  # the key last: once it has moved, all has
            _move_private(old / name, folder / name)
    except OSError as error:
        logger.warning("What the organiser needs could not be moved from %s, a cache: %s", old, error)
        return (old if (old / KEY_FILE).exists() else folder) / KEY_FILE
    return folder / KEY_FILE


def _move_private(old: Path, new: Path) -> None:
    """Move a file, also to another disk, so that one of both is whole at any time; what is there already stays."""
    if new.exists() or not old.exists():
        return
    write_private(new, old.read_bytes())
    old.unlink(missing_ok=True)  # another process may have moved it, too
    logger.warning("Moved %s to %s: a cache may be emptied.", old, new)


@dataclass(frozen=True, kw_only=True)
class Organiser:
    """The organiser's key on this machine, and a copy of the newest list that was seen here."""

    key: PublisherKey
    key_file: Path
    copy: Path
    """File of the copy: who may write to the repository can put an older list back there, but not here."""

    def newest(self, head: RunSnapshot) -> KeyList:
        """Return the repository's list, or the copy if that is newer or the repository's is refused.

        Raises KeysRefusedError if the repository's list is refused and there is no copy.
        """
        copy = read_key_list(self.copy.read_text(encoding="utf-8"), head.run) if self.copy.exists() else KeyList()
        listed = _listed(head)
        if copy.serial and (listed is None or copy.serial > listed.serial):
            logger.warning("The list of keys in %s is not the newest; the copy in %s is.", head.repository, self.copy)
            return copy
        if listed is None:
            return head.keys  # which raises the reason
        if listed.serial:
            self.copy.parent.mkdir(parents=True, exist_ok=True)
            write_text_whole(self.copy, listed.signed(self.key, head.run.run_id))
        return listed

    def operations(self, head: RunSnapshot, change: Callable[[KeyList], KeyList]) -> list[CommitOperationAdd]:
        """Return what to commit on a head so that its list is the newest, changed; nothing if that is there."""
        newest = self.newest(head)
        changed = change(newest)
        if changed == _listed(head):
            return []
        text = dataclasses.replace(changed, serial=newest.serial + 1).signed(self.key, head.run.run_id)
        return [CommitOperationAdd(path_in_repo=PUBLISHER_KEYS_FILE, path_or_fileobj=text.encode())]


def _listed(head: RunSnapshot) -> KeyList | None:
    try:
        return head.keys
    except KeysRefusedError:
        return None


def found_organiser(repository: str, key_file: Path | None = None) -> Organiser:
    """Return who may become the organiser of a new run; the key's file is made if it is missing."""
    path = key_file or organiser_key_file(repository)
    copy = organiser_key_file(repository).with_name(PUBLISHER_KEYS_FILE)
    return Organiser(key=PublisherKey.load_or_create(path), key_file=path, copy=copy)


def organiser_here(repository: str, run: TrainingRun, key_file: Path | None = None) -> Organiser | None:
    """Return the run's organiser if this machine has the key, in this file or where `run create` puts it."""
    path = key_file or organiser_key_file(repository)
    if not run.organiser_key or not path.exists():
        return None
    found = found_organiser(repository, path)
    return found if found.key.public == run.organiser_key else None


def needed_organiser(repository: str, run: TrainingRun, key_file: Path | None = None) -> Organiser:
    """Return the run's organiser; raises ValueError if this machine does not have the key."""
    if not run.organiser_key:
        raise ValueError(
            f"{repository} was created without an organiser's key: each auxiliary peer adds its own key to the list, "
            "which is not signed. Only a new run can have one: dalle-collab run create"
        )
    if (organiser := organiser_here(repository, run, key_file)) is None:
        path = key_file or organiser_key_file(repository)
        seen = "has another key than the organiser's" if path.exists() else "does not exist"
        raise ValueError(
            f"{path} {seen}; expected the private half of {run.organiser_key}. Run the command on the machine where "
            f"{repository} was created, or name the file: --organiser-key FILE"
        )
    return organiser


def restore_organiser(backup: PublisherKey, run: TrainingRun, key_file: Path) -> None:
    """Write a run's organiser's key into its file; raises ValueError if it is another key, or one is there."""
    if backup.public != run.organiser_key:
        raise ValueError(
            f"The backup has the key {backup.public}; expected the run's, {run.organiser_key or 'which has none'}. "
            "Name the backup of this run's key."
        )
    if key_file.exists() and PublisherKey.load_or_create(key_file).public != backup.public:
        raise ValueError(f"{key_file} has another key than the run's. Move it away first, or name another file.")
    backup.save(key_file)


def change_keys(
    organiser: Organiser,
    repository: str,
    change: Callable[[RunSnapshot, KeyList], KeyList],
    message: str,
) -> KeyList:
    """Change the list of a run's keys in one commit, on top of the newest; return it as it is then."""

    def changes(head: RunSnapshot) -> list[CommitOperationAdd]:
        return organiser.operations(head, lambda keys: change(head, keys))

    commit_changes(repository, changes, message)
    return organiser.newest(RunSnapshot.read(repository, in_cache=False))
