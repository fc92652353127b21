"""The reducing end of an all-reduce: gathers one part from all senders, then applies the run's aggregation rule.

hivemind's reducer keeps a running weighted sum, from which a bad input cannot be removed. This one holds only the
inputs of the current part, so its memory is the number of senders times one part.
"""

import asyncio
import math
import time
from collections.abc import Mapping, Sequence

import torch
from hivemind.averaging.partition import AllreduceException, BannedException, TensorPartReducer

from pipelines.core.averaging.reduce.robust_aggregation import (
    FAR_OFF,
    Aggregate,
    AggregationRule,
    aggregate,
    bounded_weights,
    excess_weights,
)


class RobustPartReducer(TensorPartReducer):
    """Aggregates the senders' parts by a rule; parts are finite and of the right shape, weights finite and >= 0."""

    def __init__(
        self,
        part_shapes: Sequence[torch.Size],
        num_senders: int,
        *,
        rule: AggregationRule,
        recorded_weights: Mapping[int, float],
    ) -> None:
        self._rule, self._recorded_weights = rule, recorded_weights
        self._inputs: dict[int, tuple[torch.Tensor, float]] = {}
        self._aggregation: asyncio.Task | None = None
        self._num_parts_far_off = [0] * num_senders
        self._square_sum, self._num_aggregated = 0.0, 0
        self._seconds_waited = [0.0] * num_senders
        self._began = self._part_began = time.monotonic()
        self._final_shares_waited: list[float] | None = None
        self._final_awaited: list[int] = []
        self.excess_weight_senders: set[int] = set()
        self.weights_used: dict[int, dict[int, float]] = {}
        """Of each part, the senders' effective weights, in the order in which their parts were aggregated."""

        super().__init__(part_shapes, num_senders)

    @property
    def far_off_senders(self) -> list[int]:
        """Indices of the senders whose parts were mostly far from what the others sent."""
        return [
            index
            for index, number in enumerate(self._num_parts_far_off)
            if number and 2 * number >= self.num_parts_received[index]
        ]

    @property
    def typical_value(self) -> float:
        """Root mean square of the values that the median peer sent here so far; 0 if nothing was aggregated yet."""
        return math.sqrt(self._square_sum / self._num_aggregated) if self._num_aggregated else 0.0

    @property
    def shares_waited(self) -> list[float]:
        """Per sender, the share of the time so far in which a part sent by others waited for this sender's.

        It is frozen at the round's end: streams torn down then say nothing about senders.
        """
        if self._final_shares_waited is not None:
            return self._final_shares_waited
        now, seconds = time.monotonic(), list(self._seconds_waited)
        for index in self.awaited:
            seconds[index] += now - self._part_began
        return [waited / max(now - self._began, 1e-9) for waited in seconds]

    @property
    def awaited(self) -> list[int]:
        """Indices of the senders whose next part is still to come; frozen at the round's end, too."""
        if self._final_shares_waited is not None:
            return self._final_awaited
        return [
            index
            for index, number in enumerate(self.num_parts_received)
            if number <= self.current_part_index and self.sender_failed_after[index] == float("inf")
        ]

    def reset_accumulators(self) -> None:
        """Begin the next part."""
        super().reset_accumulators()
        self._inputs, self._part_began = {}, time.monotonic()
        if not self.finished.is_set():
            self.accumulator = None  # hivemind's running sum is not used
            if self.num_senders and not self.num_current_senders:
                self.finalize()

    async def accumulate_part(
        self, sender_index: int, part_index: int, tensor_part: torch.Tensor, weight: float = 1.0
    ) -> torch.Tensor:
        """Take a sender's part, wait for those of the others, and return their aggregate.

        Raises:
            BannedException: the sender was dropped in the meantime.
            AllreduceException: the round is over.
        """
        while part_index > self.current_part_index and not self.finished.is_set():
            ended = asyncio.ensure_future(self.finished.wait())
            await asyncio.wait({self.current_part_future, ended}, return_when=asyncio.FIRST_COMPLETED)
            ended.cancel()
        if self.finished.is_set():
            raise AllreduceException("a part came after the round was over")
        if self.sender_failed_after[sender_index] != float("inf"):
            raise BannedException(f"sender {sender_index} was dropped")
        # Counted here and not on arrival: hivemind would wait for ever for a sender that is dropped in between.
        self.num_parts_received[sender_index] += 1
        self._seconds_waited[sender_index] += time.monotonic() - self._part_began
        self._inputs[sender_index] = (tensor_part, weight)
        self.current_part_accumulated_from += 1
        future = self.current_part_future
        self.check_current_part_finished()
        # hivemind cancels the handler of a closed stream, and with it what it waits for, as all others do, too.
        return await asyncio.shield(future)

    def check_current_part_finished(self) -> None:
        """Start the aggregation once all remaining senders have sent their part."""
        if not self.num_current_senders:
            self.finalize()
        elif len(self._inputs) == self.num_current_senders and self._aggregation is None:
            self._aggregation = asyncio.create_task(self._finish_part(dict(self._inputs), self.current_part_future))

    def finalize(self) -> None:
        """End the round for all senders; see `TensorPartReducer`."""
        self._final_awaited, self._final_shares_waited = self.awaited, self.shares_waited
        super().finalize()

    async def _finish_part(self, inputs: dict[int, tuple[torch.Tensor, float]], future: asyncio.Future) -> None:
        try:
            # In a thread, so that other parts can be read and written meanwhile.
            result = await asyncio.get_running_loop().run_in_executor(None, self._aggregate, inputs)
        except Exception as error:  # whatever the error, those who wait for this part must learn of it
            if not future.done():
                future.set_exception(error)
            self.finalize()
            return
        if self.finished.is_set():
            return
        self._judge(list(inputs), result)
        self._aggregation = None
        future.set_result(result.values.view(self.part_shapes[self.current_part_index]))
        self.reset_accumulators()

    def _aggregate(self, inputs: dict[int, tuple[torch.Tensor, float]]) -> Aggregate:
        declared = {sender: weight for sender, (_, weight) in inputs.items()}
        weights = bounded_weights(declared, self._recorded_weights, self._rule.max_weight_ratio)
        self.weights_used[self.current_part_index] = weights
        self.excess_weight_senders |= excess_weights(declared, weights, self._recorded_weights)
        parts = torch.stack([part.reshape(-1) for part, _ in inputs.values()])
        return aggregate(parts, list(weights.values()), self._rule)

    def _judge(self, senders: list[int], result: Aggregate) -> None:
        for sender, excess in zip(senders, result.excess, strict=True):
            self._num_parts_far_off[sender] += excess > FAR_OFF
        self._square_sum += result.typical_norm**2
        self._num_aggregated += result.values.numel()
