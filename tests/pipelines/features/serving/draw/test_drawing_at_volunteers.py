"""Volunteers' servers draw what one machine would, whatever happens to them; real processes, an embedded Hub."""

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest
from drawn_runs import LOOPBACK, drawn_run
from forked_processes import ForkedProcess, fork_server, printed_json
from PIL import Image
from published_runs import the_line
from running_programs import wait_for
from support_files import SUPPORT

from hub_tools.local_hub import LocalHub
from pipelines.features.publishing.metrics.credit.served import read_served
from pipelines.features.publishing.repository.manifest import digest_file
from pipelines.tasks.text_to_image.generation.image_generation import load_drawing_parts
from pipelines.tools.chaos.chaos_processes import free_port
from pipelines.tools.chaos.faults.link_proxy import LinkLimits, LinkProxy

pytestmark = [
    pytest.mark.slow,
    pytest.mark.swarm,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("no_servers_stay"),
]

RUN = ("drawn-run",)
CLIENT, COMPLAINER = str(SUPPORT / "swarm_client.py"), str(SUPPORT / "complainer.py")
PROMPTS = ("a small red star", "a large green circle")


def generate(commands, run, folder, *options, prompts=PROMPTS[:1], candidates=16, keep=16):
    words = ("generate", run.name, *prompts, "--candidates", candidates, "--keep", keep, "--device", "cpu", "--json")
    return commands.run(*words, "--output", "grid.png", *options, folder=folder, is_worker="--swarm" in options)


def codes_of(done):
    """Return what was drawn: for each prompt the codes by candidate's number."""
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in done.stdout.strip().splitlines()]
    return [{one["candidate"]: one["image_codes"] for one in line["pictures"]} for line in lines]


def scores_of(done):
    lines = [json.loads(line) for line in done.stdout.strip().splitlines()]
    return [{one["candidate"]: one["score"] for one in line["pictures"]} for line in lines]


def test_two_servers_draw_what_one_machine_draws(run, commands, tmp_path):
    run.serve()
    run.serve("--ranking")
    alone = generate(commands, run, tmp_path, prompts=PROMPTS)
    here, scores = codes_of(alone), scores_of(alone)
    theirs = generate(commands, run, tmp_path, "--swarm", "--remote-ranking", prompts=PROMPTS)
    assert codes_of(theirs) == here
    assert scores_of(theirs) == [pytest.approx(expected, abs=1e-3) for expected in scores]
    assert re.search(r"Ranked by giver-\d+, unchecked\.", theirs.stderr), theirs.stderr
    assert "32 candidates drawn by giver-" in theirs.stderr and "(epoch 3, float32)" in theirs.stderr
    assert "Unchecked: drawings are checked with the model's weights" in theirs.stderr
    checked = commands.run("doctor", run.name, "--host", LOOPBACK, "--json", folder=tmp_path)
    assert "2 servers of its model" in checked.stdout, checked.stdout + checked.stderr
    for one in json.loads(theirs.stdout.splitlines()[0])["pictures"]:
        assert one["server"].startswith("giver-") and len(one["revision"]) == 64
        assert (one["epoch"], one["precision"], one["audited"]) == (3, "float32", False)
    with Image.open(tmp_path / "grid.png") as grid:
        assert grid.width > 192


@pytest.mark.long
def test_a_picture_is_completed_and_guided_as_here(run, commands, tmp_path):
    run.serve()
    Image.new("RGB", (40, 40), "teal").save(tmp_path / "upper.png")
    options = ("--complete", "upper.png", "--rows", 1, "--guidance-scale", 2, "--top-p", 0.9, "--seed", -5)
    here = codes_of(generate(commands, run, tmp_path, *options))
    done = generate(commands, run, tmp_path, *options, "--swarm", "--remote-ranking")
    theirs = codes_of(done)
    assert theirs == here and len({tuple(codes[:4]) for codes in theirs[0].values()}) == 1
    assert "Ranked here, because no server does it now" in done.stderr
    assert f"dalle-collab serve {run.name} --ranking" in done.stderr


