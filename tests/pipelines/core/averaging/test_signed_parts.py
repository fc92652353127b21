"""Answers of a round that members pass on: who signed what, what is asked for, and what is given to whom."""

import asyncio
import hashlib
import json
import math
from dataclasses import replace

import pytest
from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2
from hivemind.utils import MSGPackSerializer

from pipelines.core.averaging.wire.signed_parts import (
    RoundAnswers,
    RoundInputs,
    WeighedInput,
    answer_statement,
    answers_request,
    part_statement,
    read_answers_request,
    read_seal,
    seal,
)

GROUP, REDUCER, OTHER, STRANGER = b"group", PeerID(b"reducer"), PeerID(b"other"), PeerID(b"stranger")
USED = WeighedInput(sender=OTHER, declared=2.0, weight=1.0, digest=bytes(32))
SIGNED = dict(group_id=GROUP, reducer=REDUCER, part_index=3, buffer=b"values", contributions=[USED])


def message(number):
    return averaging_pb2.AveragingData(code=averaging_pb2.AVERAGED_PART, weight=number)


@pytest.mark.parametrize(
    "change",
    [dict(group_id=b"later"), dict(reducer=OTHER), dict(part_index=4), dict(buffer=b"other values")]
    + [dict(contributions=used) for used in ([], [USED, USED])]
    + [
        dict(contributions=[replace(USED, **change)])
        for change in (dict(sender=REDUCER), dict(declared=1.0), dict(weight=2.0), dict(digest=b"x" * 32))
    ],
)
def test_a_signature_under_one_answer_is_of_no_use_for_another(change):
    assert answer_statement(**SIGNED) != answer_statement(**SIGNED | change)


def test_an_answer_and_a_place_in_a_group_are_never_signed_alike():
    purpose, _, values = answer_statement(**SIGNED).partition(b"\0")
    assert purpose == b"dalle-collab 2 answer"
    used = MSGPackSerializer.dumps([[OTHER.to_bytes(), 2.0, 1.0, bytes(32)]])
    digests = [hashlib.sha256(content).digest() for content in (b"values", used)]
    named = [GROUP.hex(), REDUCER.to_bytes().hex(), 3]
    assert json.loads(values) == [*named, *(digest.hex() for digest in digests)]


def test_what_an_answer_was_made_of_is_read_as_it_was_written():
    assert read_seal(seal(b"signature", [USED])) == (b"signature", (USED,))
    assert read_seal(seal(b"", [])) == (b"", ())


@pytest.mark.parametrize(
    "listed",
    [
        [USED, USED],
        [replace(USED, weight=-1.0)],
        [replace(USED, weight=math.nan)],
        [replace(USED, declared=math.inf)],
        [replace(USED, declared=2)],
        [replace(USED, digest=b"short")],
    ],
)
def test_a_list_that_no_honest_reducer_writes_is_refused(listed):
    with pytest.raises(ValueError, match="does not go with an answer"):
        read_seal(seal(b"signature", listed))


@pytest.mark.parametrize("content", [b"", b"signature", seal("text", []), MSGPackSerializer.dumps([b"", b"\xc1"])])
def test_what_is_no_seal_is_refused(content):
    with pytest.raises(ValueError, match="does not go with an answer"):
        read_seal(content)


def test_a_part_is_signed_for_one_reducer_one_round_and_one_weight():
    signed = dict(group_id=GROUP, sender=OTHER, reducer=REDUCER, part_index=3, weight=2, digest=bytes(32))
    statement = part_statement(**signed)
    assert statement.startswith(b"dalle-collab 2 part\0")
    assert part_statement(**signed | dict(weight=2.0)) == statement, "as it arrives"
    for change in (
        dict(group_id=b"later"), dict(sender=REDUCER), dict(reducer=OTHER), dict(part_index=4), dict(weight=3),
        dict(digest=b"x" * 32),
    ):  # fmt: skip
        assert part_statement(**signed | change) != statement


