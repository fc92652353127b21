"""The reducing end of an all-reduce notes for whom it has waited."""

import asyncio
import time

import pytest
import torch
from hivemind.averaging.partition import AllreduceException

from pipelines.core.averaging.reduce.reducer import RobustPartReducer
from pipelines.core.averaging.reduce.robust_aggregation import AggregationRule

SHAPE = torch.Size([4])
SECONDS = 0.3


def make_reducer(num_parts):
    return RobustPartReducer((SHAPE,) * num_parts, range(3), rule=AggregationRule(name="mean"), recorded_weights={})


async def send(reducer, sender, part):
    return await reducer.accumulate_part(sender, part, torch.full(SHAPE, float(sender)), 1.0)


async def others_wait(reducer, part):
    """Let two of three senders send a part; return their tasks after a while."""
    waiting = [asyncio.create_task(send(reducer, sender, part)) for sender in (0, 1)]
    await asyncio.sleep(SECONDS)
    return waiting


def test_a_round_that_is_given_up_has_waited_for_the_sender_who_never_came():
    async def give_up():
        reducer = make_reducer(num_parts=1)
        waiting = await others_wait(reducer, 0)
        reducer.finalize()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        shares = list(reducer.shares_waited.values())
        time.sleep(SECONDS)
        return results, shares, list(reducer.shares_waited.values())

    results, shares, shares_later = asyncio.run(give_up())
    assert all(isinstance(result, AllreduceException | asyncio.CancelledError) for result in results)
    assert max(shares[:2]) < 0.1 and shares[2] > 0.9
    assert shares_later == shares, "the round is over"


def test_waits_for_a_slow_sender_add_up_over_the_parts_that_came():
    async def finish():
        reducer = make_reducer(num_parts=2)
        for part in range(2):
            waiting = await others_wait(reducer, part)
            averages = await asyncio.gather(*waiting, send(reducer, 2, part))
        return averages, list(reducer.shares_waited.values())

    averages, shares = asyncio.run(finish())
    assert all(torch.equal(average, torch.ones(SHAPE)) for average in averages)
    assert max(shares[:2]) < 0.1 and shares[2] > 0.8


def test_nobody_waits_for_a_sender_who_was_given_up():
    async def give_one_up():
        reducer = make_reducer(num_parts=1)
        waiting = await others_wait(reducer, 0)
        reducer.drop(2)
        return await asyncio.gather(*waiting), list(reducer.shares_waited.values())

    averages, shares = asyncio.run(give_one_up())
    assert averages[0].tolist() == pytest.approx([0.5] * 4)
    assert max(shares) < 0.1


def test_a_sender_whose_stream_is_closed_in_the_middle_of_a_part_takes_nothing_from_the_others():
    async def leave():
        reducer = make_reducer(num_parts=2)
        leaving, staying = await others_wait(reducer, 0)
        leaving.cancel()  # hivemind cancels the handler of a closed stream
        await asyncio.wait([leaving])
        reducer.drop(0)
        first = await asyncio.gather(staying, send(reducer, 2, 0))
        return first, await asyncio.gather(send(reducer, 1, 1), send(reducer, 2, 1))

    first, second = asyncio.run(leave())
    assert [average.tolist() for average in first] == [[pytest.approx((0 + 1 + 2) / 3)] * 4] * 2, "what it sent counts"
    assert [average.tolist() for average in second] == [[pytest.approx((1 + 2) / 2)] * 4] * 2
