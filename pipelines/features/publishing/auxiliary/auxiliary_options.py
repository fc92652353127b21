"""Local choices of an auxiliary peer, and the folder for what must survive a restart."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from hub_tools.checks import check_positive
from pipelines.core.run.compute_options import GIBIBYTE
from pipelines.features.publishing.auxiliary.evaluating.evaluation_options import EvaluationOptions
from pipelines.features.publishing.repository.organiser import local_folder


def default_folder(repository: str) -> Path:
    """Return where an auxiliary peer of a run keeps its files."""
    return local_folder("auxiliary", repository)


@dataclass(frozen=True, kw_only=True)
class AuxiliaryOptions:
    """Local choices of one auxiliary peer."""

    folder: Path
    """Folder of this peer: signing key, spool, commit times, metrics. One peer uses it at a time."""

    organiser_key_file: Path | None = None
    """File of the organiser's key; None: where `run create` puts it. With the key this peer lists itself."""

    takeover_seconds: float = 180.0
    """Time after which another auxiliary peer publishes when this one is silent. Increase above the longest download
    of the state, during which finishing trainers wait for a peer with a status; decrease for a quicker take-over."""

    metrics_interval_seconds: float = 300.0
    """Seconds between publications of the metrics alone. Increase to leave more commits for checkpoints."""

    retry_seconds: float = 20.0
    """Seconds to wait after an attempt that failed because the Hub was down."""

    max_spool_gigabytes: float = 20.0
    """Disk space for checkpoints that wait for the Hub; when full, those closest to their neighbours are dropped."""

    trackers: tuple[str, ...] = ()
    """Experiment trackers that receive the run's figures."""

    evaluation: EvaluationOptions | None = None
    """How published checkpoints are evaluated; None: they are not."""

    helps_averaging: bool = True
    """Whether this peer reduces a share of the gradients when its link makes the rounds shorter."""

    def __post_init__(self) -> None:
        check_positive(self, "takeover_seconds", "metrics_interval_seconds", "retry_seconds")
        check_positive(self, "max_spool_gigabytes")

    @property
    def key_file(self) -> Path:
        """File of the key with which this peer signs checkpoints."""
        return self.folder / "signing_key.pem"

    @property
    def max_spool_bytes(self) -> int:
        """Bytes of the spool."""
        return int(self.max_spool_gigabytes * GIBIBYTE)

    def generation_folder(self, generation: int) -> Path:
        """Return the folder for one generation of the run: a rollback leaves it behind."""
        return self.folder / f"generation-{generation}"


@contextlib.contextmanager
def sole_user(folder: Path) -> Iterator[None]:
    """Lock the folder for the duration of the block. Raises ValueError if another peer has it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            unlock = _locked(lock)
        except (BlockingIOError, PermissionError) as error:
            raise ValueError(
                f"Another auxiliary peer on this machine uses {folder}. Give this one its own folder: "
                "--state-folder FOLDER"
            ) from error
        try:
            yield
        finally:
            # Children forked meanwhile also have the file open: closing it here would not release the lock.
            unlock()


def _locked(file: IO[str]) -> Callable[[], None]:
    """Lock a file that nobody else has locked; return what unlocks it."""
    try:
        import fcntl
    except ImportError:
        import msvcrt

        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        return lambda: None  # with the file
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return lambda: fcntl.flock(file, fcntl.LOCK_UN)
