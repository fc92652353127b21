"""Averaging and state transfer among admitted peers only.

A peer that wants to join a group shows a token and a signature over the peer id, the group, the time and the other data
exchanged in the group; the leader checks it, and so does every member for all others before it aggregates: no leader
can speak for its followers. Where the run has an authority, one gate guards all calls of an averager. Tensor parts are
then accepted only from checked peers, and for anything else, like the training state, a peer introduces itself first:
both sides show their tokens.
"""

import asyncio
import contextlib
import hashlib
import inspect
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from hivemind.averaging.control import StepControl
from hivemind.averaging.group_info import GroupInfo
from hivemind.averaging.matchmaking import MatchmakingException
from hivemind.p2p import P2PContext, PeerID
from hivemind.p2p.servicer import StubBase
from hivemind.proto import auth_pb2, averaging_pb2
from hivemind.utils import get_dht_time
from hivemind.utils.asyncio import achain, as_aiter
from hivemind.utils.serializer import MSGPackSerializer

from pipelines.core.admission.client import PeerAdmission
from pipelines.core.admission.dht_gate import access_token
from pipelines.core.admission.record_owners import key_of
from pipelines.core.admission.tokens import Admission, TokenRefusedError
from pipelines.core.signing.publisher_keys import is_signed_by
from pipelines.core.signing.signed_statement import signed_bytes

logger = logging.getLogger(__name__)

NUM_FIELDS = 3
"""hivemind's own part of a group's data: bandwidth, mode, the user's data."""


class AdmissionGate:
    """The admitted peers known to one averager; lives in the averager's process."""

    def __init__(self, admission: PeerAdmission, prefix: str, seconds_valid: float) -> None:
        self.admission = admission
        self._prefix, self._seconds_valid = prefix, seconds_valid
        self._admitted: dict[bytes, Admission] = {}
        self._tokens: dict[bytes, str] = {}

    def prove(self, gathered: bytes, peer_id: PeerID) -> bytes:
        """Return hivemind's data for the group, with this peer's token and signature."""
        fields, time = MSGPackSerializer.loads(gathered), get_dht_time()
        signature = self.admission.record_key.sign(self._signed(fields, peer_id, time))
        return MSGPackSerializer.dumps([*fields, self.admission.token, time, signature])

    def open(self, gathered: bytes, peer_id: PeerID) -> bytes:
        """Check a peer's group data, remember that it is admitted, and return hivemind's own part of the data.

        Raises:
            TokenRefusedError: it does not prove that this peer is admitted to this group now.
        """
        try:
            *fields, token, time, signature = MSGPackSerializer.loads(gathered)
            is_well_formed = len(fields) == NUM_FIELDS and isinstance(time, float) and isinstance(signature, bytes)
        except Exception:  # a stranger's bytes can fail in many ways
            is_well_formed = False
        if not is_well_formed:
            raise TokenRefusedError(f"{peer_id} shows no token.")
        admission = self.check(token, peer_id)
        if not abs(get_dht_time() - time) < self._seconds_valid:
            raise TokenRefusedError(f"The signature of {admission.username} has the wrong time.")
        if not is_signed_by(admission.record_key, self._signed(fields, peer_id, time), signature):
            raise TokenRefusedError(f"{admission.username} has not signed its data for the group.")
        return MSGPackSerializer.dumps(fields)

    def check(self, token: object, peer_id: PeerID) -> Admission:
        """Check a peer's token and remember that it is admitted; raises TokenRefusedError."""
        now = get_dht_time()
        admission = self.admission.check.check(token, now, peer_id=peer_id.to_bytes())
        self._admitted = {peer: held for peer, held in self._admitted.items() if held.expires_at > now}
        self._admitted[peer_id.to_bytes()] = admission
        self._tokens = {peer: self._tokens[peer] for peer in self._admitted if peer in self._tokens}
        self._tokens[peer_id.to_bytes()] = str(token)
        return admission

    def admission_of(self, peer_id: PeerID) -> Admission | None:
        """Return a peer's admission if it has been checked and is still valid."""
        admission = self._admitted.get(peer_id.to_bytes())
        return admission if admission is not None and get_dht_time() < admission.expires_at else None

    def token_of(self, peer_id: PeerID) -> str:
        """Return the token that a peer has been checked by last; empty if it has not been."""
        return self._tokens.get(peer_id.to_bytes(), "")

    def has_signed(self, peer_id: PeerID, token: str, statement: bytes, signature: bytes) -> bool:
        """Tell whether the record key in a peer's token has signed this, also after the token has expired."""
        try:
            admission = self.admission.check.check(token, -math.inf, peer_id=peer_id.to_bytes())
            return is_signed_by(admission.record_key, statement, signature)
        except TokenRefusedError:
            return False

    def _signed(self, fields: list[object], peer_id: PeerID, time: float) -> bytes:
        # Only the prefix of a group's key is fixed: its bits may change between the request and the round.
        digest = hashlib.sha256(MSGPackSerializer.dumps(fields)).digest()
        return signed_bytes("group", self._prefix, peer_id.to_bytes(), time, digest)


