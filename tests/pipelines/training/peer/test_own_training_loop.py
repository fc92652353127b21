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
def script(*arguments, output=subprocess.PIPE):
    """Run the example; it goes with all processes that it has started."""
    command = [sys.executable, "-W", "ignore", str(EXAMPLE), *arguments]
    streams = dict(stdout=output, stderr=subprocess.DEVNULL, text=True)
    with subprocess.Popen(command, start_new_session=True, **streams) as process:
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def losses_of_two(process, epoch, other):
    """Read what the script prints until it and the other know of two peers at this epoch or later; return all losses.

    The other prints into a file: who prints into a full pipe waits for its reader.
    """
    losses = []
    for line in process.stdout:
        found = re.fullmatch(r"epoch (\d+), (\d+) peers, loss ([0-9.]+)", line.strip())
        losses.append(float(found[3]))
        if int(found[1]) >= epoch and int(found[2]) == 2 and "2 peers" in other.read_text():
            return losses
    raise AssertionError(f"There were never two peers; losses: {losses[-3:]}")


def test_a_plain_script_starts_a_run_and_joins_it_when_it_is_given_the_address(tmp_path):
    assert len(EXAMPLE.read_text().splitlines()) <= MOST_LINES
    joined = tmp_path / "joined.log"
    with script() as first, joined.open("w") as output:
        address = first.stdout.readline().split()[-1]
        assert "/p2p/" in address
        with script(address, output=output):
            losses = losses_of_two(first, epoch=15, other=joined)
    # The learning rate rises for five epochs; by the fifteenth a third of the loss is gone, whenever the second joins.
    assert sum(losses[-200:]) < 0.8 * sum(losses[:200]), "the swarm learns"
