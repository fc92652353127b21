"""The averager of sparse progress: members give each other their contributions, all to everybody, and reduce no parts.

Forming groups, trying again, figures and suspects are those of every averager; a `ContributionRound` takes the place of
the all-reduce. A peer gives its contribution to a fan-out node, if it knows one, while it looks for a group.
"""

import asyncio
import logging
import multiprocessing
import time
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from typing import AsyncIterator as StreamOf  # noqa: UP035 - hivemind recognises only typing's name

import torch
from hivemind.averaging.allreduce import AveragingMode
from hivemind.averaging.control import StepControl
from hivemind.averaging.group_info import GroupInfo
from hivemind.p2p import P2PContext, PeerID
from hivemind.proto import averaging_pb2
from hivemind.utils import MSGPackSerializer

from pipelines.core.averaging.averager import SwarmAverager
from pipelines.core.averaging.figures import Round
from pipelines.core.averaging.group.blocklist import Blocklist
from pipelines.core.averaging.group.time_limits import AttemptTimes
from pipelines.core.averaging.wire.streams import until_reader_closes
from pipelines.features.sparse.announcement import (
    Announcement,
    agreed_records,
    announced_in,
    drawn_order,
    receipt_statement,
)
from pipelines.features.sparse.codec import SparseCodec
from pipelines.features.sparse.contribution_cache import ContributionCache
from pipelines.features.sparse.mean import share_to_send_again
from pipelines.features.sparse.round import ContributionRound, ContributionTerms
from pipelines.features.sparse.transfers import Transfers

logger = logging.getLogger(__name__)

FIRST_AVOIDED_SECONDS, LONGEST_AVOIDED_SECONDS = 5.0, 3600.0
"""A peer that does not pass contributions on is given and asked for none for this long, twice as long each time."""

SHARE_OF_THE_LAST_ATTEMPT = 0.9
"""Share of the time of an all-reduce in which the last attempt collects; the rest is for the mean."""

SECONDS_OF_AN_ATTEMPT = 60.0
"""How long contributions are collected if the averager was given no time-out."""


