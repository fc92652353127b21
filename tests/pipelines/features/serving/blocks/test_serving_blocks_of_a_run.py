"""A finished run's layers are served by volunteers and used across them; real commands, an embedded Hub."""

import json
import os
import signal

import pytest
import torch
from forked_processes import ForkedProcess, fork_server
from published_runs import family_of, still_alive, the_line
from support_files import SUPPORT
from tiny_run_parts import tiny_model

pytestmark = [
    pytest.mark.slow,
    pytest.mark.swarm,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("no_servers_stay"),
]

RUN = ("blocks-run",)
TEXT = [[1, 2, 3, 4, 5, 6, 1, 1]]


def drawn_across(run, folder):
    """Draw in a process of its own; return what it found."""
    log, settings, output = folder / "client.json", folder / "settings.json", folder / "client.log"
    settings.write_text(json.dumps(dict(run=run.name, text=TEXT, log=str(log))), encoding="utf-8")
    program = str(SUPPORT / "block_client.py")
    process = ForkedProcess(fork_server(run.environment), program, [str(settings)], output, run.environment)
    assert process.wait(240) == 0, output.read_text()
    return json.loads(log.read_text())


def drawn_here(run):
    config = json.loads((run.folder / "run" / "config.json").read_text())
    model = tiny_model(config["text_vocab_size"])
    return model.generate_image_codes(torch.tensor(TEXT), num_candidates=2, seed=3, window=1).tolist()


@pytest.mark.long
def test_two_commands_serve_all_layers_and_their_chain_draws_what_one_machine_draws(run, tmp_path):
    first = run.serve("--blocks", "0:2")
    assert "Nobody serves layers 2:3: dalle-collab serve" in first.log.read_text()
    second = run.serve("--blocks", "auto", "--checkpoint-seconds", 1)
    assert second.wait_for("serving")["layers"] in ([0, 3], [2, 3])
    found = drawn_across(run, tmp_path)
    assert found["codes"] == drawn_here(run)


@pytest.mark.long
def test_a_newer_checkpoint_is_served_as_it_is_published(run, tmp_path):
    server = run.serve("--blocks", "0:3", "--checkpoint-seconds", 1)
    config = json.loads((run.folder / "run" / "config.json").read_text())
    newer = tiny_model(config["text_vocab_size"], seed=5)
    run.publish(newer, epoch=4)
    assert server.wait_for("serves")["epoch"] == 4
    expected = newer.generate_image_codes(torch.tensor(TEXT), num_candidates=2, seed=3, window=1).tolist()
    assert drawn_across(run, tmp_path)["codes"] == expected


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--blocks", "2:9"), "has the layers 0:3, not 2:9. Cure: --blocks 0:3, or a part of them"),
        (("--blocks", "3-4"), "The blocks are '3-4', expected START:END such as 0:16, or auto"),
        (("--blocks", "0:2", "--max-codes-per-second", "9"), "have no effect on --blocks"),
        (("--blocks", "0:2", "--precision", "bfloat16"), "expected float32 or int8 to serve layers"),
    ],
)
def test_mistakes_are_one_line(run, commands, options, words):
    done = commands.run("serve", run.name, *options, is_worker=True)
    assert words in the_line(done)


def test_a_server_that_is_asked_to_leave_leaves(run):
    server = run.serve("--blocks", "0:3")
    family = family_of(server.process.pid)
    os.kill(server.process.pid, signal.SIGTERM)
    assert server.process.wait(120) == 0, server.log.read_text()
    assert "Left org/blocks-run" in server.log.read_text()
    assert still_alive(family, 60) == []
