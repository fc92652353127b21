"""Real trainers, a participant that answers zeros for its share, and one that accuses the others of doing so."""

import time

import pytest
from swarm_of_processes import HOSTILE_PROCESS, Swarm, tiny_run

from pipelines.core.averaging.reduce.suspects import Misbehaviour

pytestmark = [pytest.mark.slow, pytest.mark.swarm]

HONEST = ("first", "second", "third")
HONEST_ROUNDS, ROUNDS_WITHOUT = 2, 2
PROVEN = {
    Misbehaviour.FALSE_AVERAGE.name,
    Misbehaviour.FALSE_ACCUSATION.name,
    Misbehaviour.NO_PROOF.name,
    Misbehaviour.LEFT_OUT.name,
}
SECONDS = 150


def wait_for_rounds(peers, number, after=0.0):
    """Wait until each peer has averaged in this many groups of all three, and return what they name others for."""
    named, deadline = [], time.monotonic() + SECONDS
    for peer in peers:
        while True:
            steps = [e for e in peer.events("step") if e["time"] > after and e["ended_epoch"] and e["has_averaged"]]
            whole = [step for step in steps if step["group_size"] == len(HONEST)]
            if len(whole) >= number:
                break
            sizes = [step["group_size"] for step in steps]
            assert time.monotonic() < deadline, f"{peer.name} was in groups of {sizes}: {peer.log()}"
            time.sleep(0.1)
        named.append({(suspect, offence) for suspect, offence in whole[-1]["suspects"] if offence in PROVEN})
    return named


def wait_until_named(peers, number, hostile, offence):
    """Wait until so many of the peers name the hostile one for an offence; return when."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        named = [[e["time"] for e in peer.events("step") if [hostile, offence.name] in e["suspects"]] for peer in peers]
        if sum(map(bool, named)) >= number:
            return max(times[0] for times in named if times)
        time.sleep(0.1)
    raise AssertionError(f"{sum(map(bool, named))} peers have named the hostile one: {peers[0].log()}")


def test_a_reducer_of_zeros_is_named_by_all_and_left_alone_an_accuser_is_named_and_honest_peers_are_never_named(
    tmp_path,
):
    run = tiny_run(num_epochs=10_000, matchmaking_seconds=3.0, averaging_timeout_seconds=60.0)
    with Swarm(tmp_path, run, num_peers=len(HONEST)) as swarm:
        peers = [swarm.start(name) for name in HONEST]
        assert wait_for_rounds(peers, HONEST_ROUNDS) == [set()] * len(HONEST), "nobody lies yet"
        reducer = swarm.start("reducer", HOSTILE_PROCESS, attacks={"zeroing_reducer": 1})
        reducer_id = reducer.wait_for("ready")["peer_id"]
        convicted = wait_until_named(peers, len(peers), reducer_id, Misbehaviour.FALSE_AVERAGE)
        named = wait_for_rounds(peers, ROUNDS_WITHOUT, after=convicted)
        assert {suspect for found in named for suspect, _ in found} == {reducer_id}
        reducer.kill()
        accuser = swarm.start("accuser", HOSTILE_PROCESS, attacks={"framing_member": 1})
        accuser_id = accuser.wait_for("ready")["peer_id"]
        wait_until_named(peers, 2, accuser_id, Misbehaviour.FALSE_ACCUSATION)  # the third one is the accused
        last = [peer.events("step")[-1]["suspects"] for peer in peers]
    assert {peer for named in last for peer, offence in named if offence in PROVEN} <= {reducer_id, accuser_id}
