"""What a fan-out node, or a member of a group, may do to the contributions that it should pass on; by name.

Each behaves like an honest peer to whoever asks it first: what it does must not set others apart.
"""

import os
import signal

from hivemind.proto import averaging_pb2

from pipelines.features.sparse.averager import SparseAverager
from pipelines.features.sparse.transfers import Transfers

FIRST_EPOCH = 1


class FalseTransfers(Transfers):
    """Does wrong from `FIRST_EPOCH` on, to all but the first peer that ever asks."""

    _favoured = None

    async def pass_on(self, taker, request):
        self._favoured = self._favoured or taker
        is_wronged = taker != self._favoured and self.cache.epoch >= FIRST_EPOCH
        async for message in self.wrong(taker, request) if is_wronged else super().pass_on(taker, request):
            yield message


class OmittingTransfers(FalseTransfers):
    """Takes everything and gives nothing."""

    async def wrong(self, taker, request):
        yield averaging_pb2.DownloadData()


class AlteringTransfers(FalseTransfers):
    """Changes the last byte."""

    async def wrong(self, taker, request):
        async for message in Transfers.pass_on(self, taker, request):
            if message.tensor_part.buffer:
                *rest, last = message.tensor_part.buffer
                message.tensor_part.buffer = bytes([*rest, last ^ 1])
            yield message


class WithholdingTransfers(Transfers):
    """Announces and gives to nobody."""

    async def pass_on(self, taker, request):
        if self.cache.epoch >= FIRST_EPOCH:
            yield averaging_pb2.DownloadData()
            return
        async for message in super().pass_on(taker, request):
            yield message

    async def give(self, peer, announcement, epoch):
        if epoch < FIRST_EPOCH:
            await super().give(peer, announcement, epoch)


class DyingTransfers(Transfers):
    """Is killed when it is asked for something, and with it all processes of the peer."""

    async def pass_on(self, taker, request):
        if self.cache.epoch >= FIRST_EPOCH:
            os.killpg(os.getpgrp(), signal.SIGKILL)
        async for message in super().pass_on(taker, request):
            yield message


KINDS = dict(
    omitting=OmittingTransfers, altering=AlteringTransfers, withholding=WithholdingTransfers, dying=DyingTransfers
)


def deliver_falsely(kind: str) -> None:
    """Make the averagers of this process do so."""
    SparseAverager.transfers_type = KINDS[kind]
