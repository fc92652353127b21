"""What the doctor concludes from what it has seen: no network, no processes."""

import dataclasses
import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from pipelines.core.run.compute_options import ComputeOptions
from pipelines.core.run.training_run import TrainingRun
from pipelines.features.machine import Machine, capped, read_machine
from pipelines.features.reachability.tcp_calls import Call
from pipelines.features.servers.complaints import Accused
from pipelines.features.servers.server_record import SERVERS, ServerRecord
from pipelines.tasks.choice import open_task
from pipelines.tasks.required_versions import required_versions
from pipelines.tools.doctor.admission_checks import judge_membership, judge_service
from pipelines.tools.doctor.check_result import CheckResult, exit_code, fail, ok, unknown, warn
from pipelines.tools.doctor.machine_checks import (
    PeerNeeds,
    check_disk,
    check_gpu_memory,
    check_hosts,
    check_memory,
    check_open_files,
    check_shared_memory,
    check_versions,
)
from pipelines.tools.doctor.peer_needs import peer_needs
from pipelines.tools.doctor.probing.probe_result import EntryFinding, SwarmFinding
from pipelines.tools.doctor.serving.server_checks import check_complaints, check_servers
from pipelines.tools.doctor.swarm_checks import (
    check_clock,
    check_daemon,
    check_entries,
    check_one_swarm,
    check_reachability,
    connected_groups,
)

GIB = 2**30
NEWEST, OLDER = "a" * 64, "b" * 64
PEER = "12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo"


def machine(**changes):
    return dataclasses.replace(read_machine(), **changes)


def needs(**changes):
    values = dict(memory=2 * GIB, shared_memory=GIB, gpu_memory=None, disk=GIB, explanation="125.0 M parameters")
    return PeerNeeds(**(values | changes))


def entry(number, *, knows=(), answers=True, outcome="answered", detail="", **values):
    address = f"/ip4/203.0.113.{number}/tcp/31337/p2p/{PEER}"
    call = Call(address=address, outcome=outcome, detail=detail, seconds=0.01)
    names = frozenset(f"peer-{other}" for other in (number, *knows)) if answers else frozenset()
    return EntryFinding(call=call, peer_id=f"peer-{number}", answers=answers, knows=names, **values)


def server(name, **changes):
    values = dict(
        peer_id=f"Qm{name}", username=name, state="online", revision=NEWEST, epoch=9, precision="float32",
        package_version="0",
    )  # fmt: skip
    return ServerRecord(**(values | changes))


def look(*entries, **values):
    return SwarmFinding(**(dict(daemon_seconds=0.5, entries=tuple(entries)) | values))


def test_exit_codes_tell_failures_from_warnings():
    fine, odd = ok("a", "x"), unknown("b", "y")
    wary, bad = warn("c", "x", "y", "z"), fail("d", "x", "y", "z")
    assert exit_code([fine, odd]) == exit_code([fine, odd], strict=True) == 0
    assert (exit_code([fine, wary]), exit_code([fine, wary], strict=True)) == (0, 4)
    assert exit_code([wary, bad]) == exit_code([wary, bad], strict=True) == 3


def test_a_finding_is_one_line_for_people_and_a_mapping_for_programs():
    result = fail("disk", "1 MiB free", "at least 1.0 GiB", "Free some space.")
    assert result.line() == "disk: 1 MiB free; expected at least 1.0 GiB. Free some space."
    assert json.loads(json.dumps(result.as_mapping()))["status"] == "fail"
    with pytest.raises(ValueError, match="status is 'bad'; expected one of ok, unknown, warn, fail"):
        CheckResult(name="a", status="bad", seen="")


