"""`dalle-collab doctor` names cause and cure of failures that are there: real swarms, a real Hub, real limits.

Each test induces one failure of the table in docs/doctor.md.
"""

import json
import socket
import subprocess
import sys

import pytest
from admission_material import publish_run
from entry_peers import started_entry_peers
from poor_machine import NOT_ALLOWED
from published_runs import LOOPBACK, command_environment
from support_files import SUPPORT
from swarm_of_processes import tiny_run

from hub_tools.local_hub import LocalHub

pytestmark = pytest.mark.slow

PROGRAMS = SUPPORT
DEAD_ADDRESS = "/ip4/127.0.0.1/tcp/9/p2p/12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo"


@pytest.fixture(scope="module")
def peers(tmp_path_factory):
    """Addresses of entry peers: `one` and `two` of one swarm, `apart` of another, `late` with a clock 60 s ahead."""
    with started_entry_peers(
        tmp_path_factory.mktemp("peers"), one={}, two={"joins": ["one"]}, apart={}, late={"clock_shift": 60.0}
    ) as addresses:
        yield {name: found[0] for name, found in addresses.items()}


@pytest.fixture(scope="module")
def examine(commands, training_material, peers):
    """Examine this machine for a run with given settings; return the exit code and the findings by name."""
    source = training_material.create_run("org/examined")
    numbers = iter(range(1000))

    def examine(*options, entry_addresses=("one",), token=None, program=None, **settings):
        run = training_material.settings(source)
        addresses = tuple(peers.get(name, name) for name in entry_addresses)
        changed = run.replace(entry_addresses=addresses, **settings)
        repository = training_material.copy_run(
            f"org/examined-{next(numbers)}", source, training_run__json=changed.to_json()
        )
        hosts = () if "--host" in options else ("--host", LOOPBACK)
        arguments = ("doctor", repository, *hosts, *options, "--json")
        if program is not None:
            done = commands.run_program(PROGRAMS / "poor_machine.py", json.dumps(program), *arguments)
        else:
            done = commands.run(*arguments, token=token, is_worker=True)
        return findings_of(done)

    return examine


def findings_of(done):
    """Return the exit code and the findings by name."""
    if done.returncode == NOT_ALLOWED:
        pytest.skip("this user may not make file systems")
    assert done.stdout, done.stderr
    printed = json.loads(done.stdout)
    assert printed["exit_code"] == done.returncode
    return done.returncode, {result["name"]: result for result in printed["results"]}


def the_failure(answer):
    """Return the only finding that fails."""
    code, findings = answer
    failed = [result for result in findings.values() if result["status"] == "fail"]
    assert code == 3 and len(failed) == 1, findings
    assert failed[0]["cure"] and failed[0]["expected"]
    return failed[0]


def short(address):
    return address.split("/")[2] + ":" + address.split("/")[4]


def test_a_healthy_machine_passes_and_is_called_back_by_a_peer(examine, peers):
    code, findings = examine(entry_addresses=("one", "two"))
    assert code == 0
    assert {result["status"] for result in findings.values()} == {"ok"}, findings
    assert "2 entry peers know each other" in findings["one swarm"]["seen"]
    assert "answers a peer's call" in findings["own address"]["seen"]
    assert "first micro-batch after" in findings["data stream"]["seen"]
    assert {f"entry address {short(peers[name])}" for name in ("one", "two")} <= set(findings)


def test_1_a_clock_that_is_wrong_is_told_from_an_entry_peer_whose_clock_is_wrong(examine, peers):
    failure = the_failure(examine(entry_addresses=("late",)))
    assert failure["name"] == "clock" and "timedatectl" in failure["cure"]
    assert f"this machine agrees with the others, but not {short(peers['late'])} (+60." in failure["seen"]


