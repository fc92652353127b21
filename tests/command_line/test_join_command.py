"""`dalle-collab join` and `run assist` on the embedded Hub: every mistake is one line, and Ctrl-C is in order."""

import contextlib
import json
import os
import pty
import re
import socket
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from published_runs import (
    LOOPBACK,
    NOT_FOR_PEOPLE,
    command_environment,
    family_of,
    interrupt,
    started_command,
    still_alive,
    the_line,
)
from swarm_of_processes import TINY_MODEL, tiny_run

pytestmark = [pytest.mark.slow, pytest.mark.swarm]

DEAD_ADDRESS = "/ip4/127.0.0.1/tcp/9/p2p/12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo"


@pytest.fixture(scope="module")
def without_address(training_material):
    return training_material.create_run("org/lonely-run", num_epochs=5, run_id="lonely")


def test_an_unknown_run_is_one_line(commands):
    line = the_line(commands.run("join", "org/no-such-run", "--host", LOOPBACK, is_worker=True))
    assert "There is no model repository org/no-such-run on this Hub, or your token has no access" in line


def test_a_run_without_entry_address_says_how_its_organiser_announces_one(commands, without_address):
    line = the_line(commands.run("join", without_address, is_worker=True))
    assert f"{without_address} has no entry address yet." in line
    assert line.endswith(f"dalle-collab run assist {without_address}")


def test_a_repository_that_is_no_run_says_how_to_create_one(commands, training_material):
    line = the_line(commands.run("join", training_material.codec, is_worker=True))
    assert f"{training_material.codec} has no training_run.json: it is not a training run." in line
    assert "dalle-collab run create" in line


@pytest.mark.parametrize("command", [("join",), ("run", "assist")], ids=" ".join)
def test_a_token_that_is_refused_is_one_line_without_the_token(commands, without_address, command):
    line = the_line(commands.run(*command, without_address, token="hf_this_is_no_token", is_worker=True))
    assert "token" in line and "hf auth login" in line
    assert "hf_this_is_no_token" not in line


@pytest.mark.parametrize("command", [("join",), ("run", "assist")], ids=" ".join)
def test_a_finished_run_is_not_trained_further(commands, training_material, without_address, command):
    repository = f"org/finished-{command[-1]}"
    state = json.dumps(dict(run_id="lonely", epoch=5, loss=1.0, package_version="0"))
    training_material.copy_run(repository, without_address, run_state__json=state)
    line = the_line(commands.run(*command, repository, is_worker=True))
    assert "Training run lonely is over: it has reached its last epoch, 5." in line
    assert "dalle-collab generate" in line


def test_dead_entry_addresses_name_the_auxiliary_peer_as_the_cure(commands, training_material, without_address):
    run = training_material.settings(without_address).replace(entry_addresses=(DEAD_ADDRESS,))
    training_material.copy_run("org/dead-run", without_address, training_run__json=run.to_json())
    done = commands.run("join", "org/dead-run", "--host", LOOPBACK, is_worker=True)
    state, line = done.stderr.strip().splitlines()
    assert state.endswith("org/dead-run: The run waits for its first epoch.")
    assert "No entry address of org/dead-run answers (1 tried: " in line
    assert line.endswith("dalle-collab run assist org/dead-run")


def test_a_daemon_that_is_slow_to_start_gets_a_second_chance_and_then_the_machine_is_named(
    commands, training_material, without_address
):
    run = training_material.settings(without_address).replace(entry_addresses=(DEAD_ADDRESS,))
    training_material.copy_run("org/slow-run", without_address, training_run__json=run.to_json())
    done = commands.run("join", "org/slow-run", "--host", LOOPBACK, "--startup-timeout", "0.01", is_worker=True)
    line = done.stderr.strip().splitlines()[-1]
    assert "The libp2p daemon did not start in time, twice" in line and line.endswith("--startup-timeout 300")
    assert done.returncode == 1 and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("gpu", "There is no device 'gpu'. Expected auto, cpu, cuda or cuda:N."),
        ("cuda", "Device cuda was asked for, but torch sees no GPU here. Use cpu."),
    ],
)
def test_a_bad_device_is_refused_before_the_swarm_is_entered(
    commands, training_material, without_address, device, message
):
    import torch

    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    repository = f"org/device-{device}"
    run = training_material.settings(without_address).replace(entry_addresses=(DEAD_ADDRESS,))
    training_material.copy_run(repository, without_address, training_run__json=run.to_json())
    assert message in the_line(commands.run("join", repository, "--device", device, is_worker=True))


