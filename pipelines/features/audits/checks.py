"""After a round each member checks one answer of another one, and members that find a false one show it to each other.

What is proven to all members is believed by all of them, and they avoid the same peer: the group stays together. What
only this peer can know (it was shown nothing, it was left out, it was told a lie) keeps a peer out for seconds at
first, because a hostile peer could otherwise set a victim apart from the others by wronging it alone.
"""

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from hivemind.averaging.allreduce import AveragingMode
from hivemind.p2p import PeerID
from hivemind.p2p.servicer import StubBase
from hivemind.proto import averaging_pb2
from hivemind.utils.asyncio import as_aiter

from pipelines.core.averaging.checks import Checks, Messages
from pipelines.core.averaging.group.blocklist import MOST_REMEMBERED, Blocklist
from pipelines.core.averaging.reduce.suspects import Misbehaviour
from pipelines.core.averaging.round_state import RoundState, RoundTerms
from pipelines.core.averaging.wire.signed_parts import (
    answers_request,
    read_answers_request,
    read_seal,
)
from pipelines.core.averaging.wire.streams import open_greeted
from pipelines.core.swarm.upload_limit import UploadLimit, pass_bytes
from pipelines.features.audits.evidence import Evidence, Verdict, read_header, verdict

logger = logging.getLogger(__name__)

ROUNDS_KEPT = 2
"""Rounds whose inputs are kept at most, each as large as the vector on the wire, and none for longer than a minute."""

FIRST_CONVICTION_SECONDS, LONGEST_CONVICTION_SECONDS = 600.0, 86_400.0
"""A reducer whose false average is proven is avoided for this long, twice as long each time."""

MOST_UNPROVEN = 3
"""A reducer that has not proven so many averages in a row, to this peer, is distrusted."""

SECONDS_FOR_A_PROOF = 60.0
"""How long a reducer may take to show one part's inputs: some megabytes."""

SECONDS_TO_HEAR = 30.0
"""How long an accuser may take to show its evidence, once it is asked for it."""

HEARD_AT_ONCE = 4
"""Accusations of which the evidence is in memory at the same time, each of another accuser."""


@dataclass(frozen=True)
class _Round:
    """What is known of a round for as long as its answers can be checked."""

    state: RoundState
    listeners: tuple[PeerID, ...]
    """Other members that answer calls."""

    convicted: set[PeerID] = field(default_factory=set)
    heard: set[tuple[PeerID, PeerID]] = field(default_factory=set)
    silent: set[PeerID] = field(default_factory=set)
    """Accusers that have shown nothing in time; they are not waited for again."""


