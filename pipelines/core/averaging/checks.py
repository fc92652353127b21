"""What an averager keeps of its rounds for their members, and is given to check its averages by: `Checks`."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence

from hivemind.p2p import PeerID
from hivemind.p2p.servicer import StubBase
from hivemind.proto import averaging_pb2

from pipelines.core.averaging.group.blocklist import Blocklist
from pipelines.core.averaging.reduce.suspects import Misbehaviour
from pipelines.core.averaging.round_state import RoundState
from pipelines.core.averaging.wire.signed_parts import RoundAnswers
from pipelines.core.swarm.upload_limit import UploadLimit

FIRST_DISTRUST_SECONDS, LONGEST_DISTRUST_SECONDS = 5.0, 3600.0
"""Who is distrusted for what only this peer knows is avoided for this long, twice as long each time."""

ANSWERS_SECONDS, ATTEMPTS_KEPT = 60.0, 3
"""How long the answers of a round, and what they were made of, are kept for members that ask, as they were sent; and of
how many attempts at most: where an epoch takes seconds, 60 s of them are the vector many times over."""

Messages = AsyncIterator[averaging_pb2.AveragingData]


class Checks:
    """Checks no averages: it keeps answers for members that lack some, and avoids peers that this one distrusts.

    It lives in the averager's process.
    """

    def __init__(
        self,
        peer_id: PeerID,
        stub_of: Callable[[PeerID], StubBase],
        name: Callable[[PeerID, Misbehaviour], None],
        upload_limit: UploadLimit | None = None,
    ) -> None:
        """`stub_of` returns what another member can be asked by; `name` is told who has done what."""
        self._peer_id, self._stub_of, self._name, self._upload_limit = peer_id, stub_of, name, upload_limit
        self._distrusted = Blocklist(FIRST_DISTRUST_SECONDS, LONGEST_DISTRUST_SECONDS)
        self._ended: list[bytes] = []
        self.answers: dict[bytes, RoundAnswers] = {}
        """What members may still take, by the round's group."""

    def avoids(self, peer: PeerID) -> bool:
        """Return whether a peer is to be kept out of groups now."""
        return self._distrusted.avoids(peer, time.monotonic())

    def distrust(self, peer: PeerID, offence: Misbehaviour) -> None:
        """Name a peer for what only this one knows, and avoid it for a while, twice as long each time."""
        self._distrusted.avoid(peer, time.monotonic())
        self._name(peer, offence)

    def open(self, state: RoundState) -> None:
        """Keep what members may ask about a round that begins now."""
        self.answers[state.group_id] = state.answers

    def keep_for_a_while(self, group_id: bytes) -> None:
        """Keep what an ended attempt's members may ask for at once; that of early attempts goes now."""
        self._ended.append(group_id)
        for old in self._ended[:-ATTEMPTS_KEPT]:
            self.close(old)
        asyncio.get_running_loop().call_later(ANSWERS_SECONDS, self.close, group_id)

    def close(self, group_id: bytes) -> None:
        """Forget a round."""
        if group_id in self._ended:
            self._ended.remove(group_id)
            self.answers.pop(group_id, None)

    def begin(self, group_id: bytes) -> None:
        """Check answers of a round that has succeeded, in the background."""

    def end(self) -> None:
        """Leave all checks."""

    def shown(self, member: PeerID, request: averaging_pb2.DownloadData) -> Sequence[averaging_pb2.AveragingData]:
        """Return what one of this peer's answers was made of, to a member of that round."""
        return ()

    async def hear(self, accuser: PeerID, messages: Messages) -> AsyncGenerator[averaging_pb2.AveragingData, None]:
        """Hear what a member has to show against another one."""
        yield averaging_pb2.AveragingData(code=averaging_pb2.CANCELLED)
