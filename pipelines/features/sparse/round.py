"""One round in which every member takes all members' contributions and applies the same mean: `ContributionRound`."""

import asyncio
import logging
import math
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import torch
from hivemind.averaging.allreduce import AveragingMode
from hivemind.averaging.partition import AllreduceException
from hivemind.p2p import PeerID

from pipelines.core.admission.averaging_gate import GroupSignatures
from pipelines.core.averaging.figures import Round
from pipelines.core.averaging.group.blocklist import Blocklist
from pipelines.core.averaging.reduce.robust_aggregation import bounded_weights, excess_weights
from pipelines.core.averaging.reduce.suspects import Misbehaviour
from pipelines.features.sparse.announcement import Announcement, drawn_order, receipt_statement
from pipelines.features.sparse.codec import SparseCodec, SparseUpdate
from pipelines.features.sparse.mean import mean, norm_scales
from pipelines.features.sparse.transfers import AlteredError, NotHeldError, Transfers

logger = logging.getLogger(__name__)

SHARE_FROM_OWNERS = 2 / 3
"""Share of an attempt's time after which a contribution is no longer taken from its owner, only from other members:
what an owner gives to some at the last moment reaches the others, too."""

FAN_OUT_SHARE, PEER_SHARE = 1 / 3, 1 / 6
"""Share of an attempt's time in which a contribution must begin to come from its fan-out node, and from another peer:
both may be getting it themselves."""

PAUSE_SECONDS = 0.25

FAR_OFF_SCALE = 0.1
"""A contribution ten times as long as its samples allow is reported; its length counts no more than that of others."""


@dataclass(frozen=True, kw_only=True)
class ContributionTerms:
    """What a round is about: its members and what they have announced."""

    peer_id: PeerID
    """This peer's."""

    epoch: int
    modes: Mapping[PeerID, AveragingMode]
    """How each member takes part."""

    announced: Mapping[PeerID, Announcement]
    """Contributions of members; not all have one."""

    seconds: float
    """How long contributions are collected."""

    max_weight_ratio: float
    """Nobody's samples count for more than this multiple of the group's median."""

    recorded: Mapping[PeerID, float]
    """The most samples that members' records make plausible, as the members have read and announced them: for all of
    them alike; see `agreed_records`."""

    is_last_attempt: bool
    """Whether a contribution that nobody has given until then counts as not made, instead of another attempt."""

    @property
    def answering(self) -> list[PeerID]:
        """Members that answer calls."""
        return [member for member, mode in self.modes.items() if mode != AveragingMode.CLIENT]