class RoundChecks(Checks):
    """The checks of one averager, in its process: what it finds, shows to others and is shown by them."""

    judge: Callable[[Evidence, RoundTerms], Verdict] = staticmethod(verdict)

    def __init__(
        self,
        peer_id: PeerID,
        stub_of: Callable[[PeerID], StubBase],
        name: Callable[[PeerID, Misbehaviour], None],
        upload_limit: UploadLimit | None = None,
        generator: random.Random | None = None,
    ) -> None:
        """Nobody else may know what the `generator` draws; all else is as in `Checks`."""
        super().__init__(peer_id, stub_of, name, upload_limit)
        self._generator = generator or random.SystemRandom()
        self._convicted = Blocklist(FIRST_CONVICTION_SECONDS, LONGEST_CONVICTION_SECONDS)
        self._num_unproven: Counter[PeerID] = Counter()
        self._rounds: dict[bytes, _Round] = {}
        self._hearings = asyncio.Semaphore(HEARD_AT_ONCE)
        self._turns: WeakValueDictionary[PeerID, asyncio.Lock] = WeakValueDictionary()
        self._tasks: set[asyncio.Task[None]] = set()

    def avoids(self, peer: PeerID) -> bool:
        """Return whether a peer is to be kept out of groups now."""
        return self._convicted.avoids(peer, time.monotonic()) or super().avoids(peer)

    def open(self, state: RoundState) -> None:
        """Keep what members may ask about a round that begins now; of older rounds only the last one is kept."""
        super().open(state)
        answering = (peer for peer, mode in state.modes.items() if mode != AveragingMode.CLIENT)
        self._rounds[state.group_id] = _Round(state, tuple(peer for peer in answering if peer != self._peer_id))
        for group_id in list(self._rounds)[:-ROUNDS_KEPT]:
            del self._rounds[group_id]

    def close(self, group_id: bytes) -> None:
        """Forget a round."""
        super().close(group_id)
        self._rounds.pop(group_id, None)

    def begin(self, group_id: bytes) -> None:
        """Check one answer of a round that has succeeded, in the background."""
        if (known := self._rounds.get(group_id)) is not None:
            self._in_background(self._check(known))

    def end(self) -> None:
        """Leave all checks."""
        for task in self._tasks:
            task.cancel()

    def shown(self, member: PeerID, request: averaging_pb2.DownloadData) -> Sequence[averaging_pb2.AveragingData]:
        """Return what one of this peer's answers was made of, to a member of that round."""
        group_id, reducer, part_indices = read_answers_request(request)
        known = self._rounds.get(group_id)
        return () if known is None or reducer != self._peer_id else known.state.inputs.shown_to(member, part_indices)

    async def hear(self, accuser: PeerID, messages: Messages) -> AsyncGenerator[averaging_pb2.AveragingData, None]:
        """Ask for evidence against a member if there is none yet, judge it, and name one of the two."""
        hello = await anext(messages)
        known = self._rounds.get(hello.group_id)
        if known is None or not self._wants(known, accuser, hello):
            yield averaging_pb2.AveragingData(code=averaging_pb2.CANCELLED)
            return
        yield averaging_pb2.AveragingData(code=averaging_pb2.ACCEPTED)
        async with self._turns.setdefault(accuser, asyncio.Lock()), self._hearings:
            if accuser in known.silent:
                return
            try:
                async with asyncio.timeout(SECONDS_TO_HEAR):
                    evidence = await _received(hello, messages, len(known.state.terms.senders))
            except (TimeoutError, StopAsyncIteration):  # it says nothing of anybody
                known.silent.add(accuser)
                return
            result = Verdict.INVALID if evidence is None else await self._judged(evidence, known)
        if evidence is not None and result is Verdict.FALSE:
            self._convict(known, evidence)
        elif result is not Verdict.UNCLEAR:
            self.distrust(accuser, Misbehaviour.FALSE_ACCUSATION)
        yield averaging_pb2.AveragingData(code=averaging_pb2.ACCEPTED)

    def _wants(self, known: _Round, accuser: PeerID, hello: averaging_pb2.AveragingData) -> bool:
        """Return whether to look at evidence: a member may accuse each other one once a round, until it lies."""
        try:
            reducer, _, _ = read_header(hello.peer_id)
        except ValueError:
            return False
        is_new = reducer not in known.convicted and (accuser, reducer) not in known.heard
        is_about_others = {reducer, accuser} <= known.state.modes.keys() - {self._peer_id}
        if not (known.state.signatures.tokens and is_new and is_about_others) or self.avoids(accuser):
            return False
        known.heard.add((accuser, reducer))
        return True

    async def _check(self, known: _Round) -> None:
        drawn = self._draw(known)
        if drawn is None:
            return
        reducer, part_index = drawn
        try:
            evidence = await self._ask(known, reducer, part_index)
        except Exception as error:  # peers fail in many ways, and lying ones as they like
            logger.info("Peer %s did not show what its answer was made of: %r", reducer, error)
            self._note_unproven(reducer, Misbehaviour.NO_PROOF, names_at=MOST_UNPROVEN)  # it may have left, as all do
            return
        result = await self._judged(evidence, known)
        if result is Verdict.FALSE:
            self._convict(known, evidence)
        elif result is not Verdict.SOUND:
            self._note_unproven(reducer, Misbehaviour.NO_PROOF)
        elif not self._is_in(known, evidence):
            self._note_unproven(reducer, Misbehaviour.LEFT_OUT)
        else:
            self._num_unproven.pop(reducer, None)

    def _draw(self, known: _Round) -> tuple[PeerID, int] | None:
        """Return a part of another reducer's share that this peer has an answer to; None if it has none."""
        reducers = [peer for peer in known.listeners if known.state.answers.held(peer)]
        if not reducers:
            return None
        reducer = self._generator.choice(reducers)
        return reducer, self._generator.choice(list(known.state.answers.held(reducer)))

    async def _ask(self, known: _Round, reducer: PeerID, part_index: int) -> Evidence:
        answer = known.state.answers.held(reducer)[part_index]
        num_inputs = len(read_seal(answer.peer_id)[1])
        request = answers_request(known.state.group_id, reducer, [part_index])
        async with asyncio.timeout(SECONDS_FOR_A_PROOF):
            stream = await self._stub_of(reducer).rpc_show_inputs(request)
            async with aclosing(stream):
                inputs = [await anext(stream) for _ in range(num_inputs)]
        return Evidence.of(reducer, part_index, known.state.signatures.tokens, [answer, *inputs])

    def _is_in(self, known: _Round, evidence: Evidence) -> bool:
        """Return whether this peer's own part is among the inputs if it got the answer for it; only this peer knows."""
        sent = known.state.sent.get((evidence.reducer, evidence.part_index))
        return sent is None or (self._peer_id, *sent) in [
            (c.sender, c.declared, c.digest) for c in evidence.contributions
        ]

    async def _judged(self, evidence: Evidence, known: _Round) -> Verdict:
        return await asyncio.get_running_loop().run_in_executor(None, self.judge, evidence, known.state.terms)

    def _convict(self, known: _Round, evidence: Evidence) -> None:
        """Avoid a reducer whose lie is proven, and show it to all others, who may know nothing of it."""
        if evidence.reducer in known.convicted or evidence.reducer == self._peer_id:
            return
        known.convicted.add(evidence.reducer)
        self._convicted.avoid(evidence.reducer, time.monotonic())
        self._name(evidence.reducer, Misbehaviour.FALSE_AVERAGE)
        for member in known.listeners if known.state.signatures.tokens else ():
            if member != evidence.reducer:
                self._in_background(self._accuse(known, evidence, member))

    def _note_unproven(self, peer: PeerID, offence: Misbehaviour, names_at: int = 1) -> None:
        if len(self._num_unproven) >= MOST_REMEMBERED:
            self._num_unproven.clear()
        self._num_unproven[peer] += 1
        if self._num_unproven[peer] >= MOST_UNPROVEN:
            self._distrusted.avoid(peer, time.monotonic())
        if self._num_unproven[peer] >= names_at:
            self._name(peer, offence)

    async def _accuse(self, known: _Round, evidence: Evidence, member: PeerID) -> None:
        """Show evidence to a member of the round, unless it knows already."""
        hello = averaging_pb2.AveragingData(
            code=averaging_pb2.REQUEST_JOIN, group_id=known.state.group_id, peer_id=evidence.header()
        )
        with suppress(Exception):  # it knows already, or it is gone
            async with asyncio.timeout(SECONDS_FOR_A_PROOF):
                stream = await open_greeted(
                    self._stub_of(member).rpc_accuse,
                    hello=hello,
                    messages=self._sent_slowly(evidence.messages()),
                    is_greeting=lambda message: message.code == averaging_pb2.ACCEPTED,
                    seconds=SECONDS_TO_HEAR,
                    attempts=1,
                )
                async with aclosing(stream):
                    await anext(stream, None)  # it has heard all

    async def _sent_slowly(self, messages: Sequence[averaging_pb2.AveragingData]) -> Messages:
        async for message in as_aiter(*messages):
            await pass_bytes(self._upload_limit, len(message.tensor_part.buffer))
            yield message

    def _in_background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _received(hello: averaging_pb2.AveragingData, messages: Messages, most_inputs: int) -> Evidence | None:
    """Return the evidence of an accusation; None if no honest peer sends this."""
    reducer, part_index, tokens = read_header(hello.peer_id)
    answer = await anext(messages)
    try:
        _, contributions = read_seal(answer.peer_id)
    except ValueError:
        return None
    if len(contributions) > most_inputs:
        return None
    return Evidence.of(reducer, part_index, tokens, [answer, *[await anext(messages) for _ in contributions]])