@pytest.mark.parametrize(
    ("required", "installed", "cure"),
    [
        ({"numpy": "<2.4,>=2.0"}, {"numpy": "2.4.6"}, "pip install 'numpy<2.4,>=2.0'"),
        ({"hivemind": "==1.1.12"}, {"hivemind": None}, "pip install 'hivemind==1.1.12'"),
        ({"python": ">=3.11,<3.14"}, {"python": "3.10.2"}, "uv venv --python '>=3.11,<3.14'"),
        ({"dalle-collab": "==0.2.*"}, {"dalle-collab": "0.1.0"}, "pip install 'dalle-collab==0.2.*'"),
    ],
)
def test_a_version_that_does_not_fit_the_run_names_the_command_that_installs_one(required, installed, cure):
    (result,) = check_versions(required | {"torch": ">=2"}, installed | {"torch": "2.15.0+cpu"})
    ((name, wanted),) = required.items()
    assert (result.status, result.name, result.expected) == ("fail", f"version of {name}", wanted)
    assert result.seen == (installed[name] or "not installed")
    assert cure in result.cure


def test_a_new_run_asks_for_the_versions_that_this_package_itself_asks_for():
    versions = required_versions()
    assert versions["hivemind"] == "==1.1.12" and "<2.4" in versions["numpy"] and "3.11" in versions["python"]
    assert versions["dalle-collab"].endswith(".*")


def test_a_requirement_that_cannot_be_read_is_a_warning_and_no_crash():
    (result,) = check_versions({"numpy": "two"}, {"numpy": "2.3.0"})
    assert result.status == "warn" and "cannot be compared" in result.seen


@pytest.mark.parametrize(("allowed", "status"), [(256, "fail"), (1023, "fail"), (1024, "warn"), (4096, "ok")])
def test_open_files_are_judged_by_the_hard_limit(allowed, status):
    result = check_open_files(machine(open_files=allowed))
    assert result.status == status
    assert status == "ok" or "nofile=65536" in result.cure


def test_the_hard_limit_is_what_counts_and_what_a_peer_raises_its_own_to():
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (300, 600))\n"
        "from hub_tools.processes.open_files import open_files_limit, raise_open_files\n"
        "raise_open_files(); print(open_files_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["600", "600", "600"]


@pytest.mark.parametrize(
    ("check", "field", "need", "seen", "wanted"),
    [
        (check_memory, "available_memory", "memory", "64 MiB", "3 GiB"),
        (check_shared_memory, "free_shared_memory", "shared_memory", "64 MiB", "3 GiB"),
        (check_gpu_memory, "free_gpu_memory", "gpu_memory", "64 MiB", "3 GiB"),
        (check_disk, "free_disk", "disk", "67.1 MB", "3.2 GB"),
    ],
)
def test_too_little_of_anything_says_how_much_is_there_and_how_much_is_needed(check, field, need, seen, wanted):
    short = check(machine(**{field: 64 * 2**20}), needs(**{need: 3 * GIB}))
    assert (short.status, short.expected) == ("fail", f"at least {wanted} (125.0 M parameters)")
    assert short.seen.startswith(f"{seen} ") and short.cure
    assert check(machine(**{field: 3 * GIB}), needs(**{need: 3 * GIB})).status == "ok"
    assert check(machine(**{field: 3 * GIB}), needs(**{need: None})).status == "unknown"


def test_a_machine_without_shared_memory_fails_and_one_without_gpu_is_not_asked():
    assert check_shared_memory(machine(free_shared_memory=None), needs()).status == "fail"
    assert check_gpu_memory(machine(free_gpu_memory=None), needs()) is None


def test_a_cap_on_gpu_memory_counts_as_what_is_free_of_it():
    assert [capped(8 * GIB, cap) for cap in (None, 6.0, 9.0)] == [8 * GIB, 6 * GIB, 8 * GIB]
    assert capped(None, 6.0) is None


def test_this_machine_can_be_read():
    seen = read_machine()
    assert isinstance(seen, Machine) and seen.platform == sys.platform
    assert min(seen.open_files, seen.free_disk, seen.available_memory) > 0


