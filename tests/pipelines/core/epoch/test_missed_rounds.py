"""A peer stops looking for a group when the others have had the round, and goes through with one that has its group."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hivemind.averaging.control import AveragingStage, StepControl
from hivemind.utils import MPFuture, get_dht_time

from pipelines.core.averaging.group.matchmaking import until_cancelled
from pipelines.core.epoch.missed_rounds import MissedRoundError, leave_round, wait_for_round


def make_control():
    trigger, cancel = MPFuture(), MPFuture()  # before the control: hivemind prepares its class with the first of them
    now = get_dht_time()
    made = StepControl(scheduled_time=now, deadline=now + 60, allow_retries=True, weight=1.0, data_for_gather=b"")
    made.attach(trigger, cancel)
    return made


@pytest.fixture
def control():
    return make_control()


def test_the_search_for_a_group_is_given_up_when_the_others_have_moved_on(control):
    control.stage = AveragingStage.LOOKING_FOR_GROUP
    with pytest.raises(MissedRoundError):
        wait_for_round(control, 30.0, lambda: True)
    assert control.cancelled()


def test_a_round_that_has_its_group_is_waited_for(control):
    control.stage = AveragingStage.RUNNING_ALLREDUCE
    asked = []
    threading.Timer(1.2, control.set_result, args=({},)).start()
    wait_for_round(control, 30.0, lambda: asked.append(1) or True)
    assert asked == [] and control.done()


def test_a_group_that_is_found_while_its_search_is_given_up_is_waited_for(control):
    control.stage = AveragingStage.LOOKING_FOR_GROUP
    control._cancel.cancel()  # as the averager's process does when it has found one
    threading.Timer(1.2, control.set_result, args=({},)).start()
    wait_for_round(control, 30.0, lambda: True)
    assert control.result() == {}


def test_a_group_that_is_found_while_the_others_are_asked_is_waited_for(control):
    control.stage = AveragingStage.LOOKING_FOR_GROUP

    def have_moved_on():
        control.stage = AveragingStage.RUNNING_ALLREDUCE
        threading.Timer(0.6, control.set_result, args=({},)).start()
        return True  # with this peer

    wait_for_round(control, 30.0, have_moved_on)
    assert control.result() == {}


def test_a_search_ends_when_the_step_is_cancelled_and_not_at_the_message_that_comes_before():
    async def cancel_step_by_step():
        control = make_control()  # of this loop, as in the averager's process
        waiting = asyncio.create_task(until_cancelled(control))
        control._cancel.set_result(None)
        done, _ = await asyncio.wait([waiting], timeout=0.2)
        assert not done, "hivemind would look whether the step is cancelled now, and never again"
        MPFuture.cancel(control)
        await asyncio.wait_for(waiting, 5)

    with ThreadPoolExecutor() as thread:  # whose loop is no other test's
        thread.submit(asyncio.run, cancel_step_by_step()).result()


def test_a_search_goes_on_while_the_others_look_too_and_ends_with_the_time_out(control):
    control.stage = AveragingStage.LOOKING_FOR_GROUP
    asked = []
    with pytest.raises(TimeoutError, match="not over after 2 s"):
        wait_for_round(control, 1.6, lambda: bool(asked.append(1)))
    assert len(asked) >= 2 and not control.cancelled()


def test_what_a_round_fails_with_comes_through(control):
    control.set_exception(ConnectionError("the leader has gone"))
    with pytest.raises(ConnectionError, match="the leader has gone"):
        wait_for_round(control, 30.0, lambda: True)


def test_who_leaves_a_round_looks_for_no_group_any_more(control):
    control.stage = AveragingStage.LOOKING_FOR_GROUP
    tagged_along = []
    leave_round(control, tagged_along.append)
    assert control.cancelled() and tagged_along == []


def test_who_leaves_a_round_whose_group_is_found_meanwhile_stays_in_it(control):
    control.stage = AveragingStage.LOOKING_FOR_GROUP
    control._cancel.cancel()
    tagged_along = []
    leave_round(control, tagged_along.append)
    assert tagged_along == [control]


@pytest.mark.parametrize("stage", [AveragingStage.AWAITING_TRIGGER, AveragingStage.RUNNING_ALLREDUCE])
def test_who_leaves_a_round_that_has_its_group_stays_in_it_without_weight(control, stage):
    control.stage = stage
    tagged_along = []
    leave_round(control, tagged_along.append)
    assert not control.cancelled() and tagged_along == [control]


def test_a_round_that_is_over_is_left_already(control):
    control.stage = AveragingStage.RUNNING_ALLREDUCE
    control.set_result({})
    leave_round(control, tag_along=pytest.fail)