class ContributionRound(Round):
    """Collects what the members of a group have announced, checks it, and yields the mean, tensor by tensor.

    The digests make it irrelevant who passes a contribution on. One that cannot be decoded counts for nobody, since all
    see the same bytes. What is missing when time is up is missing for all, as far as members can tell: each passes on
    what it has, and takes nothing from an owner any more in the last third. The group then meets again without the
    owner; in the last attempt the contribution counts as not made: `terms` say how long that waits.

    Nobody averages for others, and no work is given out by what links carry: contributions are small.
    """

    late_offence = Misbehaviour.WITHHELD

    def __init__(
        self,
        terms: ContributionTerms,
        codec: SparseCodec,
        transfers: Transfers,
        signatures: GroupSignatures,
        blocklist: Blocklist,
        note_scale: Callable[[bytes, float], None],
    ) -> None:
        """`blocklist`: peers that were given contributions and do not pass them on.

        `note_scale` hears by which factor the mean has shortened this peer's own contribution, and its digest.
        """
        super().__init__(terms.announced, set())
        self.terms, self.codec, self.transfers, self.signatures = terms, codec, transfers, signatures
        self.blocklist, self.note_scale = blocklist, note_scale
        self._tasks: set[asyncio.Task[None]] = set()
        self._refused: set[bytes] = set()  # digests that their fan-out node did not give to this peer
        self._late = {owner for owner in terms.announced if self._content_of(owner) is None}

    @property
    def late_senders(self) -> set[PeerID]:
        """Members whose contributions are still missing."""
        return self._late

    def finalize(self, *, cancel: bool = False, exception: BaseException | None = None) -> set[asyncio.Task[None]]:
        """End the round when the averager shuts down; return what is still running."""
        for task in self._tasks:
            task.cancel()
        return self._tasks

    async def collect(self) -> None:
        """Take all contributions that are to be had, and compute their mean."""
        try:
            await self._collect_all()
        finally:
            await asyncio.gather(*self.finalize(), return_exceptions=True)
        self._averages = await asyncio.get_running_loop().run_in_executor(None, self._mean)

    def write(self, tensors: Sequence[torch.Tensor]) -> None:
        """Put the mean into the averager's tensors."""
        for tensor, average in zip(tensors, self._averages, strict=True):
            tensor.copy_(average)

    async def _collect_all(self) -> None:
        self._end_of_owners = asyncio.get_running_loop().time() + SHARE_FROM_OWNERS * self.terms.seconds
        self._tasks = {asyncio.create_task(self._collect(owner)) for owner in self._late}
        if not self._tasks:
            return
        # An attempt that is not the last one is aborted from outside.
        done, _ = await asyncio.wait(self._tasks, timeout=self.terms.seconds if self.terms.is_last_attempt else None)
        for task in done:
            task.result()
        self.name_late_senders()
        self.lost_senders |= self.late_senders

    async def _collect(self, owner: PeerID) -> None:
        """Take one contribution from whoever has it, until it is here."""
        with self.transfers.cache.coming(self.terms.announced[owner].digest):
            async with aclosing(self._sources(owner)) as sources:
                async for source, share, is_patient in sources:
                    await self._take(owner, source, share * self.terms.seconds, is_patient=is_patient)
                    if self._content_of(owner) is not None:
                        self._late.discard(owner)
                        return

    async def _sources(self, owner: PeerID) -> AsyncGenerator[tuple[PeerID, float, bool], None]:
        """Yield in turn whom to ask for a contribution, in which share of the time, and whether to wait if it has none.

        First come those through whom it spreads: its fan-out node, and the member above this one in a tree that is
        drawn for it. Then its owner and all others, for ever.
        """
        announcement, own, answering = self.terms.announced[owner], self.terms.peer_id, self.terms.answering
        others = drawn_order(announcement.digest, [member for member in answering if member != owner])
        if announcement.fan_out == own:
            await self.transfers.cache.find(announcement.digest, FAN_OUT_SHARE * self.terms.seconds)
        elif announcement.fan_out in others:
            yield announcement.fan_out, FAN_OUT_SHARE, True
        if own in others[1:]:
            yield others[(others.index(own) - 1) // 2], PEER_SHARE, True
        while True:
            for source in [owner, *others] if owner in answering else others:
                if source != own:
                    yield source, PEER_SHARE, False
            await asyncio.sleep(PAUSE_SECONDS)

    async def _take(self, owner: PeerID, source: PeerID, seconds: float, *, is_patient: bool) -> None:
        """Try to take a contribution from one source; name it if it is to blame that this fails."""
        announcement = self.terms.announced[owner]
        if self.blocklist.avoids(source, time.monotonic()):
            return
        try:
            async with asyncio.timeout_at(self._end_of_owners if source == owner else None):
                delivered = await self.transfers.take(source, announcement, seconds, is_patient=is_patient)
        except AlteredError:
            self._avoid(source, Misbehaviour.ALTERED)
            return
        except (NotHeldError, TimeoutError):
            if source == announcement.fan_out:
                self._refused.add(announcement.digest)
            return
        except Exception as error:  # peers fail in many ways; another one may have it
            logger.info("Peer %s did not give a contribution: %r", source, error)
            return
        self.transfers.cache.put(announcement.digest, delivered.content, self.terms.epoch)
        if source == owner and announcement.digest in self._refused and announcement.fan_out is not None:
            statement = receipt_statement(announcement.fan_out, announcement.digest, self.terms.epoch)
            if delivered.receipt and self.signatures.verify(announcement.fan_out, statement, delivered.receipt):
                self._avoid(announcement.fan_out, Misbehaviour.NOT_PASSED_ON)

    def _mean(self) -> list[torch.Tensor]:
        """Return the mean of all contributions that can be decoded, each counted once; runs in a thread."""
        updates: dict[bytes, tuple[PeerID, SparseUpdate]] = {}
        for owner, announcement in self.terms.announced.items():
            content, digest = self._content_of(owner), announcement.digest
            if content is None or owner in self.lost_senders or digest in updates:
                continue
            try:
                updates[digest] = owner, self.codec.decode(content)
            except ValueError as error:
                logger.warning("The contribution of %s cannot be used. %s", owner, error)
                self.banned_senders.add(owner)
                self._name(owner, Misbehaviour.UNREADABLE)
        # Nothing at all, as from a peer that has just come, would count as the shortest of honest contributions.
        used = [(owner, update) for owner, update in updates.values() if update.norm > 0]
        if not used:
            raise AllreduceException("no member of the group has contributed anything")
        # What all have the same bytes of alone decides, announcements among it: all members come to the same mean.
        claimed = {owner: float(update.num_samples) for owner, update in used}
        weights = list(bounded_weights(claimed, self.terms.recorded, self.terms.max_weight_ratio).values())
        norms, own = [update.norm for _, update in used], self.terms.announced.get(self.terms.peer_id)
        for (_, update), scale in zip(used, norm_scales(norms, weights), strict=True):
            if own is not None and update.digest == own.digest:
                self.note_scale(own.digest, scale)
        self._judge(claimed, norms)
        return mean(self.codec, [update for _, update in used], weights)

    def _judge(self, claimed: Mapping[PeerID, float], norms: Sequence[float]) -> None:
        """Name those whose samples or whose length is not to be believed."""
        believed = bounded_weights(claimed, self.terms.recorded, math.inf)
        for owner, scale in zip(claimed, norm_scales(norms, list(believed.values())), strict=True):
            if scale < FAR_OFF_SCALE:
                self._name(owner, Misbehaviour.FAR_OFF)
        for owner in excess_weights(claimed, believed, self.terms.recorded):
            self._name(owner, Misbehaviour.EXCESS_WEIGHT)

    def _content_of(self, owner: PeerID) -> bytes | None:
        return self.transfers.cache.get(self.terms.announced[owner].digest)

    def _avoid(self, peer: PeerID, offence: Misbehaviour) -> None:
        self.blocklist.avoid(peer, time.monotonic())
        self._name(peer, offence)

    def _name(self, peer: PeerID, offence: Misbehaviour) -> None:
        self.offences.add((peer, offence))
