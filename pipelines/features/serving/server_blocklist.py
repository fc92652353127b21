"""Servers that have answered falsely, and until when this machine's clients of a run avoid them.

A peer id costs nothing to make anew. So where the run's authority says which user is behind a server, that user's other
servers are avoided as well. What a server of an open run calls itself counts for nothing: it could be another's name.
"""

import json
import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from hub_tools.atomic_files import write_text_whole
from hub_tools.foreign.json_texts import read_json
from hub_tools.printing.printable import printable
from pipelines.core.averaging.group.blocklist import MOST_REMEMBERED, Blocklist, BlocklistEntry
from pipelines.features.publishing.repository.key_list import utc
from pipelines.features.publishing.repository.organiser import local_folder

logger = logging.getLogger(__name__)

FILE_NAME = "avoided_servers.json"
FIRST_SECONDS, LONGEST_SECONDS = 600.0, 7 * 86_400.0

MOST_NAME_CHARACTERS = 128
"""Of a peer or user with the word in front; records have at most 96."""

MOST_FILE_BYTES = MOST_REMEMBERED * 12 * MOST_NAME_CHARACTERS
"""Room for as many names as are remembered, whatever JSON makes of their characters."""

MOST_NAMED = 8
"""Servers that a line names."""


class ServerBlocklist:
    """Whom one machine's clients of a run avoid. Times are in seconds since 1970."""

    def __init__(self, file: Path | None = None, clock: Callable[[], float] = time.time) -> None:
        """`file` is shared with the run's other clients on this machine; None: all is forgotten with this process."""
        self._memory, self._file, self._clock = Blocklist(FIRST_SECONDS, LONGEST_SECONDS), file, clock
        self._read()

    @classmethod
    def of_run(cls, repository: str) -> "ServerBlocklist":
        """Return those of a run, which are kept in `FILE_NAME` of its folder on this machine."""
        return cls(local_folder("serving", repository) / FILE_NAME)

    def avoid(self, peer: str, user: str = "") -> float:
        """Avoid a server from now on, twice as long as the last time; return until when.

        `user` is whom the authority has admitted with this peer id, in an open run nobody. Who is avoided already is
        not avoided for longer: several answers of the same time may be found false one after the other.
        """
        self._read()
        now = self._clock()
        for name in _names(peer, user):
            if not self._memory.avoids(name, now):
                self._memory.avoid(name, now)
        self._write()
        return self.until(peer, user)

    def until(self, peer: str, user: str = "") -> float:
        """Return until when a server is, or was, avoided; 0: never."""
        return max(self._memory.until(name) for name in _names(peer, user))

    def avoids(self, peer: str, user: str = "") -> bool:
        """Return whether a server is avoided now."""
        return self._clock() < self.until(peer, user)

    def named(self, servers: Iterable[tuple[str, str]]) -> str:
        """Return a sentence that names those of some servers, peers and users, that are avoided now; empty: none is."""
        found = [
            f"{peer[-8:]} until {utc(self.until(peer, user))}" for peer, user in servers if self.avoids(peer, user)
        ]
        others = [f"{len(found) - MOST_NAMED} others"] * (len(found) > MOST_NAMED)
        return f"Avoided, since they have answered falsely: {', '.join(found[:MOST_NAMED] + others)}." if found else ""

    def _read(self) -> None:
        """Take over what other processes have found; what cannot be read is ignored."""
        if self._file is None or not self._file.exists():
            return
        try:
            found = _parsed(read_json(self._file, MOST_FILE_BYTES), self._clock())
        except (OSError, ValueError, TypeError, AttributeError) as error:
            logger.warning("Which servers are avoided cannot be read from %s, which is ignored: %s", self._file, error)
            return
        self._memory.recall(found)

    def _write(self) -> None:
        if self._file is None:
            return
        text = json.dumps({name: [entry.seconds, entry.until] for name, entry in list(self._memory.entries.items())})
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_text_whole(self._file, text)
        except OSError as error:
            logger.warning("Which servers are avoided is forgotten with this process: %s", error)


def blocklist_words(until: float, user: str) -> str:
    """Return who is avoided until when, as a clause about a server; the user is a stranger's text."""
    who = f"it and the other servers of {printable(user)} are" if user else "it is"
    return f"{who} avoided until {utc(until)}"


def _names(peer: str, user: str) -> list[str]:
    return [f"peer {peer}", *([f"user {user}"] if user else [])]


def _parsed(content: Any, now: float) -> dict[str, BlocklistEntry]:
    """Return what a file says; nothing in it lasts longer than what could be written now."""
    entries = {}
    for name, (seconds, until) in content.items():
        if not (name.startswith(("peer ", "user ")) and len(name) <= MOST_NAME_CHARACTERS and seconds > 0 <= until):
            raise ValueError(f"{name[:MOST_NAME_CHARACTERS]!r} is avoided for {seconds!r} s until {until!r}")
        longest = float(min(seconds, LONGEST_SECONDS))
        entries[name] = BlocklistEntry(seconds=longest, until=float(min(until, now + longest)))
    if len(entries) > MOST_REMEMBERED:
        raise ValueError(f"{len(entries)} servers and users; expected at most {MOST_REMEMBERED}")
    return entries
