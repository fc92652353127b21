"""What an averager answers besides averages: who it is, and what the members of a round may ask for afterwards."""

import asyncio
from functools import partial
from typing import Any
from typing import AsyncIterator as StreamOf  # noqa: UP035 - hivemind recognises only typing's name

from hivemind.averaging.averager import DecentralizedAverager
from hivemind.p2p import P2P, P2PContext, PeerID
from hivemind.p2p.servicer import StubBase
from hivemind.proto import auth_pb2, averaging_pb2
from hivemind.utils.asyncio import as_aiter

from pipelines.core.admission.averaging_gate import AveragingGate
from pipelines.core.admission.client import PeerAdmission
from pipelines.core.admission.protocol_names import NamedServicer
from pipelines.core.averaging.checks import Checks
from pipelines.core.averaging.wire.signed_parts import RoundAnswers, read_answers_request
from pipelines.core.averaging.wire.streams import until_reader_closes
from pipelines.core.child_watch import end_with_parent
from pipelines.core.swarm.forks import forget_ended_calls, set_aside_what_exists
from pipelines.core.swarm.streams.bounded import bound_streams
from pipelines.core.swarm.upload_limit import UploadLimit, pass_bytes

ANSWERS_SECONDS, ATTEMPTS_KEPT = 60.0, 3
"""How long the answers of a round, and what they were made of, are kept for members that ask, as they were sent; and of
how many attempts at most: where an epoch takes seconds, 60 s of them are the vector many times over."""


class AnsweringAverager(NamedServicer, DecentralizedAverager):
    """An averager that answers admitted peers alone, and members of its rounds what these may ask for."""

    def __init__(
        self,
        *args: Any,
        prefix: str,
        admission: PeerAdmission | None,
        upload_limit: UploadLimit | None = None,
        **kwargs: Any,
    ) -> None:
        """`admission` is this peer's; None: everybody is answered. All else is as in `DecentralizedAverager`."""
        self._gate = AveragingGate(admission, prefix, kwargs.get("allreduce_timeout"))
        self._upload_limit = upload_limit
        self._answers: dict[bytes, RoundAnswers] = {}
        self._ended_groups: list[bytes] = []
        self._checks: Checks | None = None
        super().__init__(*args, prefix=prefix, **kwargs)

    def _run_internal(self) -> None:
        set_aside_what_exists()
        end_with_parent()
        super()._run_internal()

    async def add_p2p_handlers(self, p2p: P2P, wrapper: object = None, **kwargs: object) -> None:
        """Answer calls, and refuse those of strangers."""
        forget_ended_calls(p2p)
        bound_streams(p2p)
        await super().add_p2p_handlers(p2p, self._gate.guarded(self) or wrapper, **kwargs)

    async def rpc_introduce(self, request: auth_pb2.RequestAuthInfo, context: P2PContext) -> auth_pb2.ResponseAuthInfo:
        """Let a peer introduce itself; see `AveragingGate.answer`."""
        return self._gate.answer(request, context.remote_id)

    async def greet(self, peer: PeerID) -> auth_pb2.ResponseAuthInfo:
        """Call another averager; return its answer, which contains its token if the run has an authority."""
        stub = self._stub_of(peer)
        return await stub.rpc_introduce(self._gate.introduction(), timeout=self.request_timeout * 2)

    def _stub_of(self, peer: PeerID) -> StubBase:
        return self.get_stub(self._p2p, peer, namespace=self.prefix)

    def _introducing_stub_of(self, peer: PeerID) -> StubBase:
        """Return a stub for calls of peers that may not have checked this one's group yet."""
        return self._gate.introducing(self._stub_of(peer), partial(self._gate.introduce, self.greet, peer))

    async def until_group_is_checked(self, group_id: bytes) -> None:
        """Wait until this peer has checked the members of a group, which another member may have learned of earlier."""
        if group_id not in self._running_groups:
            await self._pending_groups_registered.wait()
        if (group := self._running_groups.get(group_id)) is not None:
            await asyncio.wait([group])

    async def rpc_take_answers(
        self, request: averaging_pb2.DownloadData, context: P2PContext
    ) -> StreamOf[averaging_pb2.AveragingData]:
        """Pass a reducer's answers on to a member of the same round that did not get them; see `RoundAnswers`."""
        group_id, reducer, part_indices = read_answers_request(request)
        if group_id not in self._answers:  # who only listens may ask before this peer has begun
            await self.until_group_is_checked(group_id)
        if (answers := self._answers.get(group_id)) is None:
            return
        async for message in until_reader_closes(answers.given_to(context.remote_id, reducer, part_indices)):
            await pass_bytes(self._upload_limit, len(message.tensor_part.buffer))
            yield message

    async def rpc_show_inputs(
        self, request: averaging_pb2.DownloadData, context: P2PContext
    ) -> StreamOf[averaging_pb2.AveragingData]:
        """Show a member of the same round what one of this peer's answers was made of; see `RoundInputs`."""
        inputs = () if self._checks is None else self._checks.shown(context.remote_id, request)
        if inputs:
            async for message in until_reader_closes(as_aiter(*inputs)):
                await pass_bytes(self._upload_limit, len(message.tensor_part.buffer))
                yield message

    async def rpc_accuse(
        self, stream: StreamOf[averaging_pb2.AveragingData], context: P2PContext
    ) -> StreamOf[averaging_pb2.AveragingData]:
        """Hear what a member of the same round has to show against another one; see `Checks.hear`."""
        if self._checks is not None:
            async for message in until_reader_closes(self._checks.hear(context.remote_id, stream)):
                yield message

    def _keep_for_a_while(self, group_id: bytes) -> None:
        """Keep an attempt's answers, which members that lack some ask for at once; those of early attempts go now."""
        self._ended_groups.append(group_id)
        for old in self._ended_groups[:-ATTEMPTS_KEPT]:
            self._let_go(old)
        asyncio.get_running_loop().call_later(ANSWERS_SECONDS, self._let_go, group_id)

    def _let_go(self, group_id: bytes) -> None:
        if group_id in self._ended_groups and self._checks is not None:
            self._ended_groups.remove(group_id)
            self._answers.pop(group_id, None)
            self._checks.close(group_id)
