"""The blocks service on the streams: one conversation is one session, which ends with it."""

import asyncio
import functools
from collections.abc import Mapping

from pipelines.core.swarm.streams.conversation import Conversation
from pipelines.core.swarm.streams.frames import Kind
from pipelines.core.swarm.streams.refusals import PeerSilentError, Refusal
from pipelines.core.swarm.streams.server import Service
from pipelines.features.serving.blocks.sessions import BlockServer, BlockSession
from pipelines.features.serving.fair_thread import FairThread

SERVICE_NAME = "blocks"
IDLE_SECONDS = 60.0
"""A client that asks for nothing for so long loses its session: its caches are memory that others could use."""

MOST_MESSAGE_BYTES = 2**28
MOST_REPLACED = 1
"""How often layers are replaced while a session goes on: it keeps the weights in memory with which it began."""


class BlocksService(Service):
    """Answers clients one message at a time; of those that wait, the address that has had the least time is next.

    All computing is done in one thread, whose products use the machine's cores. Messages of different clients are never
    put into one batch.
    """

    name = SERVICE_NAME
    most_tensor_bytes = MOST_MESSAGE_BYTES

    def __init__(self, server: BlockServer, *, idle_seconds: float = IDLE_SECONDS) -> None:
        self._server, self._idle_seconds, self._num_replaced = server, idle_seconds, 0
        self._thread = FairThread("blocks")

    def use(self, server: BlockServer) -> None:
        """Serve these layers from now on; sessions go on with those before, and end when these are replaced too."""
        self._server, self._num_replaced = server, self._num_replaced + 1

    def about(self) -> Mapping[str, object]:
        return self._server.about()

    async def serve(self, conversation: Conversation) -> None:
        client, num_replaced = conversation.client, self._num_replaced
        session = BlockSession(self._server, client)
        try:
            while True:
                try:
                    message = await conversation.receive(self._idle_seconds)
                except PeerSilentError as error:
                    raise Refusal("silent", f"Nothing was asked for {self._idle_seconds:.0f} s.") from error
                if message.kind is not Kind.MESSAGE:
                    raise Refusal("malformed", "A session consists of messages.")
                if self._num_replaced - num_replaced > MOST_REPLACED:
                    raise Refusal("revision", "This session's layers have been replaced twice since it began.")
                answer = functools.partial(session.answer, message.body, message.tensors)
                body, tensors = await asyncio.wrap_future(self._thread.submit(client.address, answer))
                await conversation.send(body, tensors)
        finally:
            # In the thread, behind what it may be computing of this session: memory is counted there alone. Of a client
            # that has gone, what waits is not computed.
            self._thread.submit(client.address, session.close)

    def close(self) -> None:
        """Stop computing."""
        self._thread.close()
