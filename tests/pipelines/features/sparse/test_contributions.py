"""Contributions: how they are passed on, and the mean that all members of a group come to."""

import asyncio
import hashlib
import statistics
import struct
from dataclasses import replace
from types import MappingProxyType

import pytest
import torch
from contribution_material import CODEC, EPOCH, SIZES, content, peer
from hivemind.averaging.allreduce import AveragingMode
from hivemind.averaging.partition import AllreduceException
from hivemind.proto import averaging_pb2, runtime_pb2
from hivemind.utils import MSGPackSerializer
from hivemind.utils.asyncio import as_aiter

from pipelines.core.admission.averaging_gate import GroupSignatures
from pipelines.core.averaging.group.blocklist import Blocklist
from pipelines.core.averaging.reduce.suspects import Misbehaviour
from pipelines.features.sparse.announcement import (
    Announcement,
    agreed_records,
)
from pipelines.features.sparse.codec import LEVELS_START, MARK, MOST_SAMPLES
from pipelines.features.sparse.contribution_cache import ContributionCache
from pipelines.features.sparse.mean import mean
from pipelines.features.sparse.round import ContributionRound, ContributionTerms
from pipelines.features.sparse.transfers import AlteredError, NotHeldError, Transfers

MAX_WEIGHT_RATIO = 8.0


class Wire:
    """Members' deliveries, each reached by the others' calls as over the network."""

    def __init__(self):
        self.transfers = {}
        self.taken = []
        self.num_bytes = dict.fromkeys(range(256), 0)

    def add(self, member, kind=Transfers):
        def count(number):
            self.num_bytes[member] = self.num_bytes.get(member, 0) + number

        cache = ContributionCache(SIZES)
        cache.begin_round(EPOCH)
        self.transfers[member] = kind(
            cache, lambda other: _Stub(self.transfers.get(other), member), count_bytes=count, upload_limit=None,
            sign_receipt=lambda digest, epoch: b"receipt",
            note_taken=lambda digest: self.taken.append((member, digest)),
        )  # fmt: skip
        return self.transfers[member]


class _Stub:
    def __init__(self, answering, caller):
        self._answering, self._caller = answering, caller

    async def rpc_take_contribution(self, request):
        return self._reached().pass_on(self._caller, request)

    async def rpc_give_contribution(self, stream):
        return self._reached().receive(self._caller, stream)

    def _reached(self):
        if self._answering is None:
            raise ConnectionError("failed to dial")
        return self._answering


class Omitting(Transfers):
    async def pass_on(self, taker, request):
        yield averaging_pb2.DownloadData()


class Altering(Transfers):
    async def pass_on(self, taker, request):
        async for message in super().pass_on(taker, request):
            if message.tensor_part.buffer:
                message.tensor_part.buffer = bytes(len(message.tensor_part.buffer))
            yield message


def test_a_gift_can_be_taken_from_who_has_it_and_its_owner_shows_the_receipt():
    async def travel():
        wire = Wire()
        owner, _, other = (wire.add(peer(number)) for number in (1, 2, 3))
        announcement = replace(Announcement.of(content(1), {}), fan_out=peer(2))
        owner.cache.put(announcement.digest, content(1), EPOCH)
        with pytest.raises(NotHeldError):
            await other.take(peer(2), announcement, 5.0, is_patient=False)
        await owner.give(peer(2), announcement, EPOCH)
        assert (await other.take(peer(2), announcement, 5.0, is_patient=False)).content == content(1)
        delivered = await other.take(peer(1), announcement, 5.0, is_patient=False)
        assert (delivered.content, delivered.receipt) == (content(1), b"receipt")
        with pytest.raises(ConnectionError):
            await owner.give(peer(2), announcement, EPOCH)  # it has taken one of this round

    asyncio.run(asyncio.wait_for(travel(), 60))


def test_other_bytes_than_those_asked_for_are_noticed():
    async def travel():
        wire = Wire()
        liar, other = wire.add(peer(1), Altering), wire.add(peer(2))
        announcement = Announcement.of(content(1), {})
        liar.cache.put(announcement.digest, content(1), EPOCH)
        with pytest.raises(AlteredError):
            await other.take(peer(1), announcement, 5.0, is_patient=False)

    asyncio.run(asyncio.wait_for(travel(), 60))


