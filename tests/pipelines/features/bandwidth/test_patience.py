"""How long groups wait for a slow volunteer, with the real decisions, links of known rates and virtual time."""

from types import SimpleNamespace

import pytest
from hivemind.averaging.allreduce import AveragingMode
from hivemind.p2p import PeerID
from hivemind.utils import MSGPackSerializer

from pipelines.core.averaging.division import Link
from pipelines.core.averaging.group.matchmaking import retry_seconds
from pipelines.core.averaging.group.time_limits import attempt_times
from pipelines.core.averaging.patience import Patience
from pipelines.core.epoch.hivemind_options import chunk_timeout
from pipelines.core.run.training_run import TrainingRun
from pipelines.features.bandwidth.measured_division import MeasuredDivision
from pipelines.features.bandwidth.shares import Member, duration_of

RUN = TrainingRun(run_id="r", model_config={}, dataset_repository="a/b", dataset_revision="c")
VECTOR_MBIT = 1000.0
"""The default model of 125 million parameters, 8 bits a value."""

NUM_VALUES = 1_000_000
HIVEMINDS = MSGPackSerializer.dumps([None, AveragingMode.NODE.value, MSGPackSerializer.dumps(None)])


class Peer:
    def __init__(self, number: int, mbit: float, now: list[float], declares: bool) -> None:
        self.id, self.mbit = PeerID(bytes([number]) * 34), mbit
        self.division = MeasuredDivision(None, mbit if declares else None, may_help=False)
        times = attempt_times(RUN.averaging_timeout_seconds / 2, chunk_timeout(RUN), RUN.matchmaking_seconds)
        self.patience = Patience(times, clock=lambda: now[0])


class VirtualSwarm:
    """Rounds in which links alone take time."""

    def __init__(self, rates: list[float], declares: bool) -> None:
        self.now = [0.0]
        self.peers = [Peer(number, rate, self.now, declares) for number, rate in enumerate(rates)]

    def links_need(self, peers: list[Peer], shares: list[float]) -> float:
        members = [Member(sends=True, reduces=True, link=Link(up=peer.mbit, down=100.0)) for peer in peers]
        return VECTOR_MBIT * duration_of(members, shares)

    def epoch(self, present: list[Peer]) -> tuple[float, list[Peer]]:
        """Return how long a round took in all, and whose vectors were averaged."""
        took, group = 0.0, [p for p in present if not any(q.patience.leaves_out(p.id) for q in present if q is not p)]
        for attempt in (1, 2):
            ids = [peer.id.to_bytes() for peer in group]
            gathered = [peer.division.told(HIVEMINDS) for peer in group]
            divisions = [p.division.divide(i, ids, gathered, NUM_VALUES) for i, p in enumerate(group)]
            assert all(division == divisions[0] for division in divisions)
            shares = [number / NUM_VALUES for number in divisions[0]]
            duration = self.links_need(group, shares)
            limits = [peer.patience.seconds(peer.division, VECTOR_MBIT * 125_000) for peer in group]
            limit = sorted(limits)[len(limits) // 2]
            late = [p for p in group if self.links_need([p, p], [0.0, 1.0]) > limit]
            if duration <= limit or attempt == 2:
                break
            took += limit + retry_seconds(RUN.matchmaking_seconds)
            self.note(group, shares, limit, late)
            if 2 * len(late) < len(group):
                group = [peer for peer in group if peer not in late]
        took += min(duration, limit)
        self.note(group, shares, took, [])
        self.now[0] += took + 30.0
        return took, group

    def note(self, group: list[Peer], shares: list[float], seconds: float, late: list[Peer]) -> None:
        for own, peer in enumerate(group):
            rates = {
                other.id: (
                    other.mbit * shares[own] / max(1e-9, 1 - shares[index])
                    if late
                    else VECTOR_MBIT * (shares[own] + shares[index]) / seconds
                )
                for index, other in enumerate(group)
                if other is not peer
            }
            runner = SimpleNamespace(
                sender_peer_ids=[other.id for other in group],
                share_reduced=shares[own],
                delivered_mbit=lambda rates=rates: {key.to_bytes(): rate for key, rate in rates.items()},
                late_mbit=lambda rates=rates: {other.id: rates[other.id] for other in late if other.id in rates},
            )
            if late and shares[own]:
                peer.patience.note_late(runner, peer.division, [p.id for p in group], VECTOR_MBIT * 125_000)
            elif not late:
                peer.patience.note_success(runner, peer.division)
                peer.patience.times.note_success(seconds)


@pytest.mark.parametrize("declares", [True, False])
def test_a_volunteer_at_10_mbit_is_in_every_round_from_her_second_on_at_the_default_models_size(declares):
    swarm = VirtualSwarm([100.0, 100.0, 100.0, 10.0], declares)
    slow, fast = swarm.peers[3], swarm.peers[:3]
    for _ in range(5):
        swarm.epoch(fast)
    usual, _ = swarm.epoch(fast)
    first, _ = swarm.epoch(swarm.peers)
    assert first <= 4 * usual + 10.0, "nobody waits for what was only announced"
    times = []
    for _ in range(2):
        for _ in range(4):
            took, group = swarm.epoch(swarm.peers)
            assert slow in group
            times.append(took)
        for _ in range(3):
            swarm.epoch(fast)
    assert max(times) <= 1.5 * VECTOR_MBIT / 10.0


@pytest.mark.parametrize("declares", [True, False])
@pytest.mark.parametrize("mbit", [1.0, 0.1])
def test_who_cannot_send_a_vector_in_the_time_of_a_round_costs_the_others_less_and_less(mbit, declares):
    swarm = VirtualSwarm([100.0, 100.0, 100.0, mbit], declares)
    slow, fast = swarm.peers[3], swarm.peers[:3]
    for _ in range(5):
        swarm.epoch(fast)
    usual, _ = swarm.epoch(fast)
    times, groups = zip(*[swarm.epoch(swarm.peers) for _ in range(60)], strict=True)
    assert all(set(fast) <= set(group) for group in groups)
    assert max(times) <= 4 * usual + 10.0
    assert sum(times) <= 1.3 * len(times) * usual
    assert sum(times[-30:]) <= 1.15 * 30 * usual
    assert not any(slow in group for group in groups[-30:])