def test_a_run_whose_codec_did_not_make_the_dataset_is_not_trained(commands, training_material, without_address):
    run = training_material.settings(without_address).replace(entry_addresses=(DEAD_ADDRESS,))
    processor = json.loads(training_material.file(without_address, "processor_config.json").read_text())
    changed = json.dumps(dict(processor, image_codec_fingerprint="0123456789abcdef"))
    training_material.copy_run(
        "org/wrong-codec-run", without_address,
        training_run__json=run.to_json(), processor_config__json=changed,
    )  # fmt: skip
    line = the_line(commands.run("join", "org/wrong-codec-run", is_worker=True))
    assert f"were made by codec {training_material.layout.codec_fingerprint}, but the run's codec is 0123456789" in line


def test_a_run_whose_model_does_not_fit_the_dataset_is_not_trained(commands, training_material, without_address):
    run = training_material.settings(without_address)
    config = dict(run.model_config, image_grid_size=8)
    changed = run.replace(entry_addresses=(DEAD_ADDRESS,), model_config=config)
    training_material.copy_run("org/other-grid-run", without_address, training_run__json=changed.to_json())
    line = the_line(commands.run("join", "org/other-grid-run", is_worker=True))
    assert "has 4x4 codes out of 32; the run's model expects 8x8 out of 32." in line


def run_in_a_terminal(hub, *arguments, answers):
    """Run `dalle-collab` where it could ask, with answers ready; return the exit code and what the terminal shows."""
    terminal, end = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "pipelines.command_line.main", *arguments],
        env=command_environment(hub, hub.alice_token), stdin=end, stdout=end, stderr=end, start_new_session=True,
    )  # fmt: skip
    os.close(end)
    os.write(terminal, answers)
    shown = b""
    with contextlib.suppress(OSError):  # what a terminal says once nobody holds its other end
        while content := os.read(terminal, 2**16):
            shown += content
    os.close(terminal)
    return process.wait(60), shown.decode()


@pytest.mark.parametrize(
    "kind",
    [
        "tokenizer_config__json",
        pytest.param("processor_config__json", marks=pytest.mark.long),
        pytest.param("config__json", marks=pytest.mark.long),
    ],
)
def test_code_in_a_run_is_not_run_and_nobody_is_asked_about_it(training_material, without_address, tmp_path, kind):
    marker, name = tmp_path / "code has run", f"org/hostile-{kind.partition('_')[0]}"
    run = training_material.settings(without_address).replace(entry_addresses=(DEAD_ADDRESS,))
    snapshot = training_material.snapshot(without_address)
    path = snapshot / kind.replace("__", ".")
    values = json.loads(path.read_text()) if path.exists() else {"model_type": "hostile"}
    maps = {kind: f"evil.Evil{kind[4:]}" for kind in ("AutoProcessor", "AutoConfig", "AutoModel")}
    values |= {"tokenizer_class": "EvilTokenizer", "processor_class": "EvilProcessor"}
    values |= {"auto_map": maps | {"AutoTokenizer": ["evil.EvilTokenizer", "evil.EvilTokenizer"]}}
    training_material.copy_run(
        name, without_address, training_run__json=run.to_json(), evil__py=f"open({str(marker)!r}, 'w')",
        **{kind: json.dumps(values)},
    )  # fmt: skip
    arguments = ("join", name, "--host", LOOPBACK, "--startup-timeout", "0.01")
    before = {process.pid for process in psutil.Process(os.getpid()).children(recursive=True)}
    code, shown = run_in_a_terminal(training_material.hub, *arguments, answers=b"y\n" * 8)
    assert {process.pid for process in psutil.Process(os.getpid()).children(recursive=True)} <= before
    assert code == 1 and "Traceback" not in shown, shown
    assert "Do you wish" not in shown and "[y/N]" not in shown, shown
    assert not marker.exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "training_run.json is not JSON"),
        (tiny_run(model_config=TINY_MODEL).to_json().replace('"format_version": 2', '"format_version": 9'), "format 9"),
    ],
    ids=["damaged", "newer"],
)
def test_damaged_and_newer_settings_are_refused(commands, training_material, without_address, request, text, message):
    repository = f"org/settings-{request.node.callspec.id}"
    training_material.copy_run(repository, without_address, training_run__json=text)
    assert message in the_line(commands.run("join", repository, is_worker=True))