@pytest.mark.long
@pytest.mark.parametrize("blow", ["SIGKILL", "SIGSTOP"])
def test_whoever_dies_or_stops_the_pictures_are_the_same(run, commands, tmp_path, blow):
    """The first servers are slow, so that they are in the middle of their parts when the blow comes.

    With the stop the link of another one is cut: both are silent, and neither is gone.
    """
    port = free_port()
    with LinkProxy(lambda port: None) as proxy:
        link = f"/ip4/127.0.0.1/tcp/{proxy.add('slow', port).proxy_port}"
        slow = run.serve("--max-codes-per-second", 60, "--host", f"/ip4/127.0.0.1/tcp/{port}", "--announce", link)
        victim, _ = (run.serve("--max-codes-per-second", rate) for rate in (60, 200))
        here = codes_of(generate(commands, run, tmp_path, candidates=48, keep=48))
        said = drawn_while(commands, run, tmp_path, lambda: strike(blow, victim, proxy))
    (line,) = [line for line in said.splitlines() if line.startswith("{")]
    theirs = {one["candidate"]: one["image_codes"] for one in json.loads(line)["pictures"]}
    assert [theirs] == here, said
    assert slow.process.poll() is None


def strike(blow, victim, proxy):
    victim.signal(getattr(signal, blow))
    if blow == "SIGSTOP":
        proxy.limit("slow", LinkLimits(is_cut=True))


def drawn_while(commands, run, tmp_path, happens):
    """Draw, and let something happen in the middle; return what was printed."""
    log = tmp_path / "swarm.log"
    words = ("generate", run.name, PROMPTS[0], "--candidates", 48, "--keep", 48, "--device", "cpu", "--json", "--swarm")
    words = [str(word) for word in (*words, "--output", tmp_path / "grid.png")]
    with commands.started_worker(log, *words) as asking:
        until_some_are_drawn(asking, log)
        happens()
        assert asking.wait(240) == 0, log.read_text()
    return log.read_text()


def until_some_are_drawn(asking, log):
    wait_for(lambda: log.exists() and "drawing: " in log.read_text(), "drawing", 120, process=asking, log=log)


def test_who_asks_for_what_nobody_has_reads_one_line_that_says_so(run, commands, tmp_path):
    run.serve()
    none = generate(commands, run, tmp_path, "--swarm", "--precision", "int8", "--patience", 3)
    line = none.stderr.strip().splitlines()[-1]
    assert none.returncode == 1 and "no server of checkpoint" in line
    assert "in int8 answers; other checkpoints or precisions: " in line
    assert f"dalle-collab serve {run.name}" in line
    wrong = generate(commands, run, tmp_path, "--swarm", "--weights", "int8")
    assert the_line(wrong).endswith("To choose servers: --precision int8")
    wrong = generate(commands, run, tmp_path, "--remote-ranking")
    assert the_line(wrong).endswith("Add --swarm, and leave out --clip.")
    assert "needs --swarm or --blocks." in the_line(generate(commands, run, tmp_path, "--audit"))


@pytest.mark.long
def test_a_newer_checkpoint_is_served_and_the_older_one_to_whom_it_was_promised(run, commands, tmp_path):
    from tiny_run_parts import tiny_model

    server = run.serve("--checkpoint-seconds", 0.5)
    parts = load_drawing_parts(run.folder / "run", codec=run.folder / "codec")
    old_commit = run.api.repo_info(run.name).sha
    old_weights = {name: value.clone() for name, value in parts.model.state_dict().items()}
    try:
        run.publish(tiny_model(parts.model.config.text_vocab_size, seed=1), epoch=4)
        server.wait_for("serves", 120)
        here = codes_of(generate(commands, run, tmp_path))
        theirs = generate(commands, run, tmp_path, "--swarm")
        assert codes_of(theirs) == here and "(epoch 4, float32)" in theirs.stderr
        old = generate(commands, run, tmp_path, "--swarm", "--revision", old_commit, "--patience", 3)
        assert old.returncode == 1 and "no server of checkpoint" in old.stderr.strip().splitlines()[-1]
    finally:
        parts.model.load_state_dict(old_weights)
        run.publish(parts.model, epoch=3)


@pytest.mark.long
def test_a_server_that_is_asked_to_leave_finishes_what_it_has_begun(run, commands, tmp_path):
    server = run.serve("--max-codes-per-second", 60)
    here = codes_of(generate(commands, run, tmp_path, candidates=4, keep=4))
    log = tmp_path / "swarm.log"
    words = ("generate", run.name, PROMPTS[0], "--candidates", 4, "--keep", 4, "--device", "cpu", "--json", "--swarm")
    with commands.started_worker(log, *map(str, (*words, "--output", tmp_path / "grid.png"))) as asking:
        until_some_are_drawn(asking, log)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0, server.log.read_text()
        run.serve()
        assert asking.wait(120) == 0, log.read_text()
    (line,) = [line for line in log.read_text().splitlines() if line.startswith("{")]
    assert [{one["candidate"]: one["image_codes"] for one in json.loads(line)["pictures"]}] == here
    assert "Left org/drawn-run" in server.log.read_text()


