"""The documentation's example: a plain PyTorch script of a few lines that starts a run, and joins it when run again."""

import contextlib
import os
import re
import signal
import subprocess
import sys

import psutil
import pytest
from support_files import ROOT

EXAMPLE = ROOT / "docs" / "examples" / "own_training_loop.py"
TRAINER = ROOT / "docs" / "examples" / "trainer_together.py"
MOST_LINES = 33

pytestmark = [pytest.mark.slow, pytest.mark.swarm]


@contextlib.contextmanager
def script(*arguments, output=subprocess.PIPE, errors=subprocess.DEVNULL, path=EXAMPLE, folder=None):
    """Run the example; it goes with all processes that it has started."""
    command = [sys.executable, "-W", "ignore", str(path), *arguments]
    streams = dict(stdout=output, stderr=errors, text=True, cwd=folder)
    with subprocess.Popen(command, start_new_session=True, **streams) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):  # it has ended by itself
                os.killpg(process.pid, signal.SIGKILL)


def short_script(folder, num_epochs):
    """Write the example with a short run; it dawdles while it is alone, learns fast, and prints what it leaves with."""
    text = EXAMPLE.read_text().replace("num_epochs=200", f"num_epochs={num_epochs}, num_warmup_epochs=2")
    text = text.replace("lr=0.01", "lr=0.1")
    step = "optimizer.step()"
    text = text.replace(step, f"{step}; time.sleep(0.1 if optimizer.num_peers < 2 else 0.0)")
    nested = "\n    try: collaborate(run, model).__enter__()\n    except RuntimeError as error: print(error)\n"
    text = text.replace("flush=True)\n", f"flush=True){nested}", 1)
    digest = "hashlib.sha256(b''.join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()"
    (path := folder / "short_loop.py").write_text(f"import hashlib, time\n{text}print('left with', {digest})\n")
    return path


@pytest.mark.timeout(400)
def test_a_plain_script_starts_a_run_joins_it_when_it_is_given_the_address_and_both_leave_with_the_same_model(tmp_path):
    """Another swarm within the first one's block, in which hivemind would wait for ever, is refused."""
    assert len(EXAMPLE.read_text().splitlines()) <= MOST_LINES
    path, joined = short_script(tmp_path, num_epochs=8), tmp_path / "joined.log"
    # The second prints into a file: who prints into a full pipe waits for its reader.
    with script(path=path) as first, joined.open("w") as output:
        address = first.stdout.readline().split()[-1]
        assert "/p2p/" in address
        with script(address, output=output, path=path) as second:
            *lines, last = first.stdout
            assert (first.wait(), second.wait(60)) == (0, 0)
    assert last.startswith("left with") and last == joined.read_text().splitlines(keepends=True)[-1]
    assert "2 peers" in joined.read_text() and any(", 2 peers" in line for line in lines)
    assert "This process trains in a swarm already." in joined.read_text()
    losses = [float(line.rpartition(" ")[2]) for line in lines if line.startswith("epoch ")]
    assert sum(losses[-200:]) < 0.8 * sum(losses[:200]), "the swarm learns"


@pytest.mark.long
def test_transformers_trainer_steps_with_the_swarm_until_the_run_is_over(tmp_path):
    with script(path=TRAINER, folder=tmp_path) as process:
        text = process.stdout.read()
        assert process.wait(60) == 0
    losses = [float(loss) for loss in re.findall(r"'loss': '?([0-9.]+)", text)]
    assert sum(losses[-4:]) < 0.9 * sum(losses[:4]), "the swarm learns"


def end_while_it_trains(errors, end):
    """Let the script train, end it by what is done to its family; return exit code, last words and what is left."""
    with errors.open("w") as file, script(errors=file) as process:
        for line in process.stdout:
            if line.startswith("epoch 1,"):
                break
        family = psutil.Process(process.pid).children(recursive=True)
        end(process, {child.name(): child for child in family}, family)
        process.stdout.read()
        code = process.wait(120)
        left = psutil.wait_procs(family, timeout=30)[1]
    return code, errors.read_text(), left


@pytest.mark.long
def test_ctrl_c_leaves_the_swarm_with_one_line_and_nothing_else(tmp_path):
    code, said, left = end_while_it_trains(
        tmp_path / "errors", lambda process, *_: os.killpg(process.pid, signal.SIGINT)
    )
    assert (code, left) == (130, [])
    assert "Stopped by Ctrl-C: leaving the swarm" in said and "Traceback" not in said and "Exception" not in said


@pytest.mark.long
def test_a_script_whose_p2pd_was_killed_says_so_and_ends_with_all_of_its_processes(tmp_path):
    code, said, left = end_while_it_trains(tmp_path / "errors", lambda process, names, family: names["p2pd"].kill())
    assert (code, left) == (1, [])
    assert "The process that connects this machine to the swarm (p2pd) has ended. This program cannot go on" in said


@pytest.mark.long
def test_hiveminds_processes_end_with_a_script_that_was_killed(tmp_path):
    code, _, left = end_while_it_trains(tmp_path / "errors", lambda process, *_: process.kill())
    assert (code, left) == (-signal.SIGKILL, [])
