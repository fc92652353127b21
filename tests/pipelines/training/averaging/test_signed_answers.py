"""Answers of a round that members pass on: who signed what, what is asked for, and what is given to whom."""

import asyncio
import hashlib

import pytest
from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2
from hivemind.utils import MSGPackSerializer

from pipelines.training.averaging.wire.signed_answers import (
    RoundAnswers,
    answer_statement,
    answers_request,
    read_answers_request,
)

GROUP, REDUCER, OTHER, STRANGER = b"group", PeerID(b"reducer"), PeerID(b"other"), PeerID(b"stranger")
SIGNED = dict(group_id=GROUP, reducer=REDUCER, part_index=3, buffer=b"values")


def message(number):
    return averaging_pb2.AveragingData(code=averaging_pb2.AVERAGED_PART, weight=number)


@pytest.mark.parametrize(
    "change", [dict(group_id=b"later"), dict(reducer=OTHER), dict(part_index=4), dict(buffer=b"other values")]
)
def test_a_signature_under_one_answer_is_of_no_use_for_another(change):
    assert answer_statement(**SIGNED) != answer_statement(**SIGNED | change)


def test_an_answer_and_a_place_in_a_group_are_never_signed_alike():
    domain, *fields = MSGPackSerializer.loads(answer_statement(**SIGNED))
    assert domain == b"dalle-collab answer 1"
    assert fields == [GROUP, REDUCER.to_bytes(), 3, hashlib.sha256(b"values").digest()]


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
