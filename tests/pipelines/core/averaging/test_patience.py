"""Whom an averager does without for a while."""

from types import SimpleNamespace

from hivemind.p2p import PeerID

from pipelines.core.averaging.group.time_limits import attempt_times
from pipelines.core.averaging.patience import Patience


def test_who_withholds_what_it_announced_is_left_out_for_a_while_and_a_majority_never():
    now, first, second, third = [0.0], *(PeerID(bytes([number]) * 34) for number in range(3))
    patience = Patience(attempt_times(80.0, 10.0, 3.0), clock=lambda: now[0])
    runner = SimpleNamespace(sender_peer_ids=[first, second, third], late_senders={first, second})
    patience.note_late(runner, None, runner.sender_peer_ids, 1e6)
    assert not any(map(patience.leaves_out, runner.sender_peer_ids)), "this peer is the one that is cut off"
    for seconds in (5.0, 10.0, 20.0):
        runner.late_senders = {third}
        patience.note_late(runner, None, runner.sender_peer_ids, 1e6)
        now[0] += 0.99 * seconds
        assert [patience.leaves_out(peer) for peer in runner.sender_peer_ids] == [False, False, True]
        now[0] += seconds
        assert not patience.leaves_out(third)
