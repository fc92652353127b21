"""Why a conversation ended before its time. What a peer refuses is typed, so that the asking one can act on it."""

from hub_tools.printing.printable import printable

CODES = {
    "malformed": "what was sent is not a message of this protocol",
    "too large": "a message is larger than the service takes",
    "version": "the two peers speak different versions",
    "not admitted": "the run's authority has not admitted the asking peer",
    "busy": "the server has as many streams, of this peer or in all, as it takes",
    "no room": "the server's memory for others is taken; later or elsewhere it may work",
    "invalid": "the request asks for something that does not exist or is out of range",
    "revision": "the server has other weights than the request names",
    "silent": "the asking peer has sent nothing for too long",
    "leaving": "the server is about to leave",
    "failed": "the server has met an error of its own",
}
"""All codes; a reader that does not know one treats it as `failed`."""

MOST_CHARACTERS = 500


class Refusal(Exception):
    """A typed answer instead of what was asked for; raised by services, sent, and raised again where it arrives."""

    def __init__(self, code: str, text: str) -> None:
        self.code, self.text = code if code in CODES else "failed", printable(text[:MOST_CHARACTERS])
        super().__init__(f"{self.text} ({self.code}: {CODES[self.code]})")


class PeerGoneError(ConnectionError):
    """The other peer has died or closed the stream: known at once."""


class PeerSilentError(PeerGoneError):
    """Nothing has come for longer than a live peer would be silent: it is stopped, or its link is cut."""