@pytest.mark.parametrize(
    ("peers", "hub", "status", "words"),
    [
        ({"a": 0.1, "b": -0.2}, 0.4, "ok", "a +0.1 s; b -0.2 s; the Hub +0.4 s"),
        ({"a": 61.0, "b": 60.0}, 60.4, "fail", "this machine's clock is 60.4 s behind"),
        ({"a": -5.0}, None, "fail", "this machine's clock is 5.0 s ahead"),
        ({"a": 61.0}, 0.4, "fail", "this machine agrees with the others, but not a (+61.0 s)"),
        ({"a": 61.0, "b": 0.0, "c": 0.1}, None, "fail", "but not a (+61.0 s)"),
        ({"a": 0.0}, 40.0, "warn", "but not the Hub (+40.0 s)"),
        ({"a": 2.0}, 2.2, "warn", "a +2.0 s"),
        ({}, None, "unknown", "neither the Hub nor an entry peer tells the time"),
    ],
)
def test_the_clock_that_stands_against_the_majority_is_named(peers, hub, status, words):
    result = check_clock(peers, hub)
    assert result.status == status and words in result.seen
    assert status in ("ok", "unknown") or "timedatectl" in result.cure


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        ("refused", "no peer listens"),
        ("silent", "firewall"),
        ("no way", "no route"),
        ("no such name", "does not resolve"),
        ("no peer", "Another program"),
        ("other peer", "--identity-file"),
        ("malformed", "damaged address"),
        ("failed", "block libp2p"),
    ],
)
def test_each_way_in_which_an_entry_address_fails_has_its_own_cause(outcome, words):
    dead = entry(1, answers=False, outcome=outcome, detail="why")
    (alone,) = check_entries("org/run", look(dead))
    assert alone.status == "fail" and alone.seen == f"{outcome} (why)" and words in alone.cure
    assert alone.name == "entry address 203.0.113.1:31337"
    seen = dict(num_trainers=3, records={SERVERS: {b"a": server("a"), b"b": server("b")}})
    beside, fine = check_entries("org/run", look(dead, entry(2, ping_seconds=0.02, **seen)))
    assert (beside.status, fine.status) == ("warn", "ok")
    assert "20 ms" in fine.seen and "3 training peers" in fine.seen and "2 servers of its model" in fine.seen


def test_a_peer_that_connects_but_refuses_calls_is_told_from_a_dead_one():
    (result,) = check_entries("org/run", look(entry(1, answers=False, refusal="bad token")))
    assert "connects, but the peer refuses or does not answer calls (bad token)" in result.seen


def test_a_run_without_entry_address_names_the_auxiliary_peer():
    (result,) = check_entries("org/run", look())
    assert result.status == "fail" and "dalle-collab run assist org/run" in result.cure


def test_swarms_are_one_if_a_chain_of_peers_connects_them_and_two_if_none_does():
    chain = [entry(1, knows=[2]), entry(2), entry(3, knows=[2])]
    assert connected_groups(chain) == [{"peer-1", "peer-2", "peer-3"}]
    assert check_one_swarm("org/run", look(*chain)).status == "ok"
    apart = look(entry(1, knows=[2], num_trainers=4), entry(2), entry(3, num_trainers=1))
    result = check_one_swarm("org/run", apart)
    assert result.status == "fail"
    assert result.seen == (
        "2 swarms that do not know each other: 203.0.113.1:31337, 203.0.113.2:31337 (4 training peers); "
        "203.0.113.3:31337 (1 training peer)"
    )
    assert check_one_swarm("org/run", look(entry(1, answers=False))) is None


