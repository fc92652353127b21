"""What a round and its search hold on to, and what they let go, whenever garbage is collected."""

import asyncio
import gc
import weakref

import torch
from group_searches import MEMBERS, NOTHING_GATHERED, make_search
from hivemind.averaging.control import AveragingStage, StepControl
from hivemind.averaging.group_info import GroupInfo
from hivemind.utils import MPFuture, get_dht_time

from pipelines.core.averaging.averager import SwarmAverager


def make_step():
    return StepControl(get_dht_time(), get_dht_time() + 60, False, 1.0, NOTHING_GATHERED)


async def make_lone_averager(dht, look_for_group):
    async def aggregate(group_info, **kwargs):
        return "averaged"

    averager = SwarmAverager(
        [torch.ones(2)],
        dht=dht,
        admission=None,
        prefix="alone",
        start=False,
        min_matchmaking_time=1.0,
    )
    averager._matchmaking, _ = await make_search(dht)
    averager._matchmaking.look_for_group, averager._aggregate_with_group = look_for_group, aggregate
    averager._pending_groups_registered = asyncio.Event()
    return averager


def test_a_step_that_has_ended_is_gone_although_no_garbage_is_collected(dht):
    async def find_at_once(step):
        step.allow_allreduce()
        return GroupInfo(b"group", MEMBERS, (b"",) * len(MEMBERS))

    async def average_twice():
        averager = await make_lone_averager(dht, find_at_once)
        seen = []
        for _ in range(2):
            step = make_step()
            seen.append(weakref.ref(step))
            await asyncio.wait_for(averager._step(step=step, future_for_init=MPFuture()), 10)
            assert step.result() == "averaged"
            del step
        await asyncio.sleep(0.05)
        return seen[0]() is None

    gc.disable()
    try:
        assert asyncio.run(average_twice())
    finally:
        gc.enable()


class SilentDHT:
    """Answers nothing until it is told to, and like hivemind's does not keep what waits for its answers."""

    def __init__(self):
        self.answers = []

    def get(self, *_, **__):
        return self._wait_for_answer()

    def store(self, *_, **__):
        return self._wait_for_answer()

    def _wait_for_answer(self):
        answer = MPFuture()
        self.answers.append(weakref.ref(answer))
        return answer

    def answer(self):
        for answer in [found for held in self.answers if (found := held()) is not None and not found.done()]:
            answer.set_result(None)


def test_a_search_that_was_given_up_frees_the_way_for_the_next_one_whenever_garbage_is_collected(dht):
    async def give_up_and_look_again():
        matchmaking, search = await make_search(dht)
        silent = search._key_manager.dht = SilentDHT()
        search.begin()
        control = make_step()
        control.attach(MPFuture(), MPFuture())
        looking = asyncio.create_task(matchmaking.look_for_group(control))
        while len(silent.answers) < 2:  # who else looks, and that this peer does
            await asyncio.sleep(0.01)
        looking.cancel()
        while len(silent.answers) < 3:  # that it looks no more
            await asyncio.sleep(0.01)
        del looking
        gc.collect()
        silent.answer()
        async with asyncio.timeout(10), matchmaking.lock_looking_for_group, matchmaking.potential_leaders.lock_search:
            return True

    assert asyncio.run(give_up_and_look_again())


def test_a_round_waits_for_its_gradient_whenever_garbage_is_collected(dht):
    async def find_at_once(step):
        return GroupInfo(b"group", MEMBERS, (b"",) * len(MEMBERS))

    async def collect_garbage_before_the_gradient_comes():
        averager = await make_lone_averager(dht, find_at_once)
        control, begun = make_step(), MPFuture()
        asyncio.create_task(averager._step(step=control, future_for_init=begun))  # noqa: RUF006 - as hivemind does
        trigger = weakref.ref((await begun)[0])
        while control.stage != AveragingStage.AWAITING_TRIGGER:
            await asyncio.sleep(0.01)
        held = weakref.ref(control)
        del control, begun
        gc.collect()
        control = held()
        trigger().set_result(None)
        return await asyncio.wait_for(control, 10)

    assert asyncio.run(collect_garbage_before_the_gradient_comes()) == "averaged"
