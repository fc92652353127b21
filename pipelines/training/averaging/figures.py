"""What an averager's rounds came to, in memory that its own process writes and the trainer reads."""

import ctypes
import multiprocessing
from dataclasses import dataclass

from pipelines.training.averaging.reduce.suspects import Suspect, SuspectLedger


@dataclass(frozen=True, kw_only=True)
class AveragingRound:
    """What the last rounds of one averager moved, seen from this peer."""

    num_rounds: int
    """Rounds since the start."""

    share_averaged: float
    """Share of the vector for which the last round returned an average, in [0, 1]; the rest kept local values."""

    bytes_sent: int
    """Payload this peer sent in all rounds: its own parts and the averages of others' parts."""

    seconds: float
    """Duration of the last all-reduce, without finding the group."""

    group_size: int
    """Peers in the last round's group, this one included."""

    num_senders_lost: int
    """Peers that the last round left out because they stopped sending; they lack a part of the average."""

    num_withheld: int
    """Rounds into which this peer sent zeros because its own values were not finite."""

    num_incomplete_rounds: int
    """Rounds that averaged a smaller share than the run demands, or failed."""

    suspects: tuple[Suspect, ...]
    """Peers that did what honest ones do not, since the start."""


class SharedFigures:
    """The cells behind `AveragingRound`. Make them before the averager's process is forked."""

    def __init__(self) -> None:
        self.num_rounds = multiprocessing.Value(ctypes.c_int64, 0)
        self.bytes_sent = multiprocessing.Value(ctypes.c_int64, 0)
        self.share_averaged = multiprocessing.Value(ctypes.c_double, 1.0)
        self.seconds = multiprocessing.Value(ctypes.c_double, 0.0)
        self.group_size = multiprocessing.Value(ctypes.c_int64, 0)
        self.num_senders_lost = multiprocessing.Value(ctypes.c_int64, 0)
        self.num_withheld = multiprocessing.Value(ctypes.c_int64, 0)
        self.num_incomplete_rounds = multiprocessing.Value(ctypes.c_int64, 0)
        self.ledger = SuspectLedger()

    def read(self) -> AveragingRound:
        """Return the figures as they are now."""
        cells = {name: cell.value for name, cell in vars(self).items() if name != "ledger"}
        return AveragingRound(**cells, suspects=self.ledger.suspects())

    def count_bytes(self, number: int) -> None:
        """Add payload that leaves this peer."""
        self.bytes_sent.value += number
