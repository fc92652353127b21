"""The documentation's example: a plain PyTorch script of a few lines that starts a run, and joins it when run again."""

import contextlib
import os
import re
import signal
import subprocess
import sys

import pytest
from support_files import ROOT

EXAMPLE = ROOT / "docs" / "examples" / "own_training_loop.py"
MOST_LINES = 33

pytestmark = [pytest.mark.slow, pytest.mark.swarm]


@contextlib.contextmanager
def script(*arguments):
    """Run the example; it goes with all processes that it has started."""
    command = [sys.executable, "-W", "ignore", str(EXAMPLE), *arguments]
    streams = dict(stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    with subprocess.Popen(command, start_new_session=True, **streams) as process:
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def losses_until(process, text, epoch=0):
    """Read what the script prints until a line has the text and is of this epoch or a later one; return all losses."""
    losses = []
    for line in process.stdout:
        losses += [float(loss) for loss in re.findall(r"loss ([0-9.]+)", line)]
        if text in line and int(re.findall(r"epoch (\d+)", line)[0]) >= epoch:
            return losses
    raise AssertionError(f"{text} was never printed; losses: {losses[-3:]}")


def test_a_plain_script_starts_a_run_and_joins_it_when_it_is_given_the_address():
    assert len(EXAMPLE.read_text().splitlines()) <= MOST_LINES
    with script() as first:
        address = first.stdout.readline().split()[-1]
        assert "/p2p/" in address
        with script(address) as second:
            losses = losses_until(first, "2 peers")
            losses_until(second, "2 peers")
            losses += losses_until(first, "2 peers", epoch=15)
    # The learning rate rises for five epochs; by the fifteenth a third of the loss is gone, whenever the second joins.
    assert sum(losses[-200:]) < 0.8 * sum(losses[:200]), "the swarm learns"
