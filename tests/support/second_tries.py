"""What a test that is run again must not find: the repositories that its first try left on the embedded Hub."""

import shutil
import sqlite3
from pathlib import Path


def newest_repository(root: Path) -> int:
    """Return the number of the newest repository of the Hub in this folder."""
    with sqlite3.connect(root / "hub.sqlite3") as connection:
        return connection.execute("SELECT coalesce(max(id), 0) FROM repositories").fetchone()[0]


def set_aside(root: Path, newest: int) -> None:
    """Give those that are newer another name, and forget what commands remember of them on this machine."""
    with sqlite3.connect(root / "hub.sqlite3", timeout=30) as connection:
        rows = connection.execute("SELECT id, namespace || '-' || name FROM repositories WHERE id > ?", (newest,))
        for number, name in rows.fetchall():
            connection.execute("UPDATE repositories SET name = 'former-' || id WHERE id = ?", (number,))
            for path in (root / "client_home" / "dalle-collab").glob(f"*/*{name}*"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
