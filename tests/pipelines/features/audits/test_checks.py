"""Members of a round check each other: each with its own checks, connected to the others without a network."""

import asyncio
import random
from contextlib import aclosing
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hivemind.averaging.allreduce import AveragingMode
from hivemind.proto import averaging_pb2
from signed_rounds import GROUP, MEMBERS, NAMES, PART, made, terms_with

from pipelines.core.averaging.reduce.suspects import Misbehaviour
from pipelines.core.averaging.wire.signed_parts import RoundAnswers, RoundInputs, answers_request, read_seal
from pipelines.features.audits import checks as module
from pipelines.features.audits.checks import MOST_UNPROVEN, ROUNDS_KEPT, RoundChecks
from pipelines.features.audits.evidence import Verdict

IDS = {name: member.peer_id for name, member in MEMBERS.items()}
TOKENS = {member.peer_id: member.token for member in MEMBERS.values()}
REDUCER = IDS["reducer"]


class Accuser(RoundChecks):
    """Finds everything false."""

    judge = staticmethod(lambda evidence, terms: Verdict.FALSE)


class Swarm:
    """The checks of all members, and what each has named others for."""

    def __init__(self, evidence, kinds=None, shows=True, sent=None, tokens=TOKENS):
        self.named = {name: [] for name in NAMES}
        self.checks = {name: self.make(name, (kinds or {}).get(name, RoundChecks)) for name in NAMES}
        self.num_shown, self.shows = 0, shows
        for name in NAMES:
            self.open(name, evidence, (sent or {}).get(name), tokens=tokens)

    def make(self, name, kind):
        own = self.named[name]
        return kind(
            IDS[name],
            lambda peer: self.stub(name, peer),
            lambda peer, offence: own.append((peer, offence)),
            generator=random.Random(1),
        )

    def open(self, name, evidence, sent=None, group_id=GROUP, tokens=TOKENS):
        """Have a member know a round in which only the reducer has a share."""
        answer, *messages = evidence.messages()
        answers, inputs = RoundAnswers(list(IDS.values())), RoundInputs(list(IDS.values()))
        answers.keep(REDUCER, PART, answer)
        if name == "reducer":
            used = {c.sender: c.weight for c in evidence.contributions}
            for sender, message in zip(used, messages, strict=True):
                inputs.keep(PART, sender, message, b"")
            inputs.use(PART, used)
        state = SimpleNamespace(
            modes=dict.fromkeys(IDS.values(), AveragingMode.NODE), group_id=group_id, inputs=inputs, answers=answers,
            terms=terms_with(group_id=group_id), sent=sent or {}, signatures=SimpleNamespace(tokens=tokens),
        )  # fmt: skip
        self.checks[name].open(state)

    def stub(self, caller, peer):
        """What one member can ask of another; as on a stream, the one that answers waits for the other to leave."""
        other = next(name for name, known in IDS.items() if known == peer)

        async def rpc_show_inputs(request):
            return self.show(other, caller, request)

        async def rpc_accuse(messages):
            return self.checks[other].hear(IDS[caller], messages)

        return SimpleNamespace(rpc_show_inputs=rpc_show_inputs, rpc_accuse=rpc_accuse)

    async def show(self, other, caller, request):
        for message in self.checks[other].shown(IDS[caller], request) if self.shows else ():
            self.num_shown += 1
            yield message

    async def check(self, name, group_id=GROUP):
        """Have a member check the reducer, and wait until nobody has anything left to do."""
        self.checks[name].begin(group_id)
        while tasks := [task for checks in self.checks.values() for task in checks._tasks]:
            await asyncio.gather(*tasks)

    def avoided(self, name):
        return {other for other in NAMES if self.checks[name].avoids(IDS[other])}


def all_named(swarm):
    return {name: found for name, found in swarm.named.items() if found}


def test_an_honest_reducer_is_checked_and_nobody_is_named():
    async def run():
        swarm = Swarm(made(terms_with()))
        for name in NAMES[1:]:
            await swarm.check(name)
        assert swarm.num_shown == 3 * len(NAMES)
        assert not all_named(swarm) and not swarm.avoided("first")

    asyncio.run(run())


