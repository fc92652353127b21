"""Who gets through the gate of an averager, without a network: a peer that proves token, keys, group and time."""

import dataclasses
import time
from multiprocessing import get_context
from types import SimpleNamespace

import pytest
from admission_tokens import admission, held_admission, peer_id, rsa_key
from hivemind.averaging.group_info import GroupInfo
from hivemind.averaging.matchmaking import MatchmakingException
from hivemind.p2p import PeerID
from hivemind.utils.serializer import MSGPackSerializer
from swarm_of_processes import tiny_run

from pipelines.core.admission.averaging_gate import AdmissionGate, AveragingGate
from pipelines.core.admission.client import SharedToken, peer_admission, seconds_to_renewal
from pipelines.core.admission.record_owners import speaks_for
from pipelines.core.admission.tokens import TokenRefusedError
from pipelines.core.run.admission_config import admission_config_of
from pipelines.core.swarm.peer_records import AuxiliaryStatus, PeerMetrics

OPEN_RUN = tiny_run(run_id="run")
PEER, STRANGER = (PeerID(peer_id(name)) for name in ("peer", "stranger"))
FIELDS = [1.5, 0, MSGPackSerializer.dumps(7)]


def gate_with(seconds_valid=60.0, prefix="run_grad_averager", **changes):
    """Return the gate of a peer that holds a token as the authority would have signed it, but for the changes."""
    return AdmissionGate(held_admission(**changes), prefix, seconds_valid)


def proof(gate=None):
    return (gate or gate_with()).prove(MSGPackSerializer.dumps(FIELDS), PEER)


def test_an_admitted_peer_gets_through_and_is_known_until_its_token_expires():
    gate = gate_with()
    assert gate.admission_of(PEER) is None
    assert MSGPackSerializer.loads(gate.open(proof(), PEER)) == FIELDS
    assert gate.admission_of(PEER).username == "alice"
    assert gate.admission_of(STRANGER) is None
    expires_at = time.time() + 0.3
    gate.open(proof(gate_with(expires_at=expires_at)), PEER)
    assert gate.admission_of(PEER).expires_at == expires_at
    while time.time() < expires_at:
        time.sleep(0.01)
    assert gate.admission_of(PEER) is None


def open_gate(name):
    """Return the gate of a peer of a run that everybody may join."""
    with peer_admission(admission_config_of(OPEN_RUN, "org/run"), rsa_key(name), None) as held:
        return AveragingGate(held, "run_grad_averager", 10.0)


def told_by(gate, peer, mode):
    """Return what a peer tells its group."""
    step = SimpleNamespace(data_for_gather=MSGPackSerializer.dumps([1.5, mode, MSGPackSerializer.dumps(7)]))
    gate.prove(step, peer, step.data_for_gather)
    return step._data_for_gather


def test_in_an_open_run_no_leader_says_of_its_followers_how_they_take_part():
    """Seen before: a leader that said that all others were clients reduced the whole vector."""
    peer, leader = open_gate("peer"), open_gate("stranger")
    told = told_by(peer, PEER, mode=0)
    group = GroupInfo(b"group", (PEER, STRANGER), (told, told_by(leader, STRANGER, mode=0)))
    assert [MSGPackSerializer.loads(data)[1] for data in peer.checked(group).gathered] == [0, 0]
    bandwidth, _, *rest = MSGPackSerializer.loads(told)
    forged = MSGPackSerializer.dumps([bandwidth, 1, *rest])
    made_up = told_by(leader, PEER, mode=1)
    for lie in (forged, made_up, MSGPackSerializer.dumps(FIELDS)):
        with pytest.raises(MatchmakingException, match="not admitted"):
            peer.checked(dataclasses.replace(group, gathered=(lie, group.gathered[1])))


def test_in_an_open_run_no_peer_has_to_introduce_itself():
    gate = open_gate("peer")
    assert gate.guarded(None) is None and gate.introducing("stub", None) == "stub"