@pytest.mark.parametrize("chunks", [[b""], [b"x" * SIZES.start, b"x"], [b"x" * 10**6], [b"wrong" * 20]])
def test_a_gift_that_is_not_what_was_announced_is_not_kept(chunks):
    async def give():
        transfers = Wire().add(peer(1))
        digest, fields = hashlib.sha256(b"other").digest(), averaging_pb2.AveragingData
        hello = fields(peer_id=MSGPackSerializer.dumps([digest, SIZES.start, EPOCH]))
        parts = [fields(tensor_part=runtime_pb2.Tensor(buffer=chunk)) for chunk in chunks]
        answers = [answer.code async for answer in transfers.receive(peer(2), as_aiter(hello, *parts))]
        assert answers == [averaging_pb2.ACCEPTED, averaging_pb2.PROTOCOL_VIOLATION]
        assert transfers.cache.get(digest) is None

    asyncio.run(asyncio.wait_for(give(), 60))


class Group:
    """A group whose members all collect; some are not there, or lie."""

    def __init__(self, contents, *, fan_out=None, kinds=MappingProxyType({}), absent=(), recorded=MappingProxyType({})):
        self.recorded, self.scales = recorded, {}
        self.wire, members = Wire(), list(contents)
        self.announced = {}
        for member, own in contents.items():
            if member not in absent:
                self.wire.add(member, kinds.get(member, Transfers))
            if own is not None:
                self.announced[member] = replace(Announcement.of(own, {}), fan_out=fan_out)
                if member not in absent:
                    self.wire.transfers[member].cache.put(self.announced[member].digest, own, EPOCH)
        self.modes = dict.fromkeys(members, AveragingMode.NODE)

    def round_of(self, member, seconds=20.0, *, is_last_attempt=False):
        terms = ContributionTerms(
            peer_id=member, epoch=EPOCH, modes=self.modes, announced=self.announced, seconds=seconds,
            max_weight_ratio=MAX_WEIGHT_RATIO, recorded=self.recorded, is_last_attempt=is_last_attempt,
        )  # fmt: skip
        signatures = GroupSignatures(gate=None, tokens={})  # everything counts as signed
        return ContributionRound(
            terms, CODEC, self.wire.transfers[member], signatures, Blocklist(5.0, 60.0),
            lambda digest, scale: self.scales.update({(member, digest): scale}),
        )  # fmt: skip

    def collect(self, **settings):
        """Return the rounds and what they come to, by member; None for those that fail."""

        async def one(round_):
            try:
                await round_.collect()
                return [tensor.clone() for tensor in round_._averages]
            except AllreduceException:
                return None

        async def all_of_them():
            rounds = {member: self.round_of(member, **settings) for member in self.wire.transfers}
            results = await asyncio.gather(*map(one, rounds.values()))
            return rounds, dict(zip(rounds, results, strict=True))

        return asyncio.run(asyncio.wait_for(all_of_them(), 120))


def expected(*contents):
    """Return the mean by samples, of which at most so many medians count."""
    updates = [CODEC.decode(own) for own in contents]
    most = MAX_WEIGHT_RATIO * statistics.median(update.num_samples for update in updates)
    return mean(CODEC, updates, [min(update.num_samples, most) for update in updates])


def assert_all_have(results, values):
    for own in results.values():
        assert all(torch.equal(one, other) for one, other in zip(own, values, strict=True))


@pytest.mark.parametrize("fan_out", [None, peer(9)])
def test_all_members_and_who_only_listens_come_to_the_same_mean(fan_out):
    contents = {peer(number): content(number) for number in range(1, 6)} | {peer(9): None}
    rounds, results = (group := Group(contents, fan_out=fan_out)).collect()
    assert_all_have(results, expected(*[content(number) for number in range(1, 6)]))
    assert all(not round_.offences for round_ in rounds.values())
    assert sum(group.wire.num_bytes.values()) == 5 * sum(len(content(number)) for number in range(1, 6))
    # Nobody sends a contribution of others to more than two.
    largest = max(group.wire.num_bytes.values())
    assert largest <= 5 * 2 * SIZES.stop


