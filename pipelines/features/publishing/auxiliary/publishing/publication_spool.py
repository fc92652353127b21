"""Due checkpoints that are not on the Hub yet, as folders on disk: they survive an outage and a restart."""

import json
import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from pipelines.features.publishing.repository.manifest import FileDigest, check_files, digest_files

logger = logging.getLogger(__name__)

CHECKPOINT_FOLDER = "checkpoint"
DIGESTS_FILE = "digests.json"


@dataclass(frozen=True, kw_only=True)
class SpooledCheckpoint:
    """A checkpoint waiting for publication."""

    epoch: int
    folder: Path
    """Holds the checkpoint's files."""

    files: dict[str, FileDigest]
    """Digests from when the checkpoint was written."""

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(digest.size for digest in self.files.values())

    def check(self) -> None:
        """Raise CheckpointRefusedError, naming file and tensor, if the disk has corrupted what was written."""
        check_files(self.folder, self.files, f"the spool's record of epoch {self.epoch}")


def epochs_to_drop(sizes: Mapping[int, int], max_bytes: int) -> list[int]:
    """Return the epochs to drop so that the rest fits: those closest to their neighbours first, never the newest."""
    kept, dropped = sorted(sizes), []
    while len(kept) > 1 and sum(sizes[epoch] for epoch in kept) > max_bytes:
        gaps = {epoch: kept[i + 1] - (kept[i - 1] if i else 0) for i, epoch in enumerate(kept[:-1])}
        dropped.append(min(gaps, key=lambda epoch: (gaps[epoch], epoch)))
        kept.remove(dropped[-1])
    return sorted(dropped)


class PublicationSpool:
    """A folder of checkpoints in the order of their epochs, of bounded size."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder, self._max_bytes = folder, max_bytes
        folder.mkdir(parents=True, exist_ok=True)
        for partial in folder.glob(".partial-*"):
            shutil.rmtree(partial)

    def add(self, epoch: int, write: Callable[[Path], None]) -> None:
        """Let `write` write a checkpoint into an empty folder; it enters the spool completely or not at all."""
        partial, final = self._folder / f".partial-{epoch:08d}", self._path(epoch)
        shutil.rmtree(partial, ignore_errors=True)
        (partial / CHECKPOINT_FOLDER).mkdir(parents=True)
        try:
            write(partial / CHECKPOINT_FOLDER)
            digests = {name: asdict(digest) for name, digest in digest_files(partial / CHECKPOINT_FOLDER).items()}
            (partial / DIGESTS_FILE).write_text(json.dumps(digests), encoding="utf-8")
            shutil.rmtree(final, ignore_errors=True)
            partial.rename(final)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        self._make_room()

    def entries(self) -> list[SpooledCheckpoint]:
        """Return the waiting checkpoints, oldest epoch first."""
        return [entry for path in sorted(self._folder.glob("epoch-*")) if (entry := self._entry(path)) is not None]

    def newest_epoch(self) -> int:
        """Return the newest waiting epoch, or 0."""
        return max((int(path.name.removeprefix("epoch-")) for path in self._folder.glob("epoch-*")), default=0)

    def remove(self, epoch: int) -> None:
        """Remove a checkpoint."""
        shutil.rmtree(self._path(epoch), ignore_errors=True)

    def _make_room(self) -> None:
        sizes = {entry.epoch: entry.size for entry in self.entries()}
        for epoch in epochs_to_drop(sizes, self._max_bytes):
            logger.warning(
                "The spool %s is full: the checkpoint of epoch %d was dropped before it could be published.",
                self._folder,
                epoch,
            )
            self.remove(epoch)

    def _entry(self, path: Path) -> SpooledCheckpoint | None:
        try:
            digests = json.loads((path / DIGESTS_FILE).read_text(encoding="utf-8"))
            files = {name: FileDigest(**digest) for name, digest in digests.items()}
        except (OSError, ValueError, TypeError):  # being removed by the publishing thread, or damaged
            return None
        epoch = int(path.name.removeprefix("epoch-"))
        return SpooledCheckpoint(epoch=epoch, folder=path / CHECKPOINT_FOLDER, files=files)

    def _path(self, epoch: int) -> Path:
        return self._folder / f"epoch-{epoch:08d}"
