"""Results of an averager's rounds, in shared memory that its process writes and the trainer reads."""

import ctypes
import logging
import multiprocessing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from hivemind.p2p import PeerID

from pipelines.core.averaging.division import Link
from pipelines.core.averaging.reduce.suspects import Misbehaviour, Suspect, SuspectLedger

logger = logging.getLogger(__name__)

SENDERS_BYTES = 2**16
"""Room for the ids of about 1,200 senders; more are not remembered."""


@dataclass(frozen=True, kw_only=True)
class AveragingRound:
    """Figures of one averager's rounds, as seen by this peer."""

    num_rounds: int
    """Rounds since the start."""

    share_averaged: float
    """Share of the vector for which the last round returned an average, in [0, 1]; the rest counted as zero."""

    bytes_sent: int
    """Payload this peer sent in all rounds: its own parts and the averages of others' parts."""

    seconds: float
    """Duration of the last all-reduce, without matchmaking."""

    attempt_until: float
    """Until when the all-reduce that runs now may last, in seconds of the monotonic clock; 0: none runs."""

    group_size: int
    """Peers in the last round's group that send gradients; an anchor does not."""

    up_mbit: float
    """What this peer's link was measured to carry in Mbit/s, at most the upload limit; 0: not measured yet."""

    down_mbit: float
    """The same of what it receives."""

    num_withheld: int
    """Rounds to which this peer sent zeros because its own values were not finite."""

    num_incomplete_rounds: int
    """Rounds that averaged a smaller share than the run requires, or failed."""

    senders: tuple[str, ...]
    """libp2p ids of all whose values are in the last whole round's average."""

    suspects: tuple[Suspect, ...]
    """Peers that misbehaved, since the start."""


class Round:
    """One attempt at a round, as its averager sees it."""

    late_offence = Misbehaviour.SILENT
    """What is said of those that the others were waiting for when the attempt was aborted."""

    def __init__(self, senders: Iterable[PeerID], offences: set[tuple[PeerID, Misbehaviour]]) -> None:
        """`senders`: members whose values are averaged; `offences`: who has done what, as it is found out."""
        self.sender_peer_ids, self.offences = list(senders), offences
        self.lost_senders, self.banned_senders = set[PeerID](), set[PeerID]()
        """Those whose values did not arrive, and those whose values could not be used."""

    async def collect(self) -> None:
        """Take all averages. The averager's tensors stay as they are: another attempt begins with the same values."""
        raise NotImplementedError

    def write(self, tensors: Sequence[torch.Tensor]) -> None:
        """Put the averages into the averager's tensors, once no other attempt follows."""
        raise NotImplementedError

    @property
    def late_senders(self) -> set[PeerID]:
        """Those for whom the others are waiting."""
        raise NotImplementedError

    @property
    def share_averaged(self) -> float:
        """Share of the vector whose average has arrived, in [0, 1]."""
        return 1.0

    @property
    def share_reduced(self) -> float:
        """Share of the vector that this peer reduces, in [0, 1]."""
        return 0.0

    def delivered_mbit(self) -> Mapping[bytes, float]:
        """Return the rate at which each peer has delivered parts and answers, in Mbit/s, by peer id."""
        return {}

    def late_mbit(self) -> Mapping[PeerID, float]:
        """Return the rate at which the senders that the others wait for have delivered parts here so far, in Mbit/s."""
        return {}

    def reducers_with(self, *offences: Misbehaviour) -> set[PeerID]:
        """Return who has done one of these."""
        return {peer for peer, offence in self.offences if offence in offences}

    def drop_late_senders(self) -> None:
        """Do without what the others wait for, once the last attempt has taken as long as it may."""

    def name_late_senders(self) -> None:
        """Report those that the others were waiting for when the attempt was aborted."""
        self.offences |= {(peer, self.late_offence) for peer in self.late_senders}

    def end_round(self) -> None:
        """Name who stood out, and remember what later rounds are judged by; once a round has succeeded."""


class SharedFigures:
    """The cells behind `AveragingRound`. Make them before the averager's process is forked."""

    def __init__(self) -> None:
        self.num_rounds = multiprocessing.Value(ctypes.c_int64, 0)
        self.bytes_sent = multiprocessing.Value(ctypes.c_int64, 0)
        self.share_averaged = multiprocessing.Value(ctypes.c_double, 1.0)
        self.seconds = multiprocessing.Value(ctypes.c_double, 0.0)
        self.attempt_until = multiprocessing.Value(ctypes.c_double, 0.0)
        self.group_size = multiprocessing.Value(ctypes.c_int64, 0)
        self.up_mbit = multiprocessing.Value(ctypes.c_double, 0.0)
        self.down_mbit = multiprocessing.Value(ctypes.c_double, 0.0)
        self.num_withheld = multiprocessing.Value(ctypes.c_int64, 0)
        self.num_incomplete_rounds = multiprocessing.Value(ctypes.c_int64, 0)
        self.ledger = SuspectLedger()
        self._senders = multiprocessing.Array(ctypes.c_char, SENDERS_BYTES)

    def read(self) -> AveragingRound:
        """Return the current figures."""
        cells = {name: cell.value for name, cell in vars(self).items() if name not in ("ledger", "_senders")}
        senders = tuple(self._senders.value.decode().split())
        return AveragingRound(**cells, senders=senders, suspects=self.ledger.suspects())

    def write_senders(self, peers: Iterable[str]) -> None:
        """Record whose values are in the last round's average, before its number."""
        text = " ".join(peers).encode()
        self._senders.value = text[: SENDERS_BYTES - 1].rpartition(b" ")[0] if len(text) >= SENDERS_BYTES else text

    def note_link(self, link: Link | None) -> None:
        """Take what this peer's link was measured to carry; None: nothing yet."""
        if link is not None:
            self.up_mbit.value, self.down_mbit.value = link.up, link.down

    def count_bytes(self, number: int) -> None:
        """Add payload sent by this peer."""
        self.bytes_sent.value += number

    def record(self, attempt: Round, seconds: float, share: float, least_share: float) -> None:
        """Take what came of an attempt: the share of the vector that has an average, of the least that is expected."""
        self.num_rounds.value += 1
        self.share_averaged.value = share
        self.seconds.value = seconds
        self.group_size.value = len(attempt.sender_peer_ids)
        self.num_incomplete_rounds.value += share < least_share
        self.ledger.record_round((peer.to_base58(), offence) for peer, offence in attempt.offences)
        if attempt.offences or share < least_share:
            logger.warning(
                "A round averaged %.0f %% of the vector; expected at least %.0f %%. %s", 100 * share, 100 * least_share,
                "; ".join(f"peer {peer.to_base58()} {offence}" for peer, offence in sorted(attempt.offences, key=str)),
            )  # fmt: skip
