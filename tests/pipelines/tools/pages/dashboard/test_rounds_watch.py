"""Who is seen to train in a run over the Hub: the members of the newest lists, whoever has closed them."""

import pytest
from hub_round_parts import TinyRun, close_round, log_in

from pipelines.core.signing.signed_statement import signed_text
from pipelines.features.hub_rounds.following import SECONDS_ALIVE, Presence
from pipelines.features.hub_rounds.statements import fingerprint
from pipelines.tools.pages.dashboard.peer_table import PeerState, track
from pipelines.tools.pages.dashboard.swarm.rounds_watch import RoundsWatch
from pipelines.tools.pages.dashboard.swarm.swarm_snapshot import SwarmSnapshot


@pytest.fixture
def tiny(hub, monkeypatch):
    log_in(monkeypatch, hub)
    tiny = TinyRun(closers=2, window_seconds=4.0)
    yield tiny
    tiny.close()


def announce(tiny, number, seconds_ago=0.0):
    key = tiny.keys[number]
    said = dict(swarm_id=tiny.run.swarm_id, held_epoch=0, published_epoch=0, proof="", key=key.public)
    presence = Presence(time=tiny.files.clock() - seconds_ago, **said)
    tiny.files.put(tiny.run.bucket, {tiny.files.presence_path(fingerprint(key.public)): signed_text(presence, key)})


def test_members_of_the_newest_rounds_train_and_those_of_others_have_left(tiny):
    def look(watch, known=None, later=0.0):
        values = watch.look()
        snapshot = SwarmSnapshot.from_values(values | dict(time=values["time"] + later))
        return snapshot, track(known or {}, snapshot, tiny.run.sign_of_life_seconds)

    watch = RoundsWatch(tiny.reader(), tiny.run)
    nobody, _ = look(watch)
    assert (nobody.peers, nobody.num_auxiliaries) == ((), 0)
    announce(tiny, 0)
    announce(tiny, 1, seconds_ago=SECONDS_ALIVE + 1)
    closer = tiny.closer()
    for users in (("amy", "bob"), ("bob",)):
        for number, user in enumerate(users):
            tiny.put(closer.state, user, tiny.contribution(closer.state, number))
        close_round(closer)
    late = RoundsWatch(tiny.reader(), tiny.run)  # has seen nothing of the first round
    for seen in (late, watch):
        _, peers = look(seen)
        assert {one.peer.username: (one.peer.epoch, one.state) for one in peers.values()} == {
            "amy": (1, PeerState.TRAINING), "bob": (2, PeerState.TRAINING),
        }  # fmt: skip
        assert all(one.peer.samples_per_second == 3.5 and one.peer.figures.loss == 2.0 for one in peers.values())
    assert look(RoundsWatch(tiny.reader(), tiny.run))[0].num_auxiliaries == 1
    _, peers = look(watch, peers, later=2.5 * tiny.run.window_seconds + 5)
    assert {one.state for one in peers.values()} == {PeerState.GONE}
