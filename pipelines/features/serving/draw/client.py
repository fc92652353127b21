"""Draws candidates at several servers at once, and again elsewhere whatever a server has not answered."""

import asyncio
import logging
import statistics
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import PretrainedConfig

from hub_tools.counted import counted
from pipelines.core.swarm.streams.conversation import Conversation
from pipelines.core.swarm.streams.refusals import PeerGoneError, Refusal
from pipelines.features.serving.draw.allotment import Allotment, AllottedPart
from pipelines.features.serving.draw.audits import Complaint, DrawingAudits
from pipelines.features.serving.draw.modalities.choice import modality_of
from pipelines.features.serving.draw.requests import DrawRequest, SamplingRequest
from pipelines.features.serving.server_blocklist import ServerBlocklist

logger = logging.getLogger(__name__)

LOOK_SECONDS = 3.0
"""How often it is looked up who serves."""

TICK_SECONDS = 0.5
PATIENCE_SECONDS = 60.0
"""How long it is waited for a server where there is none, and for codes from one that only shows that it lives."""

PAUSE_SECONDS = {"busy": 3.0, "no room": 3.0, "leaving": 30.0, "revision": 60.0}
"""For how long a server is left alone that has refused; for all other reasons for the rest of the drawing."""

GONE_SECONDS = 5.0
"""The same for one that has gone; twice as long each time."""


MOST_TIMES_THE_MEDIAN = 16.0
"""What a server says of its own speed counts up to so many times that of the others, until it has been measured."""


class NobodyDrawsError(ConnectionError):
    """No server draws what was wished for."""


@dataclass(frozen=True, kw_only=True)
class DrawingServer:
    """A server that draws, as its record says."""

    peer: str
    """libp2p id in base 58."""

    name: str
    """The volunteer's name, as they chose it or the authority says."""

    revision: str
    epoch: int
    precision: str
    codes_per_second: float
    ranks: bool = False
    """Whether it also ranks pictures with the run's CLIP."""

    user: str = ""
    """Whom the run's authority has admitted; nobody in an open run, whatever the name."""


@dataclass(frozen=True, kw_only=True)
class DrawnCandidate:
    """A candidate that somebody has drawn."""

    number: int
    codes: Tensor = field(repr=False)
    """(places,) int64, given ones included."""

    server: DrawingServer
    """Who has drawn it, from which checkpoint and in which precision."""

    is_audited: bool = False


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """What came of a sampling request."""

    candidates: list[DrawnCandidate]
    """In the order of their numbers."""

    complaints: tuple[Complaint, ...]
    num_lost: int
    """Candidates that were given to a server and drawn again elsewhere."""

    seconds: float


class SwarmDrawing:
    """Draws over a swarm; in the event loop of the peer's streams."""

    def __init__(
        self,
        find_servers: Callable[[], Sequence[DrawingServer]],
        open_stream: Callable[[str], Awaitable[Conversation]],
        config: PretrainedConfig,
        *,
        blocklist: ServerBlocklist,
        audits: DrawingAudits | None = None,
        patience_seconds: float = PATIENCE_SECONDS,
        repository: str = "ORG/RUN",
    ) -> None:
        """`find_servers` may block: it is called in another thread. Without `audits` nothing is checked.

        Nobody who is `blocklist` is asked. `repository` is the run's, for messages.
        """
        self._find, self._open, self._config = find_servers, open_stream, config
        self._blocklist, self._audits = blocklist, audits
        self._patience, self._repository = patience_seconds, repository

    async def draw(
        self,
        sampling: SamplingRequest,
        candidates: Collection[int],
        *,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
        on_codes: Callable[[int, Tensor], None] = lambda number, codes: None,
    ) -> Drawn:
        """Return all candidates of a sampling request.

        `on_progress` is told how many codes are there and how many in all; `on_codes` gets a candidate's number and
        what is there of it, (number,) int64, for previews.

        Raises:
            ValueError: no server would take the sampling request.
            NobodyDrawsError: nobody has drawn for too long.
        """
        try:
            DrawRequest.from_message(*DrawRequest(sampling=sampling, candidates=range(1)).message(), self._config)
        except Refusal as refusal:
            raise ValueError(refusal.text) from refusal
        drawing = _OneDrawing(self, sampling, candidates, on_progress, on_codes)
        return await drawing.run()