def test_a_contribution_that_only_one_member_was_given_reaches_all():
    dead = peer(1)
    group = Group({peer(number): content(number) for number in range(1, 5)}, absent=[dead])
    group.wire.transfers[peer(3)].cache.put(group.announced[dead].digest, content(1), EPOCH)
    _, results = group.collect()
    assert_all_have(results, expected(*[content(number) for number in range(1, 5)]))


def test_what_nobody_gives_counts_as_not_made_in_the_last_attempt_and_its_owner_is_named():
    liar, dead = peer(1), peer(2)
    contents = {peer(number): content(number) for number in range(1, 5)}
    group = Group(contents, kinds={liar: Omitting}, absent=[dead])
    rounds, results = group.collect(seconds=2.0, is_last_attempt=True)
    for member in (peer(3), peer(4)):
        assert rounds[member].lost_senders == {liar, dead}
        assert rounds[member].offences == {(liar, Misbehaviour.WITHHELD), (dead, Misbehaviour.WITHHELD)}
    assert_all_have({m: results[m] for m in (peer(3), peer(4))}, expected(content(3), content(4)))


def test_an_attempt_before_the_last_one_waits_until_it_is_aborted_and_knows_for_whom():
    dead = peer(1)
    group = Group({peer(1): content(1), peer(2): content(2)}, absent=[dead])

    async def wait():
        round_ = group.round_of(peer(2), seconds=1.0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.0):
                await round_.collect()
        round_.name_late_senders()
        assert round_.late_senders == {dead}
        assert round_.offences == {(dead, Misbehaviour.WITHHELD)}

    asyncio.run(wait())


@pytest.mark.parametrize(
    ("kind", "offence"), [(Omitting, Misbehaviour.NOT_PASSED_ON), (Altering, Misbehaviour.ALTERED)]
)
def test_a_fan_out_node_that_does_not_pass_on_what_it_has_accepted_is_named(kind, offence):
    fan_out = peer(9)
    group = Group({peer(1): content(1), peer(2): content(2), fan_out: None}, fan_out=fan_out, kinds={fan_out: kind})

    async def give():
        for owner, announcement in group.announced.items():
            await group.wire.transfers[owner].give(fan_out, announcement, EPOCH)

    asyncio.run(give())
    rounds, results = group.collect()
    assert_all_have(results, expected(content(1), content(2)))
    assert [rounds[peer(number)].offences for number in (1, 2)] == [{(fan_out, offence)}] * 2


def test_a_member_that_says_falsely_that_a_node_has_its_contribution_does_not_have_that_named():
    fan_out = peer(9)
    group = Group({peer(1): content(1), peer(2): content(2), fan_out: None}, fan_out=fan_out)
    rounds, results = group.collect()
    assert_all_have(results, expected(content(1), content(2)))
    assert all(not round_.offences for round_ in rounds.values())


def test_contributions_that_cannot_be_used_count_for_nobody():
    broken, far_off = peer(1), peer(2)
    contents = {peer(number): content(number) for number in range(3, 6)}
    unreadable = bytes(SIZES.start)
    group = Group(contents | {broken: unreadable, far_off: content(2, 1e6), peer(6): content(6, 0.0)})
    rounds, results = group.collect()
    assert_all_have(results, expected(*[content(number) for number in range(3, 6)], content(2, 1e6)))
    for round_ in rounds.values():
        assert round_.offences == {(broken, Misbehaviour.UNREADABLE), (far_off, Misbehaviour.FAR_OFF)}
        assert round_.banned_senders == {broken}


def test_uneven_members_count_by_their_samples_and_none_is_named():
    contents = {peer(1): content(1, 15.0, 240), peer(2): content(2, 1.0, 16)}
    group = Group(contents, recorded={peer(1): 300.0, peer(2): 20.0})
    rounds, results = group.collect()
    vectors = [mean(CODEC, [CODEC.decode(own)], [1.0]) for own in contents.values()]
    for own in results.values():
        for found, fast, slow in zip(own, *vectors, strict=True):
            torch.testing.assert_close(found, (15 * fast + slow) / 16, atol=1e-6, rtol=1e-5)
    assert all(not round_.offences for round_ in rounds.values())
    assert group.scales == {(member, group.announced[member].digest): 1.0 for member in contents}


