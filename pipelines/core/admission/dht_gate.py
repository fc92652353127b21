"""The DHT node of a run with an authority: every call carries a token, and every answer does."""

import contextlib
import logging
import os
import signal
from contextvars import ContextVar
from functools import partial
from typing import Protocol

import hivemind
from hivemind.dht.node import DHTNode
from hivemind.dht.protocol import DHTProtocol
from hivemind.p2p import P2P, P2PContext, PeerID
from hivemind.proto import auth_pb2
from hivemind.utils import get_dht_time
from hivemind.utils.auth import AuthRole, AuthRPCWrapper, TokenAuthorizerBase
from hivemind.utils.multiaddr import Multiaddr

from hub_tools.processes.child_watch import ChildWatch, end_with_parent
from pipelines.core.admission.client import PeerAdmission
from pipelines.core.admission.tokens import Admission, TokenRefusedError

logger = logging.getLogger(__name__)

CALLER: ContextVar[PeerID | None] = ContextVar("CALLER", default=None)
"""Who has made the DHT call that is being answered, as libp2p proves; None: this node itself."""


class SwarmDHT(hivemind.DHT):
    """A DHT node that answers only admitted peers if the run has an authority; all others are open."""

    def __init__(self, *, admission: PeerAdmission | None, own_group: bool = False, **kwargs: object) -> None:
        """`own_group`: a terminal's Ctrl-C does not reach its process, nor p2pd, which ends at every SIGINT."""
        self.authorizer, self._own_group = authorizer_of(admission), own_group
        self.children = ChildWatch()
        """Watches the processes of this peer, within `open_dht`."""

        super().__init__(authorizer=self.authorizer, **kwargs)

    def run(self) -> None:
        """Serve the node until it is shut down, or its parent process dies."""
        if self._own_group:
            os.setpgid(0, 0)
        end_with_parent(self._kill_daemon)
        try:
            super().run()
        except EOFError:  # half of a call has arrived; hivemind expects any other error there
            logger.info("The DHT node exits: its parent process died in the middle of a call.")

    def _kill_daemon(self) -> None:
        with contextlib.suppress(AttributeError, OSError):  # there is none yet, or no more
            os.kill(self._node.p2p._child.pid, signal.SIGKILL)

    def daemon_process(self) -> int:
        """Return the id of the libp2p daemon's process."""
        return self.run_coroutine(_daemon_process)

    async def replicate_p2p(self) -> P2P:
        """Return a connection to the daemon for the loop that asks; hivemind would give a process's first to all."""
        return await P2P.replicate(self.run_coroutine(_daemon_address))

    def bind_peers(self) -> None:
        """From now on answer only peers that own the token in their call, if there is one, and note who calls."""
        if not self.client_mode:
            self.run_coroutine(_bind_peers)

    def expect_replies_within(self, seconds: float) -> None:
        """From now on treat a node that has not replied by then as gone, for a while.

        Until then every DHT query waits for it. Matchmaking takes seconds and cannot wait that long.
        """
        self.run_coroutine(partial(_expect_replies_within, seconds))


class SwarmAuthorizer(TokenAuthorizerBase):
    """Signs calls of the DHT with the newest token and checks those of others; runs in the DHT's process."""

    def __init__(self, admission: PeerAdmission) -> None:
        super().__init__(admission.record_key)
        self._admission = admission

    async def get_token(self) -> auth_pb2.AccessToken:
        """Return the newest token; it is in shared memory, so this never blocks."""
        return access_token(self._admission)

    def is_token_valid(self, access_token: auth_pb2.AccessToken) -> bool:
        """Tell whether a token is from the authority, for this run, for the accompanying key, and still valid."""
        try:
            self.admission_of(access_token)
        except TokenRefusedError:
            return False
        return True

    def admission_of(self, access_token: auth_pb2.AccessToken, peer_id: bytes | None = None) -> Admission:
        """Return what a token says; raises TokenRefusedError."""
        return self._admission.check.check(
            access_token.username, get_dht_time(), record_key=access_token.public_key, peer_id=peer_id
        )

    def does_token_need_refreshing(self, access_token: auth_pb2.AccessToken) -> bool:
        """Tell whether a newer token has been put into shared memory."""
        return access_token.username != self._admission.token


def authorizer_of(admission: PeerAdmission | None) -> SwarmAuthorizer | None:
    """Return what signs and checks a peer's calls in a run with an authority; None in all others."""
    return None if admission is None or not admission.has_authority else SwarmAuthorizer(admission)


def access_token(admission: PeerAdmission) -> auth_pb2.AccessToken:
    """Return the newest token in hivemind's format, whose `username` carries all of ours."""
    return auth_pb2.AccessToken(username=admission.token, public_key=admission.record_key.get_public_key().to_bytes())


class AuthorizedRequest(Protocol):
    """A call of the DHT."""

    auth: auth_pb2.RequestAuthInfo


class PeerBoundCalls:
    """The DHT's handlers, which note the `CALLER`, for peers whose libp2p identity is the one in their token, if any.

    hivemind's wrapper does not check who shows a token: a member could lend the record key to strangers.
    """

    def __init__(self, protocol: DHTProtocol, authorizer: SwarmAuthorizer | None) -> None:
        self._calls, self._authorizer = AuthRPCWrapper(protocol, AuthRole.SERVICER, authorizer), authorizer

    def __getattr__(self, name: str) -> object:
        call = getattr(self._calls, name)

        async def check_and_call(request: AuthorizedRequest, context: P2PContext) -> object:
            if self._authorizer is not None:
                self._authorizer.admission_of(request.auth.client_access_token, context.remote_id.to_bytes())
            CALLER.set(context.remote_id)
            return await call(request, context)

        return check_and_call


async def _daemon_address(_dht: hivemind.DHT, node: DHTNode) -> Multiaddr:
    return node.p2p.daemon_listen_maddr


async def _daemon_process(dht: SwarmDHT, node: DHTNode) -> int:
    return node.p2p._child.pid


async def _expect_replies_within(seconds: float, dht: SwarmDHT, node: DHTNode) -> None:
    node.protocol.wait_timeout = seconds


async def _bind_peers(dht: SwarmDHT, node: DHTNode) -> None:
    protocol = node.protocol
    await protocol.remove_p2p_handlers(protocol.p2p)
    await protocol.add_p2p_handlers(protocol.p2p, PeerBoundCalls(protocol, dht.authorizer))