class SparseAverager(SwarmAverager):
    """Averages sparse progress; the mean is where averaged gradients are."""

    PROTOCOL_NAME = "SparseGradientAverager"
    round_type: type[ContributionRound] = ContributionRound
    transfers_type: type[Transfers] = Transfers

    def __init__(self, averaged_tensors: Sequence[torch.Tensor], *, values_per_chunk: int, **kwargs: Any) -> None:
        """`values_per_chunk`: how many values of each chunk are sent; all else is as in `SwarmAverager`."""
        self.codec = codec = SparseCodec([tuple(tensor.shape) for tensor in averaged_tensors], k=values_per_chunk)
        self._contribution: bytes | None = None
        self._round: StepControl | None = None
        # Shared, before hivemind forks the process that runs the rounds: its pipe fails with messages that do not fit
        # into a socket's buffer, which uvloop makes non-blocking.
        self._was_taken = multiprocessing.Value("b", 0)  # by another peer: it may be in the others' mean
        self._own_scale = multiprocessing.Value("d", 1.0)  # by which the mean has shortened it, as far as is known here
        self._offered = torch.zeros(codec.most_bytes, dtype=torch.uint8).share_memory_()
        self._cache = ContributionCache(range(codec.least_bytes, codec.most_bytes + 1))
        self._blocklist = Blocklist(FIRST_AVOIDED_SECONDS, LONGEST_AVOIDED_SECONDS)
        self._announcement: Announcement | None = None
        self._fan_outs: list[PeerID] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._longest_attempt = SHARE_OF_THE_LAST_ATTEMPT * (kwargs.get("allreduce_timeout") or SECONDS_OF_AN_ATTEMPT)
        self._transfers = self.transfers_type(
            self._cache,
            self._introducing_stub_of,
            count_bytes=lambda number: self._figures.count_bytes(number),
            upload_limit=kwargs.get("upload_limit"),
            sign_receipt=self._sign_receipt,
            note_taken=self._note_taken,
        )
        super().__init__(averaged_tensors, **kwargs)

    @staticmethod
    def times_of_attempts(
        round_seconds: float | None, chunk_seconds: float | None, matchmaking_seconds: float
    ) -> AttemptTimes:
        """Return the times of attempts: each at least until a silent sender would be dropped, who has announced."""
        return AttemptTimes(lowest=chunk_seconds, highest=round_seconds)

    def contribute(self, content: bytes | None) -> None:
        """Make this the contribution to the next round; None: this peer has nothing to contribute."""
        self._contribution, self._round = content, None

    @property
    def may_have_counted(self) -> bool:
        """Whether the newest contribution may be in a mean: this peer's own without the others, or theirs."""
        return self._round is None or (self._round.began_allreduce and bool(self._was_taken.value))

    @property
    def share_to_send_again(self) -> float:
        """Which share of the newest contribution counts again, in the next one: all of it, or what the mean has cut."""
        if not self.may_have_counted:
            return 1.0
        return 0.0 if self._round is None else share_to_send_again(self._own_scale.value)

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """See `SwarmAverager.step`. The group hears of the contribution: it is looked for only now."""
        assert self.epoch_to_average is not None, "a contribution is to the round of an epoch"
        self._was_taken.value, self._own_scale.value = 0, 1.0
        num_bytes = len(self._contribution or b"")
        if self._contribution:
            self._offered[:num_bytes] = torch.frombuffer(bytearray(self._contribution), dtype=torch.uint8)
        self._tell_process("_offer", num_bytes, self.epoch_to_average)
        self._round = super().step(*args, **kwargs)
        return self._round

    async def rpc_give_contribution(
        self, stream: StreamOf[averaging_pb2.AveragingData], context: P2PContext
    ) -> StreamOf[averaging_pb2.AveragingData]:
        """Take a contribution that a peer gives for all others; see `Transfers.receive`."""
        async for message in until_reader_closes(self._transfers.receive(context.remote_id, stream)):
            yield message

    async def rpc_take_contribution(
        self, request: averaging_pb2.DownloadData, context: P2PContext
    ) -> StreamOf[averaging_pb2.DownloadData]:
        """Give a contribution to a peer that knows its digest; see `Transfers.pass_on`."""
        self._num_senders_served += 1
        try:
            async for message in until_reader_closes(self._transfers.pass_on(context.remote_id, request)):
                yield message
        finally:
            self._num_senders_served -= 1

    async def rpc_aggregate_part(
        self, stream: StreamOf[averaging_pb2.AveragingData], context: P2PContext
    ) -> StreamOf[averaging_pb2.AveragingData]:
        """Refuse: nobody averages parts for others."""
        yield averaging_pb2.AveragingData(code=averaging_pb2.PROTOCOL_VIOLATION)

    async def _offer(self, num_bytes: int, epoch: int) -> None:
        self._cache.begin_round(epoch)
        self._announcement = None
        if not num_bytes:
            return
        content = self._offered[:num_bytes].numpy().tobytes()
        announcement = Announcement.of(content, self._recorded_weights)
        self._cache.put(announcement.digest, content, epoch)
        now = time.monotonic()
        known = [peer for peer in self._fan_outs if not self._blocklist.avoids(peer, now)]
        for fan_out in drawn_order(announcement.digest, known)[:1]:
            announcement = replace(announcement, fan_out=fan_out)
            self._in_background(self._give([fan_out], announcement, epoch))
        self._announcement = announcement

    async def _give(self, peers: Sequence[PeerID], announcement: Announcement, epoch: int) -> None:
        """Give this peer's contribution to the first of these peers that takes it; avoid those that do not."""
        for peer in peers:
            try:
                await self._transfers.give(peer, announcement, epoch)
                return
            except Exception as error:  # peers fail in many ways; this one or others give it then
                logger.info("Peer %s did not take a contribution: %r", peer, error)
                self._blocklist.avoid(peer, time.monotonic())

    @asynccontextmanager
    async def _dividing(self, group_info: GroupInfo) -> AsyncIterator[tuple[int, ...]]:
        yield ()  # nobody reduces

    def _told(self, gathered: bytes) -> bytes:
        if self._announcement is None:
            return gathered
        bandwidth, mode, _ = MSGPackSerializer.loads(gathered)
        return MSGPackSerializer.dumps([bandwidth, mode, self._announcement.encode()])

    def _check_gathered(self, gathered: bytes) -> None:
        super()._check_gathered(gathered)
        announced_in(gathered, self._cache.sizes)

    def _new_round(self, group: GroupInfo, modes: Mapping[PeerID, AveragingMode], **options: Any) -> Round:
        found = {peer: announced_in(told, self._cache.sizes) for peer, told in zip(modes, group.gathered, strict=True)}
        seconds, is_last = self._attempt_seconds(), self._num_attempts_left == 0
        announced = {peer: announcement for peer, announcement in found.items() if announcement is not None}
        terms = ContributionTerms(
            peer_id=self.peer_id,
            epoch=self._cache.epoch,
            modes=modes,
            announced=announced,
            seconds=self._longest_attempt if is_last or seconds is None else seconds,
            max_weight_ratio=self._rule.max_weight_ratio,
            recorded=agreed_records(announced),
            is_last_attempt=is_last,
        )
        self._fan_outs = [peer for peer in terms.answering if terms.modes[peer] == AveragingMode.AUX]
        own = terms.announced.get(self.peer_id)
        if own is not None and own.fan_out is None and self.peer_id not in terms.answering:  # nobody can take it here
            self._in_background(self._give(drawn_order(own.digest, terms.answering), own, terms.epoch))
        signatures = self._gate.signatures_of(modes)
        return self.round_type(terms, self.codec, self._transfers, signatures, self._blocklist, self._note_scale)

    def _sign_receipt(self, digest: bytes, epoch: int) -> bytes:
        return self._gate.signatures_of(()).sign(receipt_statement(self.peer_id, digest, epoch))

    def _note_taken(self, digest: bytes) -> None:
        if self._is_newest(digest):
            self._was_taken.value = 1

    def _note_scale(self, digest: bytes, scale: float) -> None:
        if self._is_newest(digest):
            self._own_scale.value = scale

    def _is_newest(self, digest: bytes) -> bool:
        return self._announcement is not None and digest == self._announcement.digest

    def _in_background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
