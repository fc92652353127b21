"""Volunteers' servers write what one machine would; real processes, an embedded Hub."""

import json
import re
import signal
from pathlib import Path

import httpx2
import pytest
from drawn_runs import drawn_run
from published_runs import the_line
from running_programs import wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.swarm,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("no_servers_stay"),
]

RUN = ("written-run", "text-generation")
PROMPTS = ("The old house", "Her brother went past")


def words(run, *options, prompts=PROMPTS[:1], candidates=8, tokens=40):
    own = ("--candidates", candidates, "--max-tokens", tokens, "--device", "cpu", "--json")
    return ["write", run.name, *prompts, *map(str, (*own, *options))]


def generate(commands, run, folder, *options, **values):
    return commands.run(*words(run, *options, **values), folder=folder, is_worker="--swarm" in options)


def tokens_of(text):
    """Return what was written: for each prompt the tokens by candidate's number."""
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return [{one["candidate"]: one["tokens"] for one in line["texts"]} for line in lines]


@pytest.mark.long
def test_two_servers_write_what_one_machine_writes(run, commands, tmp_path):
    for _ in range(2):
        run.serve()
    here = generate(commands, run, tmp_path, "--seed", 3, prompts=PROMPTS)
    theirs = generate(commands, run, tmp_path, "--seed", 3, "--swarm", prompts=PROMPTS)
    assert here.returncode == theirs.returncode == 0, here.stderr + theirs.stderr
    assert tokens_of(theirs.stdout) == tokens_of(here.stdout) and len(tokens_of(here.stdout)[1]) == 8
    assert "16 candidates drawn by giver-" in theirs.stderr and "Unchecked: " in theirs.stderr
    one = json.loads(theirs.stdout.splitlines()[0])["texts"][0]
    assert one["server"].startswith("giver-") and (one["epoch"], one["precision"]) == (3, "float32")
    plain = commands.run("write", run.name, PROMPTS[0], "--device", "cpu", "--max-tokens", 8, folder=tmp_path)
    assert plain.stdout.startswith("The old house")


@pytest.mark.long
@pytest.mark.parametrize("blow", ["SIGKILL", "SIGSTOP"])
def test_whoever_dies_or_stops_the_texts_are_the_same(run, commands, tmp_path, blow):
    victim, *_ = (run.serve("--max-codes-per-second", rate) for rate in (60, 60, 200))
    here = generate(commands, run, tmp_path, candidates=24)
    log = tmp_path / "swarm.log"
    with commands.started_worker(log, *words(run, "--swarm", candidates=24)) as asking:
        wait_for(lambda: log.exists() and "writing: " in log.read_text(), "writing", 120, process=asking, log=log)
        victim.signal(getattr(signal, blow))
        assert asking.wait(240) == 0, log.read_text()
    assert tokens_of(log.read_text()) == tokens_of(here.stdout), log.read_text()


@pytest.mark.long
def test_a_liar_is_named_and_what_it_has_written_is_written_again(run, commands, tmp_path):
    run.serve_falsely()
    run.serve("--max-codes-per-second", 600)
    here = generate(commands, run, tmp_path, candidates=32)
    unchecked = generate(commands, run, tmp_path, "--swarm", candidates=32)
    theirs = generate(commands, run, tmp_path, "--swarm", "--audit", candidates=32)
    assert tokens_of(unchecked.stdout) != tokens_of(here.stdout) == tokens_of(theirs.stdout)
    assert "did not draw what was asked for" in theirs.stderr and re.search(r"Checked: \d+ of 32", theirs.stderr)


def test_programs_on_the_machine_get_texts_and_a_clear_refusal_of_chats(run, commands, tmp_path):
    ready = run.serve("--http", 0).wait_for("http")
    headers = {"authorization": f"Bearer {Path(ready['key_file']).read_text().strip()}"}

    def ask(path, **body):
        return httpx2.post(f"{ready['address']}/v1/{path}", json=body, headers=headers, timeout=60)

    answer = ask("completions", prompt=PROMPTS[0], max_tokens=40, n=2, seed=3).json()
    here = generate(commands, run, tmp_path, "--seed", 3, "--top-k", 0, candidates=2)
    texts = [one["text"] for one in json.loads(here.stdout)["texts"]]
    assert [choice["text"] for choice in answer["choices"]] == texts
    chat = ask("chat/completions", messages=[dict(role="user", content="Hello")])
    assert chat.status_code == 400 and "has no chat template" in chat.json()["error"]["message"]
    pictures = ask("images/generations", prompt="a red star")
    assert pictures.status_code == 404 and "writes texts: POST /v1/completions" in pictures.json()["error"]["message"]


@pytest.mark.long
def test_what_makes_no_sense_is_one_line(run, commands, tmp_path, hub):
    line = the_line(commands.run("generate", run.name, PROMPTS[0], "--swarm", folder=tmp_path, is_worker=True))
    assert f"{run.name} writes texts. To have it do so: dalle-collab write {run.name} ..." in line
    assert "--max-tokens is 0; expected at least 1." in the_line(generate(commands, run, tmp_path, tokens=0))
    long = generate(commands, run, tmp_path, tokens=4000)
    assert "4000 more are wished for; this model reads 64 in all" in the_line(long)
    run.serve()
    long = generate(commands, run, tmp_path, "--swarm", tokens=4000)
    assert "4000 more are wished for; this model reads 64 in all" in long.stderr.strip().splitlines()[-1]
    poor = commands.run("serve", run.name, "--precision", "int8", is_worker=True)
    assert "int8 is for runs that draw pictures" in poor.stderr.strip().splitlines()[-1]
    ranking = commands.run("serve", run.name, "--ranking", is_worker=True)
    assert "makes texts, and CLIP ranks pictures. Leave out --ranking." in ranking.stderr.strip().splitlines()[-1]
    with drawn_run(hub, tmp_path, "masked-run", "fill-mask") as masked:
        served = commands.run("serve", masked.name, is_worker=True)
        assert "is a run of fill-mask: servers draw pictures or write texts" in served.stderr.strip().splitlines()[-1]
        asked = commands.run("write", masked.name, "a", "--swarm", is_worker=True)
        assert "is a run of fill-mask" in asked.stderr.strip().splitlines()[-1]
