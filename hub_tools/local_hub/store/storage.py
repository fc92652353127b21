"""All that a Hub keeps, below one folder."""

import contextlib
import os
import secrets
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from .database import Database
from .object_store import ObjectStore


class HubStorage:
    """The database, the contents and the signing key of the Hub in `root`. Several processes may use one root."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.database = Database(root / "hub.sqlite3")
        self.objects = ObjectStore(root)
        self.clock_offset_seconds = 0.0
        self.full_buckets: set[str] = set()

    def now(self) -> datetime:
        """Return the time by this Hub's clock, which a test may have set wrong."""
        return datetime.now(UTC) + timedelta(seconds=self.clock_offset_seconds)

    def prepare(self) -> "HubStorage":
        """Create what is missing, readable only by this user, and return self."""
        self.root.mkdir(parents=True, exist_ok=True)
        self.root.chmod(0o700)
        self.objects.prepare()
        self.database.prepare()
        return self

    def signing_key(self) -> bytes:
        """Return the key that signs upload addresses; it survives a restart, so running uploads do too."""
        path = self.root / "signing_key"
        if not path.exists():
            temporary = self.objects.incoming_path()
            temporary.touch(mode=0o600)
            temporary.write_bytes(secrets.token_bytes(32))
            with contextlib.suppress(FileExistsError):
                os.link(temporary, path)
            temporary.unlink()
        return path.read_bytes()

    @contextlib.contextmanager
    def sole_server(self) -> Iterator[None]:
        """Hold the root for one server process, where the system has such locks: Windows does not.

        Raises:
            ValueError: another process serves it.
        """
        with (self.root / "server.lock").open("w") as lock:
            try:
                import fcntl

                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                message = f"Another Hub already serves {self.root}. Stop it, or choose another folder with --root"
                raise ValueError(message) from error
            except ImportError:
                pass
            self.objects.clear_incoming()
            yield