def test_a_member_sees_the_inputs_of_one_part_as_they_were_used_and_a_stranger_none():
    inputs = RoundInputs([REDUCER, OTHER])
    for part in range(3):
        inputs.keep(part, REDUCER, message(10 + part), bytes(32))
        inputs.keep(part, OTHER, message(20 + part), b"x" * 32)
    assert [c.sender for c in inputs.use(1, {OTHER: 5.0, REDUCER: 6})] == [OTHER, REDUCER]
    assert [c.weight for c in inputs.use(0, {OTHER: 5.0})] == [5.0], "the other one was left out"
    inputs.keep(0, REDUCER, message(30), bytes(32))  # too late
    assert inputs.shown_to(STRANGER, [1]) == ()
    assert inputs.shown_to(OTHER, [0, 1]) == ()
    assert [shown.weight for shown in inputs.shown_to(OTHER, [1])] == [21, 11]
    assert inputs.shown_to(OTHER, [0]) == ()
    assert [shown.weight for shown in inputs.shown_to(REDUCER, [0])] == [20]


def test_a_request_is_read_as_it_was_written():
    assert read_answers_request(answers_request(GROUP, REDUCER, range(2, 5))) == (GROUP, REDUCER, [2, 3, 4])


@pytest.mark.parametrize(
    "content",
    [b"", b"\xc1", MSGPackSerializer.dumps(7), MSGPackSerializer.dumps([GROUP, b"r"])]
    + [MSGPackSerializer.dumps([GROUP, b"r", parts]) for parts in (7, ["1"], [None], {"a": 1})],
)
def test_nonsense_is_refused(content):
    with pytest.raises(ValueError, match="not a request"):
        read_answers_request(averaging_pb2.DownloadData(metadata=content))


END = "end"


async def collected(answers, member, reducer, parts):
    """The weights of the answers, by which they can be told apart here, and the mark that no more will come."""
    given = [found async for found in answers.given_to(member, reducer, parts)]
    return [found.weight if found.code == averaging_pb2.AVERAGED_PART else END for found in given]


def test_answers_are_given_as_they_come_until_no_more_can_come():
    async def run():
        answers = RoundAnswers([REDUCER, OTHER])
        answers.keep(REDUCER, 1, message(1))
        given = answers.given_to(OTHER, REDUCER, [1, 2, 3])
        assert (await anext(given)).weight == 1
        coming = asyncio.ensure_future(anext(given))
        await asyncio.sleep(0)
        answers.keep(REDUCER, 3, message(3))
        await asyncio.sleep(0)
        assert not coming.done(), "they are given in order"
        answers.keep(REDUCER, 2, message(2))
        assert (await coming).weight == 2
        assert [answer.weight async for answer in given] == [3]
        last = asyncio.ensure_future(collected(answers, OTHER, REDUCER, [4]))
        await asyncio.sleep(0)
        assert not last.done(), "another answer may still arrive"
        answers.end(REDUCER)
        assert await last == [END]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("parts", "expected"), [([0, 1, 2], [0, 1, 2]), ([2, 2, 2], [2]), ([1, 0], [1, 0]), ([-1], [END]), ([2**70], [END])]
)
def test_nobody_gets_an_answer_twice(parts, expected):
    async def run():
        answers = RoundAnswers([REDUCER, OTHER])
        for number in range(3):
            answers.keep(REDUCER, number, message(number))
        answers.end(REDUCER)
        assert await collected(answers, OTHER, REDUCER, parts) == expected
        assert set(await collected(answers, OTHER, REDUCER, parts)) <= {END}

    asyncio.run(run())


@pytest.mark.parametrize(("member", "reducer"), [(STRANGER, REDUCER), (OTHER, STRANGER)])
def test_only_of_members_and_only_to_members(member, reducer):
    assert asyncio.run(collected(RoundAnswers([REDUCER, OTHER]), member, reducer, [0])) == []
