"""The asking end: opens a conversation with a peer's service."""

import asyncio
from collections.abc import Mapping

from hivemind.p2p import P2P, P2PDaemonError, PeerID

from pipelines.core.swarm.streams.conversation import Conversation
from pipelines.core.swarm.streams.introductions import Introductions
from pipelines.core.swarm.streams.refusals import PeerGoneError
from pipelines.core.swarm.streams.server import handler_name
from pipelines.core.swarm.upload_limit import UploadLimit

OPEN_SECONDS = 10.0
ATTEMPTS = 2
"""Between two busy libp2p daemons a stream occasionally never opens, and neither side is told."""

MOST_TENSOR_BYTES = 2**28
"""Of one answer."""


async def open_conversation(
    p2p: P2P,
    peer: PeerID | str,
    namespace: str,
    service: str,
    introductions: Introductions,
    *,
    most_tensor_bytes: int = MOST_TENSOR_BYTES,
    upload_limit: UploadLimit | None = None,
    open_seconds: float = OPEN_SECONDS,
) -> tuple[Conversation, Mapping[str, object]]:
    """Return a conversation with a peer, in base 58 or not, and what it tells about its service; close it afterwards.

    Raises:
        PeerGoneError: the peer cannot be reached, does not offer the service, or does not answer.
        Refusal: the peer refuses.
    """
    peer_id = PeerID.from_base58(peer) if isinstance(peer, str) else peer
    opened, failure = None, ""
    for _ in range(ATTEMPTS):
        try:
            async with asyncio.timeout(open_seconds):
                opened = await p2p.call_binary_stream_handler(peer_id, handler_name(namespace, service))
            break
        except TimeoutError:
            failure = f"No stream to {peer_id} opened in {open_seconds:.0f} s."
        except (P2PDaemonError, OSError, asyncio.IncompleteReadError) as error:
            failure = f"{peer_id} cannot be reached, or does not offer {service}: {' '.join(str(error).split())[-300:]}"
            break
    if opened is None:
        # Not inside the block above: hivemind leaves the connection to its daemon open, in the error's traceback.
        raise PeerGoneError(failure)
    _, reader, writer = opened
    conversation = Conversation(peer_id, reader, writer, most_tensor_bytes=most_tensor_bytes, upload_limit=upload_limit)
    try:
        return conversation, await introductions.greet(conversation)
    except BaseException:
        await conversation.close()
        raise
