"""The reducing end of an all-reduce: gathers one part from all senders, then applies the run's aggregation rule.

A running weighted sum, such as hivemind keeps, would be spoilt by one bad input. Here the inputs of the current part
are held, so the memory is the number of senders times one part.
"""

import asyncio
import math
import time
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Generic, TypeVar

import torch
from hivemind.averaging.partition import AllreduceException, BannedException

from pipelines.core.averaging.reduce.robust_aggregation import (
    FAR_OFF,
    Aggregate,
    AggregationRule,
    aggregate,
    bounded_weights,
    excess_weights,
)

Sender = TypeVar("Sender", bound=Hashable)


class RobustPartReducer(Generic[Sender]):
    """Aggregates the senders' parts by a rule; parts are finite and of the right shape, weights finite and >= 0."""

    def __init__(
        self,
        part_shapes: Sequence[torch.Size],
        senders: Collection[Sender],
        *,
        rule: AggregationRule,
        recorded_weights: Mapping[Sender, float],
    ) -> None:
        self.part_shapes, self._rule, self._recorded_weights = part_shapes, rule, recorded_weights
        self._staying = set(senders)
        self._num_received, self._num_far_off = dict.fromkeys(senders, 0), dict.fromkeys(senders, 0)
        self._square_sum, self._num_aggregated = 0.0, 0
        self._seconds_waited = dict.fromkeys(senders, 0.0)
        self._at_the_end: tuple[set[Sender], dict[Sender, float]] | None = None
        self.finished = asyncio.Event()
        self.excess_weight_senders: set[Sender] = set()
        self.weights_used: dict[int, dict[Sender, float]] = {}
        """Of each part, the senders' effective weights, in the order in which their parts were aggregated."""

        self._part_index, self._began = -1, time.monotonic()
        self._expected, self._inputs = set[Sender](), dict[Sender, tuple[torch.Tensor, float]]()
        self._average: asyncio.Future[torch.Tensor] = asyncio.Future()
        self._aggregation: asyncio.Task[None] | None = None
        self._begin_part()

    def _begin_part(self) -> None:
        if self._part_index == len(self.part_shapes) - 1:
            self.finalize()
            return
        self._part_index, self._part_began = self._part_index + 1, time.monotonic()
        self._expected, self._inputs = set(self._staying), {}
        self._average, self._aggregation = asyncio.Future(), None
        if not self._expected:
            self.finalize()

    @property
    def far_off_senders(self) -> list[Sender]:
        """Senders whose parts were mostly far from what the others sent."""
        return [
            sender
            for sender, number in self._num_far_off.items()
            if number and 2 * number >= self._num_received[sender]
        ]

    @property
    def typical_value(self) -> float:
        """Root mean square of the values that the median peer sent here so far; 0 if nothing was aggregated yet."""
        return math.sqrt(self._square_sum / self._num_aggregated) if self._num_aggregated else 0.0

    @property
    def shares_waited(self) -> dict[Sender, float]:
        """Per sender, the share of the time so far in which a part sent by others waited for this sender's.

        It is frozen at the round's end: streams torn down then say nothing about senders.
        """
        if self._at_the_end is not None:
            return self._at_the_end[1]
        now, awaited = time.monotonic(), self.awaited
        return {
            sender: (seconds + (now - self._part_began if sender in awaited else 0.0)) / max(now - self._began, 1e-9)
            for sender, seconds in self._seconds_waited.items()
        }

    @property
    def awaited(self) -> set[Sender]:
        """Senders whose next part is still to come; frozen at the round's end, too."""
        return self._expected - self._inputs.keys() if self._at_the_end is None else self._at_the_end[0]

    async def accumulate_part(
        self, sender: Sender, part_index: int, tensor_part: torch.Tensor, weight: float = 1.0
    ) -> torch.Tensor:
        """Take a sender's part, wait for those of the others, and return their aggregate.

        Raises:
            BannedException: the sender was dropped in the meantime.
            AllreduceException: the round is over.
        """
        while part_index > self._part_index and not self.finished.is_set():
            ended = asyncio.create_task(self.finished.wait())
            waiting: set[asyncio.Future] = {self._average, ended}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            ended.cancel()
        if self.finished.is_set():
            raise AllreduceException("a part came after the round was over")
        if sender not in self._staying:
            raise BannedException(f"sender {sender} was dropped")
        self._num_received[sender] += 1
        self._seconds_waited[sender] += time.monotonic() - self._part_began
        self._inputs[sender], average = (tensor_part, weight), self._average
        self._aggregate_if_complete()
        # hivemind cancels the handler of a closed stream, and with it what it waits for, as all others do, too.
        return await asyncio.shield(average)

    def drop(self, sender: Sender) -> None:
        """Do without the parts that a sender has not given yet."""
        self._staying.discard(sender)
        if not self.finished.is_set() and sender not in self._inputs:
            self._expected.discard(sender)
            self._aggregate_if_complete()

    def finalize(self) -> None:
        """End the round for all senders."""
        if not self.finished.is_set():
            self._at_the_end = self.awaited, self.shares_waited
            self._average.cancel()
            self.finished.set()

    def _aggregate_if_complete(self) -> None:
        if not self._expected:
            self.finalize()
        elif len(self._inputs) == len(self._expected) and self._aggregation is None:
            self._aggregation = asyncio.create_task(self._finish_part(dict(self._inputs), self._average))

    async def _finish_part(self, inputs: dict[Sender, tuple[torch.Tensor, float]], average: asyncio.Future) -> None:
        try:
            # In a thread, so that other parts can be read and written meanwhile.
            result = await asyncio.get_running_loop().run_in_executor(None, self._aggregate, inputs)
        except Exception as error:  # whatever the error, those who wait for this part must learn of it
            if not average.done():
                average.set_exception(error)
            self.finalize()
            return
        if self.finished.is_set():
            return
        for sender, excess in zip(inputs, result.excess, strict=True):
            self._num_far_off[sender] += excess > FAR_OFF
        self._square_sum += result.typical_norm**2
        self._num_aggregated += result.values.numel()
        average.set_result(result.values.view(self.part_shapes[self._part_index]))
        self._begin_part()

    def _aggregate(self, inputs: dict[Sender, tuple[torch.Tensor, float]]) -> Aggregate:
        declared = {sender: weight for sender, (_, weight) in inputs.items()}
        weights = bounded_weights(declared, self._recorded_weights, self._rule.max_weight_ratio)
        self.weights_used[self._part_index] = weights
        self.excess_weight_senders |= excess_weights(declared, weights, self._recorded_weights)
        parts = torch.stack([part.reshape(-1) for part, _ in inputs.values()])
        return aggregate(parts, list(weights.values()), self._rule)
