"""`generate --blocks` makes what a machine with all layers makes; real commands, real servers, an embedded Hub."""

import json

import pytest
from drawn_runs import drawn_run
from huggingface_hub import constants
from published_runs import the_line

from pipelines.features.serving.server_blocklist import ServerBlocklist

pytestmark = [pytest.mark.slow, pytest.mark.swarm, pytest.mark.timeout(600)]


def generated(commands, run, folder, *options, command="generate"):
    """Return what was printed of the prompt, and what was said."""
    words = (command, run.name, "a small red star", "--device", "cpu", "--json", "--seed", 3, *options)
    done = commands.run(*words, folder=folder, is_worker="--blocks" in options)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout), done.stderr


@pytest.mark.long
def test_pictures_are_drawn_across_two_servers(hub, commands, tmp_path, monkeypatch):
    with drawn_run(hub, tmp_path, "lent-run") as run:
        run.serve("--blocks", "0:2")
        words = ("generate", run.name, "a star", "--blocks", "--patience", 2, "--device", "cpu")
        none = commands.run(*words, folder=tmp_path, is_worker=True)
        line = none.stderr.strip().splitlines()[-1]
        assert none.returncode == 1 and f"dalle-collab serve {run.name} --blocks 2:3" in line
        found_out = run.serve("--blocks", "2:3").wait_for("serving")["peer"]
        options = ("--candidates", 6, "--keep", 6, "--guidance-scale", 2)
        theirs, said = generated(commands, run, tmp_path, *options, "--blocks")
        assert theirs == generated(commands, run, tmp_path, *options)[0]
        assert "Layers 0:2 at " in said and ", 2:3 at " in said and "Unchecked: servers may have" in said
        for layers in ("0:2", "2:3"):
            run.serve("--blocks", layers)
        audited, said = generated(commands, run, tmp_path, *options, "--blocks", "--audit")
        assert audited == theirs and "Checked: 4 of 4 answers to prompts, each within 1e-03 of another" in said
        assert "Checked: 6 pictures, each computed again by servers that took no part." in said
        for name, value in (("HF_HOME", run.environment["HF_HOME"]), ("ENDPOINT", hub.endpoint)):
            monkeypatch.setattr(constants, name, value)
        ServerBlocklist.of_run(run.name).avoid(found_out)  # as another process of this machine
        again, said = generated(commands, run, tmp_path, *options, "--blocks")
        assert again == theirs and f"falsely: {found_out[-8:]} until " in said and f"at {found_out[-8:]}" not in said


def test_options_that_exclude_each_other_are_one_line(hub, commands, tmp_path):
    for options, said in (
        (("--swarm", "--blocks"), "Choose one of them."),
        (("--audit",), "needs --swarm or --blocks."),
        (("--blocks", "--weights", "int8"), "--weights is for drawing on this machine."),
    ):
        assert said in the_line(commands.run("generate", "org/none", "a star", *options, folder=tmp_path))
