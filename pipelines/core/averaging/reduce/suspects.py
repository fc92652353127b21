"""Misbehaving peers: what they did, how often, and the ledger that counts it."""

import ctypes
import json
import multiprocessing
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

LEDGER_BYTES = 2**15
"""Size of the ledger in shared memory: about 200 entries, of which the most frequent are kept."""


class Misbehaviour(StrEnum):
    """What a peer did wrong in a round. One offence proves no ill will: machines and links fail too."""

    NOT_FINITE = "sent values that are not finite"
    BAD_WEIGHT = "declared a weight that is not a finite, non-negative number"
    EXCESS_WEIGHT = "declared more samples than its records make plausible"
    UNSIGNED = "sent a part that it has not signed"
    NO_WEIGHT = "sent values without weight"
    WRONG_SHAPE = "sent a part of the wrong shape"
    UNREADABLE = "sent a part that cannot be read"
    REPLAYED = "sent a part again"
    FAR_OFF = "sent values far from what most peers sent"
    SILENT = "stopped sending"
    NO_ANSWER = "did not answer"
    BAD_ANSWER = "answered with an impossible average"
    FALSE_AVERAGE = "answered with a false average"
    NO_PROOF = "did not show what its average was made of"
    LEFT_OUT = "left a part out of its average that it had received"
    FALSE_ACCUSATION = "accused a peer without a reason"
    NOT_A_SENDER = "sent parts as a helper"
    STALLED = "accepted followers and never began"
    WITHHELD = "announced a contribution that nobody was given"
    ALTERED = "gave other bytes than those it was asked for"
    NOT_PASSED_ON = "did not pass on what it had accepted"
    NOT_UNDERSTOOD = "told a group what cannot be understood"


class PartRefusedError(ValueError):
    """A tensor part from the network is invalid; `offence` says how."""

    def __init__(self, offence: Misbehaviour, seen: str) -> None:
        super().__init__(f"A peer {offence}: {seen}.")
        self.offence = offence


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """One peer and one kind of offence."""

    peer_id: str
    """libp2p peer id in base 58; the connection proves it."""

    offence: Misbehaviour
    num_rounds: int
    """Rounds in which this peer was seen doing it, since the start."""


class SuspectLedger:
    """Counts offences; written by one process, read by the process that forked it."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, Misbehaviour]] = Counter()
        self._shared = multiprocessing.Array(ctypes.c_char, LEDGER_BYTES)

    def record_round(self, offences: Iterable[tuple[str, Misbehaviour]]) -> None:
        """Count one round's offences; the same offence of a peer counts once per round."""
        self._counts.update(set(offences))
        entries = [(peer, offence.name, number) for (peer, offence), number in self._counts.most_common()]
        while len(text := json.dumps(entries).encode()) >= LEDGER_BYTES:
            entries = entries[: len(entries) // 2]
        self._shared.value = text

    def suspects(self) -> tuple[Suspect, ...]:
        """Return all suspects so far, most frequent first."""
        entries = json.loads(self._shared.value or b"[]")
        return tuple(
            Suspect(peer_id=peer, offence=Misbehaviour[name], num_rounds=number) for peer, name, number in entries
        )