class _OneDrawing:
    def __init__(
        self,
        swarm: SwarmDrawing,
        sampling: SamplingRequest,
        candidates: Collection[int],
        on_progress: Callable[[int, int], None],
        on_codes: Callable[[int, Tensor], None],
    ) -> None:
        self.swarm, self.sampling = swarm, sampling
        self.places = sampling.num_places(swarm._config)
        self.allotment = Allotment(sorted(candidates))
        self.drawn: dict[int, DrawnCandidate] = {}
        self.complaints: list[Complaint] = []
        self.num_lost = 0
        self._total, self._on_progress, self._on_codes = len(candidates), on_progress, on_codes
        self._working: dict[str, asyncio.Task[None]] = {}
        self._auditing: set[asyncio.Task[None]] = set()
        self._left_alone: dict[str, float] = {}
        self._num_gone: dict[str, int] = {}
        self._refused: dict[str, str] = {}
        self._others, self._blocklist = 0, ""
        self._last_news = time.monotonic()

    async def run(self) -> Drawn:
        started, looking = time.monotonic(), asyncio.create_task(self._look_again_and_again())
        try:
            while self.allotment.missing or self._auditing:
                await asyncio.sleep(TICK_SECONDS) if not self._tasks() else await asyncio.wait(
                    self._tasks(), timeout=TICK_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
                if looking.done():
                    looking.result()
                for task in [task for task in self._auditing if task.done()]:
                    self._auditing.discard(task)
                    task.result()
                if not self._working and time.monotonic() - self._last_news > self.swarm._patience:
                    raise NobodyDrawsError(self._why_nobody())
        finally:
            for task in (looking, *self._working.values(), *self._auditing):
                task.cancel()
            await asyncio.gather(looking, *self._working.values(), *self._auditing, return_exceptions=True)
        return Drawn(
            candidates=[self.drawn[number] for number in sorted(self.drawn)],
            complaints=tuple(self.complaints),
            num_lost=self.num_lost,
            seconds=time.monotonic() - started,
        )

    def _tasks(self) -> set[asyncio.Task[None]]:
        return {*self._working.values(), *self._auditing}

    async def _look_again_and_again(self) -> None:
        """Let every server that draws what is wished take part."""
        while True:
            with suppress(ConnectionError, OSError, TimeoutError):  # the DHT answers again later
                self._take_in(await asyncio.to_thread(self.swarm._find))
            await asyncio.sleep(LOOK_SECONDS if self._working else TICK_SECONDS)

    def _take_in(self, servers: Sequence[DrawingServer]) -> None:
        now = time.monotonic()
        fitting = [s for s in servers if (s.revision, s.precision) == (self.sampling.revision, self.sampling.precision)]
        self._others = len(servers) - len(fitting)
        self._blocklist = self.swarm._blocklist.named((s.peer, s.user) for s in fitting)
        usual = statistics.median(s.codes_per_second for s in fitting) if fitting else 0.0
        for server in fitting:
            is_avoided = now < self._left_alone.get(server.peer, 0) or self._is_found_out(server)
            if server.peer not in self._working and not is_avoided and self.allotment.missing:
                new_places = self.places - self.sampling.num_given
                believed = min(server.codes_per_second, MOST_TIMES_THE_MEDIAN * usual)
                self.allotment.rates[server.peer] = max(believed / new_places, 1e-3)
                self._working[server.peer] = asyncio.create_task(self._work_with(server))

    def _is_found_out(self, server: DrawingServer) -> bool:
        return self.swarm._blocklist.avoids(server.peer, server.user)

    async def _work_with(self, server: DrawingServer) -> None:
        """Have a server draw one part after the other until nothing is left, or it fails."""
        alone = 0.0
        try:
            await self._have_drawn(server)
        except Refusal as refusal:
            alone = PAUSE_SECONDS.get(refusal.code, float("inf"))
            self._refused[server.name] = refusal.text
            logger.info("%s refuses: %s", server.name, refusal.text)
        except PeerGoneError as error:
            before = self._num_gone.get(server.peer, 0)
            alone = GONE_SECONDS * 2**before
            self._num_gone[server.peer] = before + 1
            logger.log(logging.DEBUG if before else logging.INFO, "%s has gone: %s", server.name, error)
        finally:
            self._left_alone[server.peer] = time.monotonic() + alone
            self.num_lost += sum(
                len(self.allotment.missing & set(part.candidates))
                for part in self.allotment.parts
                if part.server == server.peer
            )
            self.allotment.leave(server.peer)
            self._working.pop(server.peer, None)

    async def _have_drawn(self, server: DrawingServer) -> None:
        while self.allotment.missing:
            async with await self.swarm._open(server.peer) as conversation:
                self._last_news = time.monotonic()
                while self.allotment.missing:
                    part = self.allotment.take(server.peer, time.monotonic())
                    if part is None:
                        await asyncio.sleep(TICK_SECONDS)
                        continue
                    codes = await self._drawn_part(conversation, part)
                    if codes is None:
                        self.allotment.give_back(part)
                        break  # the others were faster: a new stream, so that the server stops
                    self._take_over(server, part, codes)

    async def _drawn_part(self, conversation: Conversation, part: AllottedPart) -> Tensor | None:
        """Return the codes of a part, (candidate, places) int64; None if others had it earlier."""
        body, tensors = DrawRequest(sampling=self.sampling, candidates=part.candidates).message()
        await conversation.send(body, tensors)
        given = self.sampling.image_prompt
        number = len(part.candidates)
        codes = torch.empty(number, 0, dtype=torch.int64) if given is None else given.expand(number, -1)
        heard, usual = time.monotonic(), 0.0
        while True:
            frame = await conversation.receive_answer(self.swarm._patience, usual)
            if self.allotment.is_over(part):
                return None
            if frame.body.get("done"):
                if codes.shape[1] != self.places:
                    raise Refusal("malformed", f"It sent {codes.shape[1]} codes of a candidate, not {self.places}.")
                return codes
            codes = torch.cat([codes, self._checked(frame.tensors, number, codes.shape[1])], dim=1)
            usual, heard = 0.5 * usual + 0.5 * (time.monotonic() - heard), time.monotonic()
            self._last_news = heard
            part.share_done = (codes.shape[1] - self.sampling.num_given) / (self.places - self.sampling.num_given)
            for candidate, row in zip(part.candidates, codes, strict=True):
                self._on_codes(candidate, row)
            self._report()

    def _checked(self, tensors: Mapping[str, Tensor], number: int, num_known: int) -> Tensor:
        """Return new codes, (candidate, places) int64, if a server's message has nothing else."""
        codes = tensors.get("codes")
        if codes is None or codes.dtype != torch.int32 or codes.dim() != 2 or len(codes) != number:
            raise Refusal("malformed", "It sent something that is not the codes of these candidates.")
        if not 0 < codes.shape[1] <= self.places - num_known:
            raise Refusal("malformed", "It sent more codes than there are places.")
        if int(codes.min()) < 0 or int(codes.max()) >= modality_of(self.swarm._config).num_symbols(self.swarm._config):
            raise Refusal("malformed", "It sent codes that do not exist.")
        return codes.long()

    def _take_over(self, server: DrawingServer, part: AllottedPart, codes: Tensor) -> None:
        new = self.allotment.finish(part, time.monotonic())
        if self._is_found_out(server):
            self.allotment.lose(new)
            raise PeerGoneError("It was found to draw something else.")
        audits, audited = self.swarm._audits, list[int]()
        if audits is not None:
            before = sum(c.is_audited for c in self.drawn.values() if c.server.peer == server.peer)
            if audited := audits.pick(new, before):
                some = torch.stack([codes[number - part.candidates.start] for number in audited])
                self._auditing.add(asyncio.create_task(self._look_at(audits, server, audited, some)))
        for number in new:
            row = codes[number - part.candidates.start]
            self.drawn[number] = DrawnCandidate(number=number, codes=row, server=server, is_audited=number in audited)
        self._report()

    async def _look_at(
        self, audits: DrawingAudits, server: DrawingServer, numbers: Sequence[int], codes: Tensor
    ) -> None:
        """Audit some candidates; what a server has drawn that is found out is drawn again elsewhere."""
        measured = await asyncio.to_thread(audits.compute_again, self.sampling, numbers, codes)
        complaint = audits.judge(self.sampling, server.peer, measured, server.user)
        if complaint is None:
            return
        logger.warning("%s", complaint)
        self.complaints.append(complaint)
        own = [number for number, candidate in self.drawn.items() if candidate.server.peer == server.peer]
        for number in own:
            del self.drawn[number]
        self.num_lost += len(own)
        self.allotment.lose(own)
        if (task := self._working.get(server.peer)) is not None:
            task.cancel()

    def _report(self) -> None:
        begun = sum(part.share_done * len(part.candidates) for part in self.allotment.parts)
        done, new_places = min(self._total, len(self.drawn) + begun), self.places - self.sampling.num_given
        self._on_progress(int(done * new_places), self._total * new_places)

    def _why_nobody(self) -> str:
        sampling = self.sampling
        others = f"; other checkpoints or precisions: {counted(self._others, 'server')}" if self._others else ""
        blocklist = f" {self._blocklist}" if self._blocklist else ""
        refusals = "".join(f" {name} said: {text}" for name, text in list(self._refused.items())[:3])
        return (
            f"Nobody has drawn for {self.swarm._patience:.0f} s: no server of checkpoint {sampling.revision[:12]} in "
            f"{sampling.precision} answers{others}.{blocklist}{refusals} "
            f"To serve it yourself: dalle-collab serve {self.swarm._repository}"
        )
