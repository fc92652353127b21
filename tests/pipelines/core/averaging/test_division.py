"""Without the feature that measures links, all who can reduce the same."""

import pytest
from hivemind.averaging.allreduce import AveragingMode
from hivemind.utils import MSGPackSerializer

from pipelines.core.averaging.division import Division

NODE, CLIENT, LISTENER = (
    MSGPackSerializer.dumps([bandwidth, mode.value, MSGPackSerializer.dumps(None)])
    for bandwidth, mode in ((None, AveragingMode.NODE), (None, AveragingMode.CLIENT), (0.0, AveragingMode.AUX))
)
PEERS = (b"a", b"b", b"c", b"d")


def test_all_nodes_reduce_the_same_and_all_members_come_to_the_same_shares():
    gathered = [Division(None, rate).told(said) for rate, said in ((None, NODE), (9.0, NODE), (1.0, CLIENT))]
    shares = [Division(None, None).divide(own, PEERS, [*gathered, NODE], 10) for own in range(4)]
    assert shares == [(3, 3, 0, 4)] * 4
    assert Division(None, None).divide(0, PEERS, [LISTENER, CLIENT, NODE], 10) == (0, 0, 10)


def test_a_group_in_which_nobody_can_reduce_is_refused():
    with pytest.raises(ValueError, match="Nobody in the group can reduce"):
        Division(None, None).divide(0, PEERS, [CLIENT, LISTENER], 10)