@dataclass(frozen=True, kw_only=True)
class GroupSignatures:
    """Signatures among the members of a group, by the keys in the tokens that were checked when it was formed.

    Who shows another token meanwhile, or one that expires, is still judged by what everybody has been shown.
    """

    gate: AdmissionGate | None
    """None: nobody signs, and everything counts as signed."""

    tokens: Mapping[PeerID, str]
    """The members' tokens; none where nobody signs."""

    def sign(self, statement: bytes) -> bytes:
        """Return this peer's signature; empty where nothing is checked."""
        return b"" if self.gate is None else self.gate.admission.record_key.sign(statement)

    def verify(self, peer_id: PeerID, statement: bytes, signature: bytes) -> bool:
        """Tell whether a member has signed this."""
        return self.has_signed(peer_id, self.tokens.get(peer_id, ""), statement, signature)

    def has_signed(self, peer_id: PeerID, token: str, statement: bytes, signature: bytes) -> bool:
        """Tell whether the key that a peer's token names has signed this; anybody comes to the same result."""
        return self.gate is None or self.gate.has_signed(peer_id, token, statement, signature)


class GatedAverager(Protocol):
    """What the gate needs from its averager, besides the calls it answers."""

    async def until_group_is_checked(self, group_id: bytes) -> None:
        """Wait until this peer has checked the members of a group, which another member may have learned of earlier."""


class AveragingGate:
    """The gate of one averager, in its process: which peers it accepts."""

    def __init__(self, admission: PeerAdmission | None, prefix: str, seconds_of_a_round: float | None) -> None:
        """`admission` is this peer's, None: nothing is checked; `prefix` is the averager's."""
        self._seconds = seconds_of_a_round
        seconds_valid = max(60.0, 6 * (seconds_of_a_round or 60.0))
        self._gate = None if admission is None else AdmissionGate(admission, prefix, seconds_valid)
        self._guard = self._gate if admission is not None and admission.has_authority else None  # of all other calls

    def prove(self, step: StepControl, peer_id: PeerID, told: bytes) -> None:
        """Make what this peer tells its group, with its token and signature, its data for the group."""
        step._data_for_gather = told if self._gate is None else self._gate.prove(told, peer_id)

    def opened(self, gathered: bytes, peer_id: PeerID) -> bytes:
        """Check what a peer tells its group, and return hivemind's own part of it.

        Raises:
            TokenRefusedError: the peer is not admitted, or has not signed it.
        """
        return gathered if self._gate is None else self._gate.open(gathered, peer_id)

    def checked(self, group: GroupInfo) -> GroupInfo:
        """Check all members of a group; return it with hivemind's own part of their data.

        Raises:
            MatchmakingException: a member is not admitted.
        """
        try:
            pairs = zip(group.gathered, group.peer_ids, strict=True)
            return replace(group, gathered=tuple(self.opened(data, peer) for data, peer in pairs))
        except TokenRefusedError as error:
            logger.warning("A group was aborted: %s", error)
            raise MatchmakingException(f"A peer in the group is not admitted: {error}") from error

    def signatures_of(self, members: Iterable[PeerID]) -> GroupSignatures:
        """Return how the members of a group that has just been checked sign."""
        tokens = {} if self._gate is None else {member: self._gate.token_of(member) for member in members}
        return GroupSignatures(gate=self._gate, tokens=tokens)

    def may_sign(self, peer_id: PeerID, owner: bytes) -> bool:
        """Tell whether records of this owner may speak for a peer: it has not shown a token with another key."""
        admission = None if self._gate is None else self._gate.admission_of(peer_id)
        return admission is None or key_of(owner) == admission.record_key.encode()

    def introduction(self) -> auth_pb2.RequestAuthInfo:
        """Return this peer's introduction."""
        return auth_pb2.RequestAuthInfo(client_access_token=self._token())

    def answer(self, request: auth_pb2.RequestAuthInfo, peer_id: PeerID) -> auth_pb2.ResponseAuthInfo:
        """Check a peer's token and show this peer's; in an open run there is nothing to show."""
        if self._guard is not None:
            self._guard.check(request.client_access_token.username, peer_id)
        return auth_pb2.ResponseAuthInfo(service_access_token=self._token())

    async def introduce(self, greet: Callable[[PeerID], Awaitable[auth_pb2.ResponseAuthInfo]], peer_id: PeerID) -> None:
        """`greet` another peer and check its token; required before any request except averaging.

        Raises:
            TokenRefusedError: the other peer is not admitted.
        """
        if self._guard is not None:
            self._guard.check((await greet(peer_id)).service_access_token.username, peer_id)

    def guarded(self, averager: GatedAverager) -> "_GuardedCalls | None":
        """Return the averager's handlers behind the gate; None: the averager may answer itself."""
        return None if self._guard is None else _GuardedCalls(averager, self._guard, self._seconds)

    def introducing(self, stub: StubBase, introduce: Callable[[], Awaitable[None]]) -> "StubBase | _IntroducingStub":
        """Return a stub that introduces this peer before each call."""
        return stub if self._guard is None else _IntroducingStub(stub, introduce)

    def _token(self) -> auth_pb2.AccessToken | None:
        return None if self._guard is None else access_token(self._guard.admission)


