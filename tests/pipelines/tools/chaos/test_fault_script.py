"""Which faults happen when: decided by script, seed and duration alone."""

import hashlib
import itertools
import json
import subprocess
import sys

import pytest

from pipelines.tools.chaos.faults.fault_script import (
    DRAWN_KINDS,
    DRAWN_KINDS_OVER_THE_HUB,
    KINDS_WITHOUT_PEER,
    NO_PEER,
    Fault,
    FaultKind,
    ServingFault,
    draw_faults,
    read_script,
    script_text,
    serving_faults_in_turn,
)


def drawn(seed=1, duration_seconds=180.0, num_faults=12, num_peers=4, wire="p2p"):
    return draw_faults(
        seed=seed, duration_seconds=duration_seconds, num_faults=num_faults, num_peers=num_peers, wire=wire
    )


def test_equal_seeds_give_equal_faults_in_another_process_too():
    code = (
        "from pipelines.tools.chaos.faults.fault_script import *\n"
        "print(script_text(draw_faults(seed=1, duration_seconds=180.0, num_faults=12, num_peers=4)), end='')"
    )
    other = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "77"}
    )
    assert other.stdout == script_text(drawn())


@pytest.mark.parametrize(
    ("seed", "digest"),
    [(1, "619204e24eb8c3a8"), (2, "c4c3a41f7a70d4fd"), (3, "a047ae7453c76ade")],
)
def test_the_seeds_whose_goodput_the_documents_have_mean_what_they_meant(seed, digest):
    assert hashlib.sha256(script_text(drawn(seed)).encode()).hexdigest()[:16] == digest


def test_a_child_of_hivemind_is_killed_where_a_script_says_so_and_never_drawn(tmp_path):
    path = tmp_path / "faults.json"
    path.write_text('[{"kind": "child", "at_seconds": 3, "peer": 1}]')
    (fault,) = read_script(path, seed=1, duration_seconds=60, num_peers=3)
    assert (fault.kind, fault.at_seconds, fault.peer) == (FaultKind.CHILD, 3.0, 1)
    assert {FaultKind.CHILD, FaultKind.NOISE}.isdisjoint(
        f.kind for seed in range(20) for f in drawn(seed, num_faults=60)
    )


def test_another_seed_or_duration_gives_other_times():
    times = [tuple(fault.at_seconds for fault in faults) for faults in (drawn(), drawn(2), drawn(duration_seconds=60))]
    assert len(set(times)) == 3


@pytest.mark.parametrize(("wire", "kinds"), [("p2p", DRAWN_KINDS), ("hub", DRAWN_KINDS_OVER_THE_HUB)])
@pytest.mark.parametrize("seed", range(10))
def test_every_kind_happens_before_one_repeats_and_all_end_before_the_run_does(seed, wire, kinds):
    faults = drawn(seed, wire=wire)
    assert len(faults) == 12
    assert {fault.kind for fault in faults[: len(kinds)]} == set(kinds)
    assert [fault.at_seconds for fault in faults] == sorted(fault.at_seconds for fault in faults)
    assert all(0 <= fault.at_seconds < fault.ends_at_seconds < 180 for fault in faults)
    for fault in faults:
        assert (fault.peer == NO_PEER) == (fault.kind in KINDS_WITHOUT_PEER)
        assert fault.peer < 4


@pytest.mark.parametrize(
    ("wire", "kind"), [("hub", "child"), ("hub", "lying_epoch"), ("hub", "server"), ("p2p", "closer_frozen")]
)
def test_a_fault_that_the_wire_cannot_have_is_refused(tmp_path, wire, kind):
    path = tmp_path / "faults.json"
    path.write_text(json.dumps([{"kind": kind, "peer": 0}]))
    with pytest.raises(ValueError, match=f"of kind '{kind}'; expected one of kill, stop"):
        read_script(path, seed=1, duration_seconds=60, num_peers=3, wire=wire)


def test_a_script_that_was_written_is_read_back_whatever_the_seed(tmp_path):
    path = tmp_path / "faults.json"
    path.write_text(script_text(drawn()))
    assert read_script(path, seed=99, duration_seconds=180, num_peers=4) == drawn()


def test_a_script_may_leave_open_what_the_seed_then_decides(tmp_path):
    path = tmp_path / "faults.json"
    path.write_text(json.dumps([{"kind": "kill", "at_seconds": 3}, {"kind": "stop"}, {"kind": "hub_outage"}]))

    def read(seed):
        return read_script(path, seed=seed, duration_seconds=60, num_peers=3)

    assert read(1) == read(1) != read(2)
    kill = next(fault for fault in read(1) if fault.kind == "kill")
    assert kill.at_seconds == 3.0 and 0 <= kill.peer < 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not a fault script"),
        ('{"kind": "kill"}', "expected a JSON list of objects"),
        ('[{"kind": "earthquake"}]', "of kind 'earthquake'; expected one of kill, stop"),
        ('[{"kind": "kill", "when": 3}]', "unknown when; expected at_seconds"),
        ('[{"kind": "kill", "peer": 3}]', "a kill of peer 3; expected 0 to 2"),
        ('[{"kind": "stop", "at_seconds": 50, "duration_seconds": 20}]', "outlasts the run of 60 s"),
        ('[{"kind": "stop", "at_seconds": -1}]', "expected a start of at least 0"),
        ('[{"kind": "stop", "at_seconds": "soon"}]', "expected numbers"),
        ('[{"kind": "stop", "peer": "first"}]', "expected numbers"),
    ],
)
def test_a_script_with_a_mistake_is_refused_with_its_reason(tmp_path, text, message):
    path = tmp_path / "faults.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_script(path, seed=1, duration_seconds=60, num_peers=3)


def test_faults_of_servers_follow_each_other_and_are_never_drawn():
    faults = serving_faults_in_turn(["server", "hole", "server"], 180.0)
    assert [fault.kind for fault in faults] == ["server", "hole", "server"]
    assert all(one.ends_at_seconds < two.at_seconds for one, two in itertools.pairwise(faults))
    assert all(fault.peer == NO_PEER for fault in faults)
    with pytest.raises(ValueError, match=r"hole, hole, hole do not end in 1\.0 minutes. Use --minutes 3\.\d"):
        serving_faults_in_turn(["hole"] * 3, 60.0)
    assert not set(ServingFault) & {fault.kind for seed in range(20) for fault in drawn(seed)}


def test_a_fault_says_what_happens_to_whom():
    fault = Fault(kind=FaultKind.PARTITION, at_seconds=3.0, duration_seconds=2.0, peer=1)
    assert fault.describe() == "partition of trainer 1 at 3.0 s for 2.0 s"
    assert (
        Fault(kind=FaultKind.DISK_FULL, at_seconds=3.0, duration_seconds=2.0).describe()
        == "disk_full at 3.0 s for 2.0 s"
    )
