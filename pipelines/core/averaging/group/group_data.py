"""What each member tells its group about itself, checked before anybody counts on it.

hivemind reads it unchecked in every member: a single one that sends nonsense makes all of them fail, round after round,
and nobody learns who it was.
"""

import math

from hivemind.averaging.allreduce import AveragingMode
from hivemind.utils import MSGPackSerializer

MOST_BYTES = 16_384
"""hivemind's three values take some 20 bytes, a token at most 4 kB."""

ID_BYTES = 8
"""The end of a peer id, which is a hash, names a peer in what members tell each other."""

_MODES = frozenset(mode.value for mode in AveragingMode)


def mode_of(gathered: bytes) -> AveragingMode:
    """Return how a member takes part, by what it has told its group: bandwidth, mode, a message and perhaps a token.

    Raises:
        ValueError: no honest peer sends this.
    """
    if len(gathered) > MOST_BYTES:
        raise ValueError(f"It told its group {len(gathered)} bytes about itself; expected at most {MOST_BYTES}.")
    try:
        bandwidth, mode, message, *_ = MSGPackSerializer.loads(gathered)
        MSGPackSerializer.loads(message)
    except Exception as error:  # whatever msgpack makes of a stranger's bytes
        raise ValueError(f"What it told its group about itself is not three values: {error!r}.") from error
    if type(mode) is not int or mode not in _MODES:
        raise ValueError(f"Its mode is {mode!r}; expected one of {sorted(_MODES)}.")
    # None, the default: as much as the others.
    if bandwidth is not None and (type(bandwidth) not in (int, float) or not 0 <= bandwidth < math.inf):
        raise ValueError(f"Its bandwidth is {bandwidth!r}; expected a finite number, 0 or more, or None.")
    return AveragingMode(mode)