class _GuardedCalls:
    """An averager's handlers behind the gate; unlisted handlers are closed to strangers."""

    def __init__(self, averager: GatedAverager, gate: AdmissionGate, seconds: float | None) -> None:
        """`seconds`: how long a stranger's first part waits for a group in which it is a member; None: for ever."""
        self._averager, self._gate, self._seconds = averager, gate, seconds

    def __getattr__(self, name: str) -> object:
        call = getattr(self._averager, name)
        if name in ("rpc_introduce", "rpc_join_group"):  # these check for themselves, see `answer` and `opened`
            return call
        before: Callable[[Any, P2PContext], Awaitable[object]] = (
            self._check_sender if name == "rpc_aggregate_part" else self._check_introduced
        )

        async def answer_once(request: object, context: P2PContext) -> object:
            return await call(await before(request, context), context)

        async def answer(request: object, context: P2PContext) -> AsyncIterator[object]:
            request = await before(request, context)
            async with contextlib.aclosing(call(request, context)) as messages:
                async for message in messages:
                    yield message

        return answer if inspect.isasyncgenfunction(call) else answer_once

    async def _check_introduced(self, request: object, context: P2PContext) -> object:
        if self._gate.admission_of(context.remote_id) is None:
            raise TokenRefusedError(f"{context.remote_id} has not introduced itself, or its token has expired.")
        return request

    async def _check_sender(
        self, stream: AsyncIterator[averaging_pb2.AveragingData], context: P2PContext
    ) -> AsyncIterator[averaging_pb2.AveragingData]:
        if self._gate.admission_of(context.remote_id) is not None:
            return stream
        try:
            async with asyncio.timeout(self._seconds):
                first = await anext(stream)
                await self._averager.until_group_is_checked(first.group_id)
        except (StopAsyncIteration, TimeoutError):
            raise TokenRefusedError(f"{context.remote_id} does not belong to a group.") from None
        await self._check_introduced(first, context)
        return achain(as_aiter(first), stream)


class _IntroducingStub:
    """A stub that introduces this peer before each call."""

    def __init__(self, stub: StubBase, introduce: Callable[[], Awaitable[None]]) -> None:
        self._stub, self._introduce = stub, introduce

    def __getattr__(self, name: str) -> object:
        call = getattr(self._stub, name)

        async def introduce_and_call(*args: object, **kwargs: object) -> object:
            await self._introduce()
            return await call(*args, **kwargs)

        return introduce_and_call
