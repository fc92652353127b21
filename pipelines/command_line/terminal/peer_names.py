"""Users' names in a peer's log, in all of its processes: `alice (…x3Fg)` in place of a libp2p id."""

import json
import mmap
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from hub_tools.printing.printable import one_line

if TYPE_CHECKING:
    from pipelines.core.swarm.records import SwarmRecords

SECONDS_BETWEEN_NAMES = 20.0
"""How often they are read again."""

NUM_BYTES = 65_536
"""Of memory that the processes share; the names of 700 peers."""

LONGEST_NAME = 40
PEER_ID = re.compile(r"(?<![\w/])(?:Qm[1-9A-HJ-NP-Za-km-z]{44}|12D3KooW[1-9A-HJ-NP-Za-km-z]{44})(?!\w)")
"""In base 58, and not the end of an address: that is for copying."""


class PeerNames:
    """Who is behind which libp2p id, as far as records say it. Make it before hivemind forks; one process writes."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, NUM_BYTES)
        self._text, self._names = b"", dict[str, str]()

    def write(self, names: Mapping[str, str]) -> None:
        """Replace the users' names by libp2p id, for this process and its forks; of too many the last are left out."""
        kept = {peer: one_line(name, LONGEST_NAME) for peer, name in names.items()}
        while len(text := json.dumps(kept).encode()) > NUM_BYTES:
            kept.popitem()
        self._memory[:] = text.ljust(NUM_BYTES)

    def put_into(self, text: str) -> str:
        """Return the text with users' names in place of the ids that are known, and the others' last characters."""
        return PEER_ID.sub(lambda found: self._name(found.group()), text)

    def _name(self, peer: str) -> str:
        text = self._memory[:].strip(b" \0")
        if text != self._text:
            try:
                self._text, self._names = text, json.loads(text)
            except ValueError:  # it is being written
                self._text = b""
        return f"{self._names[peer]} (…{peer[-4:]})" if peer in self._names else f"…{peer[-4:]}"

    def read(self, records: "SwarmRecords") -> None:
        """Replace the names by those in a swarm's records."""
        self.write(users_by_peer(records))


def users_by_peer(records: "SwarmRecords") -> dict[str, str]:
    """Return the user names of a swarm's trainers by libp2p id; without an authority they are what peers say."""
    from pipelines.core.swarm.records import INTRODUCTIONS

    introduced = records.read(INTRODUCTIONS)
    return {peer: introduced[owner].username for owner, peer in records.admissions.peer_ids(introduced).items()}