def norm(tensors):
    return torch.cat([tensor.reshape(-1) for tensor in tensors]).double().norm().item()


@pytest.mark.parametrize("claimed", [1, 160, 10**6, MOST_SAMPLES])
def test_no_claim_of_samples_moves_the_mean_further_than_that_of_an_honest_member(claimed):
    """It moves it at most as one of eight times the usual samples; of few, less than one of the usual number."""
    contents = {peer(number): content(number) for number in range(1, 5)}
    most_counted = int(min(claimed, 8 * 16))
    honest = Group(contents | {peer(5): content(5, most_counted / 16, most_counted)}).collect()[1][peer(1)]
    _, results = (group := Group(contents | {peer(5): content(5, 1e6, claimed)})).collect()
    without = expected(*contents.values())

    def moved(found, weight):
        whole = sum(16 for _ in contents) + weight
        return norm([one - other * (whole - weight) / whole for one, other in zip(found, without, strict=True)])

    limit = 1.1 if claimed >= 16 else 1.1 * 4  # of fewer samples than usual it may be longer, as noise is
    assert moved(results[peer(1)], most_counted) <= 1.1 * limit * moved(honest, most_counted)
    assert moved(results[peer(1)], most_counted) <= 1.21 * norm(results[peer(1)]) + norm(without)
    assert_all_have(results, results[peer(1)])
    assert group.scales[peer(5), group.announced[peer(5)].digest] < 0.01


@pytest.mark.parametrize("number", [0, 2**63, 2**64 - 1])
def test_samples_that_nobody_can_have_make_a_contribution_unreadable(number):
    false = MARK + struct.pack("<Q", number) + content(5)[LEVELS_START:]
    contents = {peer(number): content(number) for number in range(1, 4)}
    rounds, results = Group(contents | {peer(5): false}).collect()
    assert_all_have(results, expected(*contents.values()))
    assert all(round_.offences == {(peer(5), Misbehaviour.UNREADABLE)} for round_ in rounds.values())


def test_samples_beyond_a_members_records_count_for_nobody_and_it_is_named():
    contents = {peer(number): content(number) for number in range(1, 4)} | {peer(5): content(5, 10.0, 160)}
    rounds, results = Group(contents, recorded=dict.fromkeys(contents, 32.0)).collect()
    assert all(round_.offences == {(peer(5), Misbehaviour.EXCESS_WEIGHT)} for round_ in rounds.values())
    updates = [CODEC.decode(own) for own in contents.values()]
    assert_all_have(results, mean(CODEC, updates, [16.0, 16.0, 16.0, 32.0]))


def test_a_stranger_counts_as_the_median_member_whatever_a_minority_says_of_it():
    known, stranger = [peer(number) for number in range(1, 4)], peer(5)
    contents = {member: content(number) for number, member in enumerate(known)} | {stranger: content(5, 10.0, 160)}
    seen = dict.fromkeys(known, 40.0)
    read = dict.fromkeys(known, seen) | {known[0]: seen | {stranger: 1e9}, stranger: {stranger: 1e9}}
    announced = {member: Announcement.of(own, read[member]) for member, own in contents.items()}
    recorded = agreed_records(announced)
    assert recorded == seen
    assert agreed_records({member: Announcement.of(own, {}) for member, own in contents.items()}) == {}
    _, results = Group(contents, recorded=recorded).collect()
    updates = [CODEC.decode(own) for own in contents.values()]
    assert_all_have(results, mean(CODEC, updates, [16.0] * 4))


def test_a_contribution_announced_twice_counts_once():
    group = Group({peer(1): content(1), peer(2): content(1), peer(3): content(3)})
    _, results = group.collect()
    assert_all_have(results, expected(content(1), content(3)))


def test_a_group_without_a_contribution_has_no_mean():
    _, results = Group({peer(1): content(1, 0.0), peer(2): None}).collect()
    assert results == {peer(1): None, peer(2): None}
