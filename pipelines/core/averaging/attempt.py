"""One attempt at a round: how long it may last, who is asked meanwhile, and who meets again if it fails."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

import torch
from hivemind.averaging.allreduce import AveragingMode
from hivemind.averaging.partition import AllreduceException
from hivemind.p2p import PeerID

from pipelines.core.averaging.figures import Round
from pipelines.core.averaging.group.matchmaking import SPREAD_SHARE, GroupSearch
from pipelines.core.averaging.reduce.suspects import Misbehaviour


class Attempt:
    """One attempt at a round. The last one is not given up: it does without whom the others wait for."""

    def __init__(
        self,
        round_: Round,
        modes: Mapping[PeerID, AveragingMode],
        search: GroupSearch,
        *,
        seconds: float | None,
        is_last: bool,
    ) -> None:
        """`modes`: how each member takes part, in the group's order; `seconds`: its time, None: no limit."""
        self.round, self._modes, self._search = round_, modes, search
        self.seconds, self.is_last = seconds, is_last
        self.is_over = self.is_half = self.has_timed_out = False
        """Whether the averages are written; whether some are missing, so that the members meet again; and why."""

        self._began, self.duration = time.monotonic(), 0.0

    async def make(self, tensors: Sequence[torch.Tensor], ask: Callable[[PeerID], Awaitable[object]]) -> None:
        """Take all averages and put them into the tensors, unless some are missing and another attempt follows.

        `ask` calls a member, which answers if it is alive.

        Raises:
            AllreduceException: it has timed out.
        """
        watching = asyncio.create_task(self._watch(ask))
        try:
            async with asyncio.timeout(None if self.is_last else self.seconds) as limit:
                await self.round.collect()
            self.is_half = self.round.share_averaged < 1.0 and not self.is_last
            if not self.is_half:
                await asyncio.get_running_loop().run_in_executor(None, self.round.write, tensors)
                self.is_over = True
        except TimeoutError as error:
            if not limit.expired():
                raise
            self.has_timed_out = True
            self.round.name_late_senders()
            # After this kind of error hivemind looks for a group again, unless the step has ended.
            raise AllreduceException(f"it timed out after {time.monotonic() - self._began:.1f} s") from error
        finally:
            watching.cancel()
            self.duration = time.monotonic() - self._began

    async def _watch(self, ask: Callable[[PeerID], Awaitable[object]]) -> None:
        """Find out after half of the time who is still alive, see `GroupSearch.watch`; in the last attempt do without
        those who are late when all of it is over."""
        if self.seconds is None:
            return
        if self.is_last:
            await asyncio.sleep(self.seconds)
            self.round.drop_late_senders()
        else:
            await asyncio.sleep(self.seconds / 2)
            await self._search.watch(self._members(AveragingMode.NODE), ask)

    def meet_again(self, silent_seconds: float) -> float:
        """Have the members look for each other again, without those who have spoilt it; return for how many seconds.

        `silent_seconds`: after how many silent seconds a sender was given up; 0: never.
        """
        late = self.round.late_senders | self.round.reducers_with(Misbehaviour.BAD_ANSWER)
        apart = SPREAD_SHARE * self.duration
        if self.is_half:  # all that was sent has come, also from who was the last; the others lack the same averages
            late = self.round.reducers_with(Misbehaviour.NO_ANSWER, Misbehaviour.BAD_ANSWER)
            # Others may notice as late as at the end of the attempt, or when a silent sender is given up.
            apart = max(apart, min((self.seconds or math.inf) - self.duration, silent_seconds))
        # Neither clients nor those who only listen lead the group of another attempt.
        followers = self._members(AveragingMode.CLIENT, AveragingMode.AUX)
        self._search.meet_again(tuple(self._modes), followers, self._members(AveragingMode.AUX), late, apart)
        return self._search.seconds_to_meet

    def _members(self, *modes: AveragingMode) -> set[PeerID]:
        return {peer for peer, mode in self._modes.items() if mode in modes}