@pytest.mark.parametrize(
    ("gathered", "message"),
    [
        (MSGPackSerializer.dumps(FIELDS), "shows no token"),
        (b"", "shows no token"),
        (b"\xff\x00", "shows no token"),
        (MSGPackSerializer.dumps([*FIELDS, "token", "time", b"signature"]), "shows no token"),
        (MSGPackSerializer.dumps([*FIELDS, ["token"], 0.0, b"signature"]), "There is no token"),
        (MSGPackSerializer.dumps([*FIELDS, "token", 1.0, b"signature"]), "token is damaged"),
        (MSGPackSerializer.dumps([*FIELDS, 3, 1.0, b"signature"]), "There is no token"),
    ],
    ids=["nothing", "empty", "no msgpack", "wrong types", "list", "damaged", "number"],
)
def test_who_shows_no_token_is_refused(gathered, message):
    with pytest.raises(TokenRefusedError, match=message):
        gate_with().open(gathered, PEER)


@pytest.mark.parametrize(
    ("make", "peer", "message"),
    [
        (lambda: proof(gate_with(run_id="other")), PEER, "admits to the run 'other'"),
        (lambda: proof(gate_with(expires_at=time.time() - 1)), PEER, "expired"),
        (lambda: proof(), STRANGER, "belongs to another peer"),
        (lambda: proof(gate_with(prefix="run_state_averager")), PEER, "has not signed its data"),
        (lambda: altered(0, 99.0), PEER, "has not signed its data"),
        (lambda: altered(2, MSGPackSerializer.dumps(8)), PEER, "has not signed its data"),
        (lambda: altered(4, time.time() - 3600), PEER, "has the wrong time"),
        (lambda: altered(4, float("nan")), PEER, "has the wrong time"),
    ],
    ids=["other run", "expired", "other peer", "other group", "bandwidth", "data", "replayed", "no time"],
)
def test_a_proof_of_something_else_is_refused(make, peer, message):
    with pytest.raises(TokenRefusedError, match=message):
        gate_with().open(make(), peer)


def altered(index, value):
    """Return a proof, one field of which a leader has changed."""
    values = MSGPackSerializer.loads(proof())
    values[index] = value
    return MSGPackSerializer.dumps(values)


def test_a_token_is_seen_at_once_by_a_process_that_was_forked_before_it_was_written():
    token, (ours, theirs) = SharedToken(), get_context("fork").Pipe()

    def read_when_told():
        theirs.recv()
        theirs.send(token.read())

    process = get_context("fork").Process(target=read_when_told)
    process.start()
    for text in ("first", "second", "third"):
        token.write(text)
    ours.send(None)
    assert ours.recv() == "third" == token.read()
    process.join()


def test_tokens_are_renewed_before_half_of_their_life_and_soon_again_after_a_failure():
    assert all(0.3 * 600 < seconds_to_renewal(600, 0) <= 0.4 * 600 for _ in range(100))
    assert all(seconds_to_renewal(600, failures) <= 30 for failures in (1, 5, 50))
    assert seconds_to_renewal(20, 1) <= 1.0


def test_a_record_counts_only_for_the_peer_and_the_user_that_it_names():
    held = admission(0.0)
    figures = dict(
        epoch=1, loss=1.0, num_samples=1, samples_per_second=1.0, share_averaged=1.0, bytes_sent=0, num_rounds=0,
        round_seconds=0.0, num_refused_gradients=0, client_mode=False, package_version="0",
    )  # fmt: skip
    assert speaks_for(PeerMetrics(username="alice", **figures), held)
    assert not speaks_for(PeerMetrics(username="bob", **figures), held)
    assert speaks_for(AuxiliaryStatus(held_epoch=0, published_epoch=0, addresses=[]), held)
    for peer, expected in ((PEER, True), (STRANGER, False)):
        for shown in (peer.to_bytes(), peer.to_base58()):
            assert speaks_for(type("Record", (), {"peer_id": shown})(), held) is expected
    assert not speaks_for(type("Record", (), {"peer_id": "0OIl"})(), held)


def test_the_admission_is_not_shown():
    gate = gate_with()
    assert gate.admission.token not in "".join(map(repr, (gate, gate.admission, gate.admission._token)))