def test_1_a_machine_whose_own_clock_is_wrong_is_told_by_how_much(peers):
    # The same probe and the same decision as the command's, on a machine whose clock stands 100 s ahead.
    import time

    from pipelines.core.swarm.network_options import NetworkOptions
    from pipelines.tools.doctor.probing.probe import probe_swarm
    from pipelines.tools.doctor.swarm_checks import check_clock, clock_sources

    options = NetworkOptions(host_addresses=(LOOPBACK,), client_mode=True)
    finding = probe_swarm("any", [peers["one"], peers["two"]], options, now=lambda: time.time() + 100.0)
    result = check_clock(clock_sources(finding), hub_offset=-100.3)
    assert result.status == "fail" and "this machine's clock is 100.0 s ahead" in result.seen
    assert "Set it back by 100.0 s" in result.cure


@pytest.mark.long
def test_2_a_package_of_another_version_than_the_runs_is_named_with_the_command_that_installs_it(examine):
    failure = the_failure(examine(required_versions={"hivemind": "==1.1.10", "numpy": ">=2"}))
    assert (failure["name"], failure["seen"]) == ("version of hivemind", "1.1.12")
    assert failure["cure"] == "pip install 'hivemind==1.1.10'"


def test_3_a_dead_entry_address_is_refused_and_the_cure_is_the_auxiliary_peer(examine):
    failure = the_failure(examine(entry_addresses=(DEAD_ADDRESS,)))
    assert failure["name"] == "entry address 127.0.0.1:9" and failure["seen"].startswith("refused (nothing listens")
    assert "dalle-collab run assist org/examined" in failure["cure"]


@pytest.mark.long
def test_4_one_of_two_entry_addresses_that_is_dead_is_a_warning_which_strict_turns_into_an_exit_code(examine, peers):
    code, findings = examine("--strict", entry_addresses=(DEAD_ADDRESS, "one"))
    dead, alive = (findings[f"entry address {short(address)}"] for address in (DEAD_ADDRESS, peers["one"]))
    assert (code, dead["status"], alive["status"]) == (4, "warn", "ok")


def test_5_entry_addresses_that_lead_into_two_swarms_are_found_out(examine, peers):
    failure = the_failure(examine(entry_addresses=("one", "apart")))
    assert failure["name"] == "one swarm" and "2 swarms that do not know each other" in failure["seen"]
    assert short(peers["apart"]) in failure["seen"] and "train separately" in failure["cure"]


@pytest.mark.long
def test_6_a_low_limit_of_open_files_says_how_to_raise_it(examine):
    failure = the_failure(examine(program={"open_files": 300}))
    assert (failure["name"], failure["seen"]) == ("open files", "300 allowed")
    assert "nofile=65536" in failure["cure"]


def test_7_a_tiny_disk_and_a_tiny_dev_shm_are_measured_against_the_need(examine, training_material):
    cache = str(training_material.hub.root / "client_home" / "hub")
    sizes = {cache: 8 * 2**20, "/dev/shm": 256 * 2**10}
    code, findings = examine(program={"small_file_systems": sizes})
    failed = {name for name, result in findings.items() if result["status"] == "fail"}
    assert (code, failed) == (3, {"disk", "shared memory"})
    assert cache in findings["disk"]["seen"] and "HF_HOME" in findings["disk"]["cure"]
    assert "docker run --shm-size" in findings["shared memory"]["cure"]


@pytest.mark.long
def test_8_a_model_that_is_too_large_for_this_machine_is_found_before_it_is_built(examine, training_material):
    model = training_material.settings("org/examined").model_config | dict(hidden_size=2**15, head_dim=2**14)
    code, findings = examine(model_config=model)
    assert code == 3 and findings["memory"]["status"] == "fail"
    assert "GiB" in findings["memory"]["seen"] and "M parameters" in findings["memory"]["expected"]
    assert "--micro-batch-size" in findings["memory"]["cure"]


def test_9_a_token_that_is_refused_is_named_and_not_printed(examine):
    code, findings = examine(token="hf_this_is_no_token")
    assert code == 3 and findings["token"]["status"] == "fail"
    assert "hf auth login" in findings["token"]["cure"]
    assert "hf_this_is_no_token" not in json.dumps(findings)


@pytest.mark.long
def test_10_a_dataset_revision_that_is_gone_is_named(examine):
    failure = the_failure(examine(dataset_revision="0" * 40))
    assert failure["name"] == "dataset" and f"at revision {'0' * 40}" in failure["seen"]
    assert "hub-tools publish dataset" in failure["cure"]