def test_what_one_member_finds_all_believe_and_all_avoid_the_same_peer():
    async def run():
        swarm = Swarm(made(terms_with(), lie=torch.zeros_like))
        await swarm.check("second")
        assert all_named(swarm) == {name: [(REDUCER, Misbehaviour.FALSE_AVERAGE)] for name in NAMES[1:]}
        assert [swarm.avoided(name) for name in NAMES] == [set()] + [{"reducer"}] * 3
        await swarm.check("third")
        assert [len(found) for found in swarm.named.values()] == [0, 1, 1, 1], "once a round"

    asyncio.run(run())


def test_what_is_shown_to_one_member_only_is_passed_on_to_the_others():
    """Else a hostile accuser could set that one apart from them."""

    async def run():
        evidence = made(terms_with(), lie=torch.zeros_like)
        swarm = Swarm(evidence)
        checks = swarm.checks["third"]
        await checks._accuse(checks._rounds[GROUP], evidence, IDS["first"])
        assert [name for name in NAMES if swarm.avoided(name)] == ["first"]
        while tasks := swarm.checks["first"]._tasks | swarm.checks["second"]._tasks:
            await asyncio.gather(*tasks)
        assert [name for name in NAMES if swarm.avoided(name)] == ["first", "second", "third"]

    asyncio.run(run())


def test_who_accuses_an_honest_reducer_is_named_and_not_heard_again():
    async def run():
        swarm = Swarm(made(terms_with()), kinds={"second": Accuser})
        await swarm.check("second")
        expected = [(IDS["second"], Misbehaviour.FALSE_ACCUSATION)]
        assert swarm.named["first"] == swarm.named["third"] == expected and not swarm.named["reducer"]
        assert swarm.avoided("first") == {"second"}
        evidence = made(terms_with(), lie=torch.zeros_like)
        checks = swarm.checks["second"]
        await checks._accuse(checks._rounds[GROUP], evidence, IDS["first"])
        assert swarm.named["first"] == expected

    asyncio.run(run())


@pytest.mark.parametrize("change", ["another round", "forged", "no seal"])
def test_an_accusation_that_is_made_up_names_the_accuser(change):
    evidence = made(terms_with(), lie=torch.zeros_like)
    if change == "another round":
        evidence = made(terms_with(), lie=torch.zeros_like, group_id=b"earlier")
    elif change == "forged":
        evidence = replace(evidence, signature=MEMBERS["second"].record_key.sign(b"anything"))

    async def run():
        swarm = Swarm(made(terms_with()))
        hello = averaging_pb2.AveragingData(group_id=GROUP, peer_id=evidence.header())

        async def messages():
            yield hello
            for message in evidence.messages():
                yield averaging_pb2.AveragingData() if change == "no seal" else message

        assert await codes(swarm, "second", messages()) == [averaging_pb2.ACCEPTED] * 2
        assert swarm.named["first"] == [(IDS["second"], Misbehaviour.FALSE_ACCUSATION)]

    asyncio.run(run())


async def codes(swarm, accuser, messages):
    """Accuse somebody before the first member, and return its answers."""
    async with aclosing(swarm.checks["first"].hear(IDS.get(accuser, accuser), messages)) as answers:
        return [answer.code async for answer in answers]


async def accused(swarm, accuser, evidence, group_id=GROUP, header=None, num_messages=None):
    async def messages():
        peer_id = evidence.header() if header is None else header
        yield averaging_pb2.AveragingData(group_id=group_id, peer_id=peer_id)
        for message in evidence.messages()[:num_messages]:
            yield message

    return await codes(swarm, accuser, messages())


@pytest.mark.parametrize(
    ("accuser", "changes"),
    [
        ("stranger", {}),
        ("second", dict(group_id=b"unknown")),
        ("second", dict(header=b"")),
        ("second", dict(header=replace(made(terms_with()), reducer=IDS["first"]).header())),
        ("first", {}),
    ],
    ids=["a stranger", "of an unknown round", "without a header", "of the one that hears it", "by the one that hears"],
)
def test_what_does_not_concern_a_member_it_does_not_hear(accuser, changes):
    async def run():
        evidence = made(terms_with(), lie=torch.zeros_like)
        swarm = Swarm(evidence)
        assert await accused(swarm, accuser, evidence, **changes) == [averaging_pb2.CANCELLED]
        assert not all_named(swarm)

    asyncio.run(run())


def test_an_accusation_that_breaks_off_names_nobody_and_is_heard_once():
    async def run():
        evidence = made(terms_with(), lie=torch.zeros_like)
        swarm = Swarm(evidence)
        assert await accused(swarm, "second", evidence, num_messages=3) == [averaging_pb2.ACCEPTED]
        assert await accused(swarm, "second", evidence) == [averaging_pb2.CANCELLED]
        assert not all_named(swarm)

    asyncio.run(run())