@pytest.mark.parametrize("command", [("join",), ("run", "assist")], ids=" ".join)
def test_a_port_that_is_taken_is_named_and_not_mistaken_for_a_swarm_that_is_down(
    commands, training_material, without_address, command
):
    run = training_material.settings(without_address).replace(entry_addresses=(DEAD_ADDRESS,))
    repository = f"org/port-taken-{command[-1]}"
    training_material.copy_run(repository, without_address, training_run__json=run.to_json())
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        host = f"/ip4/127.0.0.1/tcp/{taken.getsockname()[1]}"
        line = commands.run(*command, repository, "--host", host, is_worker=True).stderr.strip().splitlines()[-1]
    assert f"Cannot listen on {host} (" in line and "address already in use" in line
    assert "--host /ip4/0.0.0.0/tcp/PORT" in line


@pytest.mark.parametrize("command", ["join", "doctor"])
@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("0", "micro_batch_size is 0; expected at least 1."),
        ("many", "--micro-batch-size is 'many'; expected auto or a whole number."),
    ],
)
def test_a_bad_option_is_refused_before_anything_starts(commands, without_address, command, value, said):
    assert said in the_line(commands.run(command, without_address, "--micro-batch-size", value))


def wait_for_line(path, process, log, seconds=150):
    """Wait until a peer has written its first event."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if path.exists() and path.read_text().endswith("\n"):
            return [json.loads(line) for line in path.read_text().splitlines()]
        assert process.poll() is None, log.read_text()
        time.sleep(0.1)
    raise AssertionError(f"no event within {seconds} s: {log.read_text()}")


def kill_in_a_round(material, log, *arguments):
    """Let another peer train until it has ended an epoch with the others, then kill it."""
    with material.commands.started_worker(log, *arguments, HF_TOKEN=material.hub.alice_token) as peer:
        lines = wait_for_line(Path(arguments[-1]), peer, log)
        while not any(line["event"] == "step" and line["num_peers"] > 1 for line in lines):
            time.sleep(0.1)
            lines = wait_for_line(Path(arguments[-1]), peer, log)


@pytest.fixture(scope="module")
def interrupted(training_material, tmp_path_factory):
    """What came of a trainer and an auxiliary peer that were interrupted in the middle of a run."""
    repository = training_material.create_run("org/interrupted-run", run_id="interrupted")
    log, events = tmp_path_factory.mktemp("log"), tmp_path_factory.mktemp("events")
    assist = ("run", "assist", repository, "--host", LOOPBACK)
    join = ("join", repository, "--host", LOOPBACK, "--micro-batch-size", "8", "--shuffle-buffer", "64")
    codes, left = {}, []
    with started_command(
        training_material.hub, log / "assist", *assist, "--events", str(events / "assist")
    ) as auxiliary:
        wait_for_line(events / "assist", auxiliary, log / "assist")
        with started_command(training_material.hub, log / "join", *join, "--events", str(events / "join")) as trainer:
            wait_for_line(events / "join", trainer, log / "join")
            while wait_for_line(events / "assist", auxiliary, log / "assist")[-1]["held_epoch"] < 1:
                time.sleep(0.1)
            before_kill = len((log / "join").read_text())
            kill_in_a_round(training_material, log / "killed", *join, "--events", str(events / "killed"))
            reached = wait_for_line(events / "assist", auxiliary, log / "assist")[-1]["held_epoch"]
            while wait_for_line(events / "assist", auxiliary, log / "assist")[-1]["held_epoch"] < reached + 3:
                time.sleep(0.1)
            of_bystander = (log / "join").read_text()[before_kill:]
            family = family_of(trainer.pid)
            names = [process.name() for process in family]
            codes["join"] = interrupt(trainer)
            left += still_alive(family)
            lines = wait_for_line(events / "join", trainer, log / "join")
        family = family_of(auxiliary.pid)
        codes["assist"] = interrupt(auxiliary)
        left += still_alive(family)
    looks = wait_for_line(events / "assist", auxiliary, log / "assist")
    printed = {name: (log / name).read_text() for name in codes}
    return SimpleNamespace(
        repository=repository,
        codes=codes,
        left=left,
        names=names,
        lines=lines,
        looks=looks,
        printed=printed,
        of_bystander=of_bystander,
    )


@pytest.mark.timeout(600)
def test_ctrl_c_in_mid_training_ends_a_trainer_and_the_auxiliary_peer_which_publishes_what_it_holds(
    training_material, interrupted
):
    entered, joined, *steps, left = interrupted.lines
    assert entered["event"] == "entered" and (joined["username"], joined["num_epochs"]) == ("alice", 10_000)
    assert steps and all(step["event"] == "step" and step["ended_epoch"] for step in steps)
    assert steps[0]["was_used"] and left["num_samples"] >= steps[-1]["num_samples"] > 0
    assert "p2pd" in interrupted.names and interrupted.left == []
    assert set(interrupted.codes.values()) <= {0, 130}, interrupted.printed
    assert re.search(r"First gradient counted \d+ s after the start", interrupted.printed["join"])
    assert "contributed" in interrupted.printed["join"]
    state = json.loads(training_material.file(interrupted.repository, "run_state.json").read_text())
    held = interrupted.looks[-1]["held_epoch"]
    assert state["epoch"] >= held >= 1 and interrupted.looks[-1]["published_epoch"] == 0
    assert NOT_FOR_PEOPLE.search("\n".join(interrupted.printed.values())) is None, interrupted.printed


def test_a_peer_that_is_killed_is_at_most_one_line_on_the_terminal_of_another(interrupted):
    said = [line for line in interrupted.of_bystander.splitlines() if " INFO epoch " not in line]
    faults = [line for line in said if re.search(" (WARN|ERROR)", line)]
    assert len(faults) <= 1, interrupted.of_bystander
    assert interrupted.of_bystander.count(" INFO epoch ") >= 1 and "attempt" not in "".join(said)
    datetime.fromisoformat(interrupted.printed["join"].split(" ")[0])
    assert f"{interrupted.repository}: The run waits for its first epoch." in interrupted.printed["join"]


def test_the_organisers_checklist_restores_the_checkpoint_and_finds_that_nobody_lets_peers_in(commands, interrupted):
    done = commands.run("run", "check", interrupted.repository, "--json", is_worker=True)
    found = {" ".join(item["name"].split()[:2]): item for item in json.loads(done.stdout)["results"]}
    assert found["checkpoint"]["status"] == "ok" and "epoch" in found["checkpoint"]["seen"]
    assert found["entry places"]["status"] != "ok" and found["entry address"]["status"] == "fail"
    assert f"dalle-collab run assist {interrupted.repository}" in found["entry address"]["cure"]
    assert {"training run", "dataset revision", "evaluation set", "commit budget", "card"} <= set(found)
    assert done.returncode == 3


def test_the_report_of_a_run_names_its_settings_course_and_contributors(commands, interrupted, tmp_path):
    done = commands.run("run", "report", interrupted.repository, "--output", str(tmp_path / "report.md"))
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "report.md").read_text()
    assert "target_batch_size" in text and "alice" in text and "num_hidden_layers" in text
    assert (tmp_path / "report_loss_curve.png").read_bytes().startswith(b"\x89PNG")