@pytest.mark.long
def test_10_a_dataset_of_another_codec_than_the_runs_is_named(commands, training_material, peers):
    source = training_material.create_run("org/examined-codec")
    processor = json.loads(training_material.file(source, "processor_config.json").read_text())
    changed = json.dumps(dict(processor, image_codec_fingerprint="0123456789abcdef"))
    run = training_material.settings(source).replace(entry_addresses=(peers["one"],))
    repository = training_material.copy_run(
        "org/examined-other-codec", source, processor_config__json=changed, training_run__json=run.to_json()
    )
    failure = the_failure(findings_of(commands.run("doctor", repository, "--host", LOOPBACK, "--json", is_worker=True)))
    assert failure["name"] == "dataset" and "0123456789abcdef" in failure["seen"]


@pytest.mark.long
def test_11_a_port_that_is_taken_is_named(examine):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        host = f"/ip4/127.0.0.1/tcp/{taken.getsockname()[1]}"
        code, findings = examine("--host", host)
    assert code == 3 and findings["port"]["status"] == "fail"
    assert findings["port"]["seen"] == f"cannot listen on {host} (Address already in use)"
    assert "Daemon failed to start" not in json.dumps(findings)


def test_12_a_hub_that_is_away_is_asked_three_times_and_named(commands, training_material, tmp_path):
    with LocalHub(tmp_path / "hub") as away:
        environment = command_environment(away, None)
    done = subprocess.run(
        [sys.executable, "-m", "pipelines.command_line.main", "doctor", "org/examined", "--json"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    failure = the_failure(findings_of(done))
    assert failure["name"] == "Hub" and f"Cannot reach the Hub at {away.endpoint}" in failure["seen"]
    assert "HF_ENDPOINT" in failure["cure"]


@pytest.mark.long
def test_13_an_own_address_that_others_cannot_call_is_found_by_a_call(examine):
    failure = the_failure(examine("--announce", "/ip4/127.0.0.1/tcp/9"))
    assert failure["name"] == "own address" and "127.0.0.1:9 refused" in failure["seen"]
    assert "--client-mode" in failure["cure"]
    assert examine("--announce", "/ip4/127.0.0.1/tcp/9", "--client-mode")[0] == 0


@pytest.mark.long
def test_14_an_address_at_which_another_program_or_another_peer_answers_is_told_from_a_dead_one(examine, peers):
    other_key = peers["one"].rsplit("/", 1)[0] + "/" + DEAD_ADDRESS.rsplit("/", 1)[1]
    with socket.socket() as program:
        program.bind(("127.0.0.1", 0))
        program.listen()
        nobody = f"/ip4/127.0.0.1/tcp/{program.getsockname()[1]}/p2p/{DEAD_ADDRESS.rsplit('/', 1)[1]}"
        _, findings = examine(entry_addresses=(other_key, nobody))
    assert findings[f"entry address {short(other_key)}"]["seen"].startswith("other peer (peer 12D3Koo")
    assert findings[f"entry address {short(nobody)}"]["seen"].startswith("silent (no answer within 5 s")


@pytest.mark.long
def test_the_list_for_people_has_a_line_for_each_finding_with_its_cure(commands, training_material):
    done = commands.run("doctor", "org/examined", "--host", LOOPBACK, is_worker=True)
    assert done.returncode == 3 and "FAIL    entry addresses: the run names none" in done.stdout
    assert "cure: Its organiser starts the auxiliary peer" in done.stdout
    assert done.stdout.strip().endswith("checks failed.")


def test_a_task_that_is_unknown_here_is_one_finding_of_both_examinations(hub, commands):
    publish_run(hub, "org/speaks", json.dumps(json.loads(tiny_run().to_json()) | {"task": "text-to-speech"}))
    for command in (("doctor", "org/speaks", "--host", LOOPBACK), ("run", "check", "org/speaks")):
        code, findings = findings_of(commands.run(*command, "--json", is_worker=True))
        assert code == 3 and "text-to-speech" in findings["training run"]["seen"]
        assert [name for name, result in findings.items() if result["status"] == "fail"] == ["training run"]
