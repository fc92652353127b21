"""What streams of every task share."""

import time

import pytest

from hub_tools.waiting.outages import through_outages
from pipelines.tasks.streaming import is_held_out, passes_through_outages


def test_a_pass_that_the_hubs_absence_ends_is_followed_by_the_next(caplog):
    def one_pass(number):
        yield from (number, number)
        if number < 2:
            raise ConnectionError("Server Disconnected")
        if number == 3:
            raise ValueError("records are damaged")

    batches = passes_through_outages(one_pass, pauses=(0.0,))
    assert [next(batches) for _ in range(8)] == [0, 0, 1, 1, 2, 2, 3, 3]
    with pytest.raises(ValueError, match="records are damaged"):
        next(batches)
    assert caplog.text.count("The dataset cannot be read (Server Disconnected). Retrying") == 2


def test_pauses_grow_until_there_is_a_batch_again(caplog):
    def one_pass(number):
        if number in (0, 1, 2, 4):
            raise TimeoutError("the Hub does not answer")
        yield number

    batches = passes_through_outages(one_pass, pauses=(0.0, 0.1))
    started = time.monotonic()
    assert [next(batches) for _ in range(2)] == [3, 5]
    assert 0.2 <= time.monotonic() - started < 2
    assert [record.args[1] for record in caplog.records] == [0.0, 0.1, 0.1, 0.0]


def test_a_record_is_held_out_by_its_content_alone():
    contents = [f"record {number}".encode() for number in range(2000)]
    held_out = [content for content in contents if is_held_out(content, 0.1)]
    assert 150 < len(held_out) < 250
    assert all(is_held_out(content, 0.2) for content in held_out), "a larger share holds out these and more"
    assert not any(is_held_out(content, 0.0) for content in contents)


def test_an_outage_is_waited_for_a_few_times_and_a_mistake_is_not():
    left = [ConnectionError("away"), ConnectionError("away")]

    def read():
        if left:
            raise left.pop()
        return "text"

    assert through_outages(read, pauses=(0, 0), for_ever=False) == "text"
    left = [ConnectionError("away")] * 3
    with pytest.raises(ConnectionError, match="away"):
        through_outages(read, pauses=(0, 0), for_ever=False)
    left = [ValueError("wrong")] * 2
    with pytest.raises(ValueError, match="wrong"):
        through_outages(read, pauses=(0,), for_ever=False)
    assert len(left) == 1