def test_who_accuses_many_and_shows_nothing_keeps_nobody_else_from_being_heard():
    async def run():
        evidence, forever = made(terms_with(), lie=torch.zeros_like), asyncio.Event()
        swarm = Swarm(evidence)
        swarm.checks["first"]._hearings = asyncio.Semaphore(2)
        accepted = []

        async def silent(name):
            async def messages():
                yield averaging_pb2.AveragingData(group_id=GROUP, peer_id=replace(evidence, reducer=IDS[name]).header())
                await forever.wait()

            async with aclosing(swarm.checks["first"].hear(IDS["second"], messages())) as answers:
                async for answer in answers:
                    accepted.append(answer.code)

        waiting = [asyncio.create_task(silent(name)) for name in ("reducer", "third")]
        while len(accepted) < len(waiting):
            await asyncio.sleep(0)
        async with asyncio.timeout(module.SECONDS_TO_HEAR / 2):
            assert await accused(swarm, "third", evidence) == [averaging_pb2.ACCEPTED] * 2
        assert swarm.avoided("first") == {"reducer"}
        forever.set()
        await asyncio.gather(*waiting)
        assert await accused(swarm, "second", evidence) == [averaging_pb2.CANCELLED]

    asyncio.run(run())


def test_where_nobody_signs_nobody_is_believed():
    async def run():
        evidence = made(terms_with(), lie=torch.zeros_like)
        swarm = Swarm(evidence, tokens={})
        assert await accused(swarm, "second", evidence) == [averaging_pb2.CANCELLED]

    asyncio.run(run())


def test_a_reducer_that_shows_nothing_is_named_and_avoided_after_some_rounds_in_a_row():
    async def run():
        swarm = Swarm(made(terms_with(), lie=torch.zeros_like), shows=False)
        for _ in range(MOST_UNPROVEN):
            assert not swarm.avoided("first")
            assert not all_named(swarm), "who has left shows nothing, either"
            await swarm.check("first")
        assert all_named(swarm) == {"first": [(REDUCER, Misbehaviour.NO_PROOF)]}
        assert swarm.avoided("first") == {"reducer"}

    asyncio.run(run())


def test_one_proof_makes_up_for_what_was_not_shown_before():
    async def run():
        swarm = Swarm(made(terms_with()), shows=False)
        for _ in range(2):
            for _ in range(MOST_UNPROVEN - 1):
                await swarm.check("first")
            swarm.open("reducer", made(terms_with()))
            swarm.shows = True
            await swarm.check("first")
            swarm.shows = False
        assert not swarm.avoided("first")

    asyncio.run(run())


def test_whose_part_was_left_out_knows_it_and_others_do_not():
    async def run():
        evidence = made(terms_with())
        used = next(c for c in evidence.contributions if c.sender == IDS["first"])
        sent = {(REDUCER, PART): (used.declared, used.digest)}
        swarm = Swarm(evidence, sent=dict(first=sent, second={(REDUCER, PART): (used.declared, b"other")}))
        for name in NAMES[1:]:
            await swarm.check(name)
        assert all_named(swarm) == {"second": [(REDUCER, Misbehaviour.LEFT_OUT)]}

    asyncio.run(run())


def test_of_earlier_rounds_only_the_last_is_kept():
    async def run():
        evidence = made(terms_with())
        swarm = Swarm(evidence)
        for number in range(ROUNDS_KEPT):
            swarm.open("reducer", evidence, group_id=bytes([number]))
        assert swarm.checks["reducer"].shown(IDS["first"], answers_request(GROUP, REDUCER, [PART])) == ()
        assert len(swarm.checks["reducer"]._rounds) == ROUNDS_KEPT

    asyncio.run(run())


def test_a_member_asks_about_a_part_that_it_has_an_answer_to():
    async def run():
        swarm = Swarm(made(terms_with()))
        known = swarm.checks["first"]._rounds[GROUP]
        assert swarm.checks["first"]._draw(known) == (REDUCER, PART)
        assert read_seal(known.state.answers.held(REDUCER)[PART].peer_id)
        assert module.SECONDS_FOR_A_PROOF >= module.SECONDS_TO_HEAR
        assert swarm.checks["reducer"]._draw(swarm.checks["reducer"]._rounds[GROUP]) is None

    asyncio.run(run())
