"""What a member tells its group: read if an honest peer can have sent it, refused otherwise."""

import math

import pytest
from hivemind.averaging.allreduce import AveragingMode
from hivemind.utils import MSGPackSerializer

from pipelines.core.averaging.group.group_data import mode_of

packed = MSGPackSerializer.dumps
NOTHING = packed(None)


@pytest.mark.parametrize("mode", AveragingMode)
def test_the_mode_is_read_with_and_without_a_token(mode):
    assert mode_of(packed([1.5, mode.value, NOTHING])) is mode
    assert mode_of(packed([None, mode.value, NOTHING])) is mode
    assert mode_of(packed([0, mode.value, NOTHING, "token", 1.0, b"signature"])) is mode


@pytest.mark.parametrize(
    "gathered",
    [
        b"",
        b"\xc1",
        packed(None),
        packed([1.0, 0]),
        packed([1.0, 9, NOTHING]),
        packed([1.0, -1, NOTHING]),
        packed([1.0, True, NOTHING]),
        packed([1.0, "0", NOTHING]),
        packed([1.0, [0], NOTHING]),
        packed([math.nan, 0, NOTHING]),
        packed([math.inf, 0, NOTHING]),
        packed([-1.0, 0, NOTHING]),
        packed(["1", 0, NOTHING]),
        packed([1.0, 0, b"\xc1"]),
        packed([1.0, 0, 7]),
        packed({"a": 1, "b": 2, "c": 3}),
        packed([1.0, 0, bytes(20_000)]),
    ],
)
def test_what_no_honest_peer_sends_is_refused_in_a_line(gathered):
    with pytest.raises(ValueError) as refused:
        mode_of(gathered)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 300