def test_a_daemon_that_is_slow_or_does_not_start_is_explained():
    assert check_daemon(look()).status == "ok"
    slow = check_daemon(look(daemon_seconds=31.0, num_daemon_starts=2))
    assert slow.status == "warn" and "--startup-timeout" in slow.cure
    dead = check_daemon(look(daemon_seconds=None, daemon_error="Daemon failed to start in 180.0 seconds"))
    assert dead.status == "fail" and "pip install --force-reinstall hivemind" in dead.cure
    assert dead.seen == "did not start after 1 attempt, the last one in 180.0 seconds"
    killed = check_daemon(look(daemon_seconds=None, daemon_error="Daemon failed to start: None"))
    assert killed.seen == "did not start after 1 attempt, the last one was killed, or ended, without a word"
    taken = check_daemon(look(daemon_seconds=None, daemon_error="failed to listen on any addresses"))
    assert taken.status == "fail" and "--host" in taken.cure


def test_own_address_is_judged_by_the_calls_of_another_peer():
    call = Call(address="/ip4/198.51.100.7/tcp/4000", outcome="refused", detail="nothing listens on that port")
    unreachable = check_reachability(look(calls_back=(call,), seen_as=call.address), client_mode=False)
    assert unreachable.status == "fail" and "198.51.100.7:4000 refused" in unreachable.seen
    assert "--client-mode" in unreachable.cure and "--announce" in unreachable.cure
    reached = look(calls_back=(call, dataclasses.replace(call, outcome="answered")))
    assert check_reachability(reached, client_mode=False).status == "ok"
    assert check_reachability(look(), client_mode=False).status == "unknown"
    assert check_reachability(look(), client_mode=True).status == "ok"


def test_a_port_that_is_taken_is_named():
    result = check_hosts(["/ip4/0.0.0.0/tcp/80"], {"/ip4/0.0.0.0/tcp/80": "Address already in use"})
    assert result.status == "fail" and "/ip4/0.0.0.0/tcp/80 (Address already in use)" in result.seen
    assert "--host /ip4/0.0.0.0/tcp/PORT" in result.cure


def test_a_slow_answer_of_the_hub_leaves_its_clock_in_doubt():
    from pipelines.tools.doctor.hub_checks import certain_offset

    assert certain_offset(0.4, 0.1) == certain_offset(-3.0, 6.0) == 0.0
    assert certain_offset(60.0, 1.0) == pytest.approx(59.0)
    assert certain_offset(-60.0, 1.0) == pytest.approx(-59.0)


def test_the_needs_of_the_papers_run_follow_from_its_parameters():
    run = TrainingRun(run_id="run", model_config={}, dataset_repository="org/codes", dataset_revision="main")
    on_cpu, on_gpu = (
        peer_needs(
            open_task(run, "org/birds"), ComputeOptions(device=device, micro_batch_size=1), checkpoint_bytes=10**9
        )
        for device in ("cpu", "cuda")
    )
    num_parameters = on_cpu.shared_memory // 8
    assert 120e6 < num_parameters < 130e6 and on_cpu.explanation.startswith(f"{num_parameters / 1e6:.1f} M parameters")
    # float32 weights and gradients of the model and of the offloaded optimizer, and LAMB's two 8-bit statistics
    assert on_cpu.memory > (4 + 4 + 4 + 4 + 2) * num_parameters and on_cpu.gpu_memory is None
    assert on_gpu.memory < on_cpu.memory and on_gpu.gpu_memory > 8 * num_parameters
    assert on_gpu.disk > 10**9


KEY = "ed25519:key"


@pytest.mark.parametrize(
    ("answer", "status", "words"),
    [
        (dict(repository="org/run", authorization_key=KEY, lists_problem=None), "ok", "answers"),
        (dict(repository="org/run", authorization_key="other"), "fail", "another key"),
        (dict(repository="org/other", authorization_key=KEY), "fail", "serves org/other"),
        (["no service at all"], "fail", "something else"),
        (dict(repository="org/run", authorization_key=KEY, lists_problem="ban.json"), "warn", "ban.json"),
    ],
)
def test_an_authorization_service_has_to_be_that_of_the_run(answer, status, words):
    run = SimpleNamespace(authorization_service="https://door.example", authorization_key=KEY)
    result = judge_service("org/run", run, answer)
    assert result.status == status and words in result.seen