@pytest.mark.long
def test_no_process_stays_when_a_server_is_killed(run):
    from pipelines.tools.process_table import group_members

    server = run.serve()
    os.kill(server.process.pid, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while group_members(server.process.pid):
        assert time.monotonic() < deadline, group_members(server.process.pid)
        time.sleep(0.05)


@pytest.mark.long
def test_a_liar_is_named_and_what_it_has_drawn_is_drawn_again(run, commands, tmp_path):
    run.serve_falsely()
    run.serve("--max-codes-per-second", 300)
    here = codes_of(generate(commands, run, tmp_path, candidates=32, keep=32))
    unchecked = generate(commands, run, tmp_path, "--swarm", candidates=32, keep=32)
    theirs = generate(commands, run, tmp_path, "--swarm", "--audit", candidates=32, keep=32)
    assert codes_of(unchecked) != here and "Unchecked" in unchecked.stderr
    assert codes_of(theirs) == here
    assert "did not draw what was asked for" in theirs.stderr and "were drawn a second time" in theirs.stderr
    (drawn,) = [line for line in theirs.stderr.splitlines() if "candidates drawn by" in line]
    assert "32 candidates drawn by giver-" in drawn and "liar" not in drawn
    assert re.search(r"elsewhere, and it is avoided until \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC\.", theirs.stderr)
    later = generate(commands, run, tmp_path, "--swarm", candidates=32, keep=32)
    assert codes_of(later) == here, "who does not check avoids as well whom this machine has found"

    found = findings_of(commands, run, tmp_path)["complaints"]
    assert found["status"] == "unknown" and "about liar by 1, who say that" in found["seen"]


def findings_of(commands, run, folder):
    """Return what `run check` finds, by name."""
    done = commands.run("run", "check", run.name, "--json", folder=folder)
    return {found["name"]: found for found in json.loads(done.stdout)["results"]}


@pytest.mark.long
def test_a_complaint_is_shown_and_changes_nothing_for_others(run, commands, tmp_path):
    """Somebody who has audited nothing complains about the only server: it is asked by everybody as before."""
    server = run.serve().wait_for("serving")
    revision = digest_file(run.folder / "run" / "model.safetensors").sha256
    log, words = tmp_path / "complainer.log", [run.name, server["peer"], revision]
    liar = ForkedProcess(fork_server(run.environment), COMPLAINER, words, log, run.environment)
    assert liar.wait(120) == 0, log.read_text()
    found = findings_of(commands, run, tmp_path)
    assert "by 1, who say that 1000000 candidates are off" in found["complaints"]["seen"]
    assert "Claims are no proof" in found["complaints"]["cure"]
    assert found["servers"]["status"] == found["served checkpoint"]["status"] == "ok"
    theirs = generate(commands, run, tmp_path, "--swarm", "--audit")
    assert codes_of(theirs) == codes_of(generate(commands, run, tmp_path))
    assert "did not draw what was asked for" not in theirs.stderr


def test_a_run_without_weights_is_served_by_nobody(run, commands, tmp_path):
    settings = json.loads((run.folder / "run" / "training_run.json").read_text())
    run.api.create_repo("org/empty-run")
    run.api.upload_file(
        repo_id="org/empty-run",
        path_in_repo="training_run.json",
        path_or_fileobj=json.dumps(settings | dict(run_id="empty")).encode(),
    )
    line = the_line(commands.run("serve", "org/empty-run", is_worker=True))
    assert "org/empty-run has published no checkpoint yet" in line and "dalle-collab run assist org/empty-run" in line
    poor = commands.run("serve", run.name, "--memory", 0.000001, is_worker=True)
    line = poor.stderr.strip().splitlines()[-1]
    assert poor.returncode == 1 and "one picture of this run takes" in line and "--memory" in line


def test_a_machine_that_the_run_does_not_fit_reads_so_before_anything_is_downloaded(run, commands):
    run.change(required_versions={"python": ">=4"})
    try:
        for options in ((), ("--blocks", "0:1")):
            refused = commands.run("serve", run.name, "--host", LOOPBACK, *options, is_worker=True)
            line = refused.stderr.strip().splitlines()[-1]
            assert refused.returncode == 1 and "version of python: " in line and "expected >=4" in line
            assert f"dalle-collab doctor {run.name}" in line
    finally:
        run.change(required_versions={})


@pytest.mark.long
def test_a_finished_run_whose_entry_is_gone_is_served_from_a_new_one(hub, commands, tmp_path):
    """All trainers have left, and so has the entry that the run's settings name."""
    with drawn_run(hub, tmp_path, "orphaned-run") as run:
        dead = run.entry
        run.end_entry()
        line = the_line(commands.run("serve", run.name, "--host", LOOPBACK, is_worker=True))
        assert "No entry address of org/orphaned-run answers (1 tried: " in line
        first = run.assist()
        run.serve()
        here = codes_of(generate(commands, run, tmp_path))
        assert codes_of(generate(commands, run, tmp_path, "--swarm")) == here
        second = run.assist()  # beside the first one
        addresses = second.wait_for("entry")["addresses"]
        assert set(first.wait_for("entry")["addresses"]) < set(addresses) and not set(dead) & set(addresses)
        first.process.send_signal(signal.SIGTERM)
        assert first.process.wait(60) == 0, first.log.read_text()
        assert codes_of(generate(commands, run, tmp_path, "--swarm")) == here


@pytest.mark.long
def test_an_audit_checks_every_picture_and_names_who_draws_something_else(run, commands, tmp_path):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n".join(PROMPTS))
    liar = run.serve_falsely().wait_for("serving")["peer"]
    honest = f"giver-{len(run.servers)}"
    run.serve("--max-codes-per-second", 100)
    words = ("run", "audit", run.name, "--prompts", prompts, "--candidates", 16, "--output", "audit.json")
    done = commands.run(*words, folder=tmp_path, is_worker=True)
    assert done.returncode == 0 and f"{honest}: 16 candidates, all right" in done.stderr, done.stdout + done.stderr
    found = json.loads((tmp_path / "audit.json").read_text())
    assert [(one["username"], one["num_right"]) for one in found["servers"]] == [(honest, 16)]
    assert found["accused"] == [liar] and f"{liar} did not draw what was asked for" in done.stderr


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_an_entry_audits_servers_and_credits_who_draws_right(hub, commands, tmp_path):
    """Credit is in the run's repository, of the honest server alone. Its audits have the lowest priority: they wait."""
    with drawn_run(hub, tmp_path, "credited-run") as run:
        prompts = tmp_path / "prompts.txt"
        prompts.write_text("\n".join(PROMPTS))
        run.end_entry()
        state = ("--state-folder", tmp_path / "state")
        entry = run.assist("--audit-prompts", prompts, "--audit-minutes", 0.2, *state)
        run.serve_falsely()
        run.serve()
        right = entry.wait_for("audited", 1200)["right"]
        assert right == {"giver-2": 32}
        (name,) = [name for name in run.api.list_repo_files(run.name) if "served-" in name]
        held = read_served(Path(run.api.hf_hub_download(run.name, name, cache_dir=tmp_path / "cache")))
        assert {user for _, user in held} == {"giver-2"} and sum(held.values()) % 32 == 0
        assert "about liar by 1, who say that" in findings_of(commands, run, tmp_path)["complaints"]["seen"]


@pytest.mark.long
def test_while_the_hub_is_away_servers_serve_and_clients_draw(tmp_path):
    with LocalHub(tmp_path / "hub") as hub:
        hub.alice_token = hub.create_user("alice")
        hub.create_organization("org", members={"alice": "admin"})
        with drawn_run(hub, tmp_path, "lonely-server-run") as run:
            server = run.serve("--max-codes-per-second", 100, "--checkpoint-seconds", 0.5)
            log, progress = tmp_path / "asker.log", tmp_path / "progress"
            words = [run.name, "24", str(progress)]
            client = ForkedProcess(fork_server(run.environment), CLIENT, words, log, run.environment)
            wait_for(progress.exists, "progress", 120, process=client, log=log)
            hub.stop()
            line, said = "The newest checkpoint cannot be served", server.log
            wait_for(lambda: line in said.read_text(), line, 120, process=server.process, log=said)
            assert client.wait(120) == 0, log.read_text()
            assert len(printed_json(log)["codes"]) == 24
            assert server.process.poll() is None and "Traceback" not in server.log.read_text()
