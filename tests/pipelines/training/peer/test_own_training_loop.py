"""The documentation's example: a plain PyTorch script of a few lines that starts a run, and joins it when run again."""

import re
import subprocess
import sys

import pytest
from support_files import ROOT

EXAMPLE = ROOT / "docs" / "examples" / "own_training_loop.py"
MOST_LINES = 30

pytestmark = [pytest.mark.slow, pytest.mark.swarm]


def test_a_plain_script_starts_a_run_and_joins_it_when_it_is_given_the_address():
    assert len(EXAMPLE.read_text().splitlines()) <= MOST_LINES
    command = [sys.executable, "-W", "ignore", str(EXAMPLE)]
    options = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with subprocess.Popen(command, **options) as first:
        address = first.stdout.readline().split()[-1]
        assert "/p2p/" in address
        with subprocess.Popen([*command, address], **options) as second:
            outputs = [process.communicate(timeout=240)[0] for process in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0], outputs
    assert all("2 peers" in output for output in outputs), outputs
    losses = [float(loss) for loss in re.findall(r"loss ([0-9.]+)", outputs[0])]
    assert sum(losses[-10:]) < sum(losses[:10]) / 2, "the swarm learns"