def test_somebody_who_is_no_member_is_told_whom_to_ask():
    member, stranger = dict(name="ann", orgs=[dict(name="org")]), dict(name="bo", orgs=[])
    assert judge_membership("org/run", member).status == "ok"
    assert judge_membership("ann/run", member).status == "ok"
    result = judge_membership("org/run", stranger)
    assert result.status == "warn" and "bo is not a member of org" in result.seen and "allow list" in result.cure
    assert judge_membership("org/run", None).status == "fail"


def served(*servers, num_layers=12, is_over=False):
    results = check_servers("org/run", servers, NEWEST, num_layers, is_over=is_over)
    return {result.name: result for result in results}


def test_that_nobody_serves_is_worth_a_warning_once_the_run_is_over():
    assert served()["servers"].status == "ok"
    over = served(is_over=True)["servers"]
    assert over.status == "warn" and over.cure == "dalle-collab serve org/run"
    (nothing,) = check_servers("org/run", [server("a")], None, None, is_over=True)
    assert nothing.status == "unknown"


def test_who_serves_is_named_with_what_they_say_and_holes_with_what_fills_them():
    found = served(
        server("ann", draw_rate=100.0), server("b\x1b[2Jo", draw_rate=50.0),
        server("cy", first_layer=0, end_layer=4), server("di", first_layer=6, end_layer=9),
        server("eve", first_layer=4, end_layer=6, state="draining"),
    )  # fmt: skip
    assert found["servers"].seen.startswith(
        "2 drawing 150 codes a second together, 3 computing layers (ann, b\ufffd[2Jo, cy"
    )
    assert found["served layers"].status == "warn" and found["served layers"].seen == "nobody serves layers 4:6, 9:12"
    assert found["served layers"].cure == (
        "dalle-collab serve org/run --blocks 4:6 ; dalle-collab serve org/run --blocks 9:12"
    )
    assert found["served checkpoint"].status == "ok"
    whole = served(server("a", first_layer=0, end_layer=12), server("b", first_layer=60_000, end_layer=65_536))
    assert whole["served layers"].status == "ok"
    assert "served layers" not in served(server("a", draw_rate=1.0))


def test_a_server_of_another_checkpoint_is_named_and_fills_no_hole():
    found = served(server("new", first_layer=0, end_layer=6), server("old", revision=OLDER, epoch=3, end_layer=12))
    old = found["served checkpoint"]
    assert old.status == "warn" and "another one at 1 of 2 servers (old: epoch 3)" in old.seen
    assert found["served layers"].seen == "nobody serves layers 6:12"


def test_a_crowd_of_servers_stays_a_short_line():
    crowd = [server(f"{number} " + "x" * 90, revision=OLDER, epoch=number, draw_rate=1.0) for number in range(500)]
    crowd += [server(f"l{number}", first_layer=number, end_layer=number + 1) for number in range(0, 4096, 2)]
    assert max(len(result.line()) for result in served(*crowd, num_layers=4096).values()) < 2000


def test_a_complaint_is_shown_as_a_claim_and_stops_nobody():
    def accused(name, *accusers):
        return Accused(server=name, accusers=accusers, num_audited=9, mean_excess=0.25, limit=1e-5)

    assert check_complaints("org/run", [], []).status == "ok"
    found = check_complaints("org/run", [accused("Qmann", "x", "y"), accused("Qm\x1b[2Jxyz", "x")], [server("ann")])
    assert found.status == "unknown" and exit_code([found], strict=True) == 0
    assert "about ann by 2, who say that 9 candidates are off by 2.5e-01, honest ones by at most 1.0e-05" in found.seen
    assert "\x1b" not in found.line() and "Claims are no proof" in found.cure and "--swarm --audit" in found.cure
    assert len(check_complaints("org/run", [accused("Q" * 96, "x")] * 32, []).line()) < 2000
