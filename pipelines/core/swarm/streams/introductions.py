"""The first frames of a conversation: which protocol each side speaks, and who it is."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

from hivemind.p2p import PeerID
from hivemind.utils import get_dht_time

from pipelines.core.admission.client import PeerAdmission
from pipelines.core.admission.tokens import Admission, TokenCheck, TokenRefusedError
from pipelines.core.signing.signed_statement import PROTOCOL_VERSION
from pipelines.core.swarm.streams.conversation import Conversation
from pipelines.core.swarm.streams.frames import Frame, Kind
from pipelines.core.swarm.streams.refusals import Refusal

HELLO_SECONDS = 10.0
"""Time for the other side's first frame."""


@dataclass(frozen=True)
class Stranger:
    """Instead of an admission: of one who has none, and checks those of others."""

    check: TokenCheck
    token: str = ""
    has_authority: bool = True


class Introductions:
    """Introduces this peer, and checks how others do; in a run with an authority both sides show their tokens."""

    def __init__(self, admission: PeerAdmission | Stranger | None, *, admits_everybody: bool = False) -> None:
        """`admission` is this peer's; None: nothing is checked. `admits_everybody`: nor is who asks."""
        self._guard = admission if admission is not None and admission.has_authority else None
        self._admits_everybody = admits_everybody

    async def greet(self, conversation: Conversation) -> Mapping[str, object]:
        """Introduce this peer to one that answers, check that one, and return what it tells about its service.

        Raises:
            Refusal: the other peer refuses, or is not admitted itself.
            PeerGoneError: it has closed the stream, or does not answer.
        """
        asked = time.monotonic()
        await conversation.write(self._hello({}))
        frame = await conversation.receive(HELLO_SECONDS)
        conversation.round_trip_seconds = time.monotonic() - asked
        conversation.admission = self._checked(frame, conversation.peer, must_be_admitted=True)
        about = frame.body.get("about")
        return about if isinstance(about, dict) else {}

    async def answer(self, conversation: Conversation, about: Mapping[str, object]) -> None:
        """Check a peer that asks, and introduce this one.

        Raises:
            Refusal: the other peer speaks another version, or is not admitted.
            PeerGoneError: it has closed the stream, or says nothing.
        """
        frame = await conversation.receive(HELLO_SECONDS)
        conversation.admission = self._checked(frame, conversation.peer, must_be_admitted=not self._admits_everybody)
        await conversation.write(self._hello(about))

    def _hello(self, about: Mapping[str, object]) -> Frame:
        token = "" if self._guard is None else self._guard.token
        return Frame(kind=Kind.HELLO, body=dict(version=PROTOCOL_VERSION, token=token, about=dict(about)))

    def _checked(self, frame: Frame, peer: PeerID, *, must_be_admitted: bool) -> Admission | None:
        version = frame.body.get("version")
        if frame.kind is not Kind.HELLO:
            raise Refusal("malformed", "A conversation begins with a hello.")
        if version != PROTOCOL_VERSION:
            raise Refusal(
                "version",
                f"One peer speaks version {str(version)[:20]} of the protocol, the other {PROTOCOL_VERSION}. Update "
                "the older one: pip install --upgrade dalle-collab",
            )
        token = frame.body.get("token")
        if self._guard is None or not (token or must_be_admitted):
            return None
        try:
            return self._guard.check.check(token, get_dht_time(), peer_id=peer.to_bytes())
        except TokenRefusedError as error:
            raise Refusal("not admitted", str(error)) from error
