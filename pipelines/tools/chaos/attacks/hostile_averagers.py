"""Hostile members of groups, and hostile donors of states."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping
from typing import Any, TypeVar
from typing import AsyncIterator as StreamOf  # noqa: UP035 - hivemind recognises only typing's name

import torch
from hivemind.averaging.control import StepControl
from hivemind.p2p import P2PContext, PeerID
from hivemind.proto import averaging_pb2
from hivemind.utils import MSGPackSerializer, get_dht_time

from pipelines.core.averaging.averager import SwarmAverager
from pipelines.core.averaging.group.matchmaking import PacedKeyManager
from pipelines.core.averaging.reducing_end import ReducingEnd
from pipelines.core.averaging.runner import TrustedAllReduceRunner
from pipelines.core.averaging.wire.codec import averaging_compression
from pipelines.core.epoch.hivemind_options import averager_options
from pipelines.core.epoch.reduction import Reduction
from pipelines.core.optimizers.choice import OptimizerContext, optimizer_parts
from pipelines.core.state.download import WANT_MANIFEST, manifest_request
from pipelines.core.state.exchange import Donors, StateExchange, StateService
from pipelines.core.state.snapshot import CHUNK_BYTES
from pipelines.core.state.training_state import TrainingState
from pipelines.core.swarm.streams.conversation import Conversation
from pipelines.features.audits.checks import RoundChecks
from pipelines.features.audits.evidence import Verdict
from pipelines.tasks.text_to_image.model import initial_model
from pipelines.tools.chaos.attacks.hostile_node import HostileNode

Averager = TypeVar("Averager", bound=SwarmAverager)
Exchange = TypeVar("Exchange", bound=StateExchange)
SECONDS_OF_SILENCE = 60.0
NO_SUCH_MODE = 9


class StallingLeader(SwarmAverager):
    """Accepts everybody into its group and says nothing more."""

    async def rpc_join_group(
        self, request: averaging_pb2.JoinRequest, context: P2PContext
    ) -> StreamOf[averaging_pb2.MessageFromLeader]:
        """Accept, and be silent."""
        yield averaging_pb2.MessageFromLeader(code=averaging_pb2.ACCEPTED)
        await asyncio.sleep(SECONDS_OF_SILENCE)

    def lead(self) -> None:
        """Be the first of all leaders, for as long as the process lives."""
        self._tell_process("_lead")

    async def _lead(self) -> None:
        self.declaring = asyncio.create_task(self._declare())

    async def _declare(self) -> None:
        # Whose declarations are signed: nodes store no others.
        manager = PacedKeyManager(self._matchmaking.group_key_manager, pause_seconds=0.1)
        while True:
            # Declared to begin soon: who begins first is followed.
            await manager.declare_averager(manager.current_key, self.peer_id, get_dht_time() + 0.5)
            await asyncio.sleep(0.1)


class Participant(SwarmAverager):
    """Takes part in rounds like everybody, with a gradient of zeros."""

    def try_round(self, epoch: int) -> None:
        """Look for a group of an epoch, as everybody does."""
        self.epoch_to_average = epoch
        with self.get_tensors() as tensors:
            for tensor in tensors:
                tensor.zero_()
        with contextlib.suppress(Exception):  # the others do not let it in
            self.step(timeout=self.matchmaking_kwargs["min_matchmaking_time"] * 2, allow_retries=False)


class ZeroingReducer(Participant):
    """Answers zeros for its share of the vector, and proves it if it is asked to."""

    @property
    def runner_type(self) -> type["_ZeroingRunner"]:
        """Rounds with such answers."""
        return _ZeroingRunner


class _ZeroingEnd(ReducingEnd):
    def _signed(self, average: torch.Tensor, part_index: int) -> averaging_pb2.AveragingData:
        return super()._signed(torch.zeros_like(average), part_index)


class _ZeroingRunner(TrustedAllReduceRunner):
    reducing_type = _ZeroingEnd


class FramingMember(Participant):
    """Accuses a reducer after each round, and shows what that one has honestly shown."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **(kwargs | dict(checks_type=_FramingChecks)))


class _FramingChecks(RoundChecks):
    judge = staticmethod(lambda evidence, terms: Verdict.FALSE)

    def avoids(self, peer: PeerID) -> bool:
        return False  # it does not believe it itself


class BadMember(Participant):
    """Tells its group that it takes part in a way that does not exist."""

    async def _step(self, *, step: StepControl, **kwargs: object) -> None:
        bandwidth, _, message = MSGPackSerializer.loads(step.data_for_gather)
        step._data_for_gather = MSGPackSerializer.dumps([bandwidth, NO_SUCH_MODE, message])
        await super()._step(step=step, **kwargs)


class EndlessDonor(StateService):
    """Answers every question for the hashes of a state without an end."""

    async def _hand_out(self, request: Mapping[str, object], reader: Conversation) -> AsyncGenerator[bytearray, None]:
        while request["want"] == WANT_MANIFEST:
            yield bytearray(b" " * CHUNK_BYTES)


class HoldingReader(StateExchange):
    """Asks for states that it does not want, and keeps its conversations with their donors."""

    donors: Donors | None = None

    def hold(self, digest: str, donors: list[str]) -> None:
        """Ask each donor for its copy, which it keeps for who reads it."""
        self._loop.start(self._hold_all(digest, donors))

    async def _hold_all(self, digest: str, donors: list[str]) -> None:
        self.donors = self.donors or Donors(self._open, SECONDS_OF_SILENCE)
        for donor in donors:
            with contextlib.suppress(Exception):  # it has another state by now
                async for _ in self.donors.ask(donor, manifest_request(digest)):
                    pass


def hostile_averager(node: HostileNode, kind: type[Averager]) -> Averager:
    """Start an averager of gradients that the others take for one of theirs."""
    run = node.run
    averager = Reduction(run, kind).averager(
        averaged_tensors=[torch.zeros_like(p) for group in _optimizer_parts(node)["params"] for p in group["params"]],
        dht=node.dht,
        admission=node.admission,
        prefix=f"{run.swarm_id}_grad_averager",
        min_matchmaking_time=run.matchmaking_seconds,
        compression=averaging_compression(run),
        allreduce_timeout=run.averaging_timeout_seconds / 2,
        start=True,
        **averager_options(run),
    )
    assert isinstance(averager, kind)
    return averager


def zeroed_state(node: HostileNode, exchange: type[Exchange], service: type[StateService] = StateService) -> Exchange:
    """Offer a training state of zeros."""
    swarm_id = node.run.swarm_id
    state = TrainingState(swarm_id, **_optimizer_parts(node))
    with torch.no_grad():
        for parameter in state.optimized_parameters:
            parameter.zero_()
    state.take_snapshot()
    offered = exchange(state, node.dht, swarm_id, admission=node.admission, service=service(state.snapshot))
    offered.share()
    return offered


def _optimizer_parts(node: HostileNode) -> OptimizerContext:
    return optimizer_parts(node.run, initial_model(node.run))
