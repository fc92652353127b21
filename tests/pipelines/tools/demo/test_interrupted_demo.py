"""The short demo as users call it: killed in the middle, called again, a trainer freezes in the last epoch, pages."""

import json
import signal
import subprocess
import sys
import time

import httpx2
import psutil
import pytest

from hub_tools.processes.event_files import EventReader
from pipelines.tools.demo.running.programs import VARIABLE, mark_of_all
from pipelines.tools.demo.running_spaces import read_addresses
from pipelines.tools.demo.scenes_demo import SHORT_SETTINGS
from pipelines.tools.process_table import processes_with_variable, signal_processes

MOST_SECONDS_WITHOUT_A_LINE = 30.0


class Demo:
    """A call of the demo, whose output goes to a file."""

    def __init__(self, output, log):
        self.output, self.log, self.epoch, self.longest_silence = output, log, -1, 0.0
        self._reader = EventReader(output / "work" / "auxiliary.jsonl")
        arguments = ["demo", "run", "--short", "--output", str(output)]
        with log.open("w") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pipelines.command_line.main", *arguments], stdout=file, stderr=file
            )
        self._heard, self._length = time.monotonic(), 0

    def look(self):
        """Note how far it is, and for how long it has printed nothing."""
        self.epoch = max([self.epoch, *(look["swarm_epoch"] for look in self._reader.new())])
        if (length := self.log.stat().st_size) != self._length:
            self._heard, self._length = time.monotonic(), length
        self.longest_silence = max(self.longest_silence, time.monotonic() - self._heard)
        time.sleep(0.05)

    def wait_for_epoch(self, epoch):
        while self.epoch < epoch:
            assert self.process.poll() is None, self.log.read_text()
            self.look()


def marked(output, name=""):
    return processes_with_variable(VARIABLE, f"{mark_of_all(output)}{name}", or_longer=True)


@pytest.mark.slow
@pytest.mark.swarm
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_demo_that_was_killed_goes_on_and_draws_although_a_trainer_freezes_in_the_last_epoch(tmp_path):
    output = tmp_path / "demo-output"
    first = Demo(output, tmp_path / "first.log")
    first.wait_for_epoch(SHORT_SETTINGS["checkpoint_interval_epochs"] + 1)
    first.process.kill()
    first.process.wait()
    second = Demo(output, tmp_path / "second.log")
    second.wait_for_epoch(SHORT_SETTINGS["num_epochs"] - 1)
    signal_processes(marked(output, "trainer-1-"), signal.SIGSTOP)
    while second.process.poll() is None:
        second.look()
    told = second.log.read_text()
    assert second.process.returncode == 0, told
    assert "Traceback" not in told and second.longest_silence <= MOST_SECONDS_WITHOUT_A_LINE
    assert "kept Filtering the pictures" in told and "kept Training the tokenizer" in told
    summary = json.loads((output / "summary.json").read_text())
    assert summary["epochs"] == SHORT_SETTINGS["num_epochs"] and (output / "grid.png").exists()
    assert marked(output) == []
    check_pages(output, tmp_path / "pages.log")


def check_pages(output, log):
    """`demo spaces` opens the pages that the summary links, until Ctrl-C."""
    addresses = read_addresses(output)
    summary = (output / "summary.html").read_text()
    assert len(addresses) == 5 and all(f'href="{address}"' in summary for address in addresses.values())
    command = [sys.executable, "-m", "pipelines.command_line.main", "demo", "spaces", "--output", str(output)]
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
    try:
        deadline = time.monotonic() + 180
        while not all(map(answers, addresses.values())):
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        family = psutil.Process(process.pid).children(recursive=True)
        run = httpx2.get(f"{addresses['landing_page']}/settings.json").json()["run"]
        assert httpx2.get(f"{addresses['training_dashboard']}/api/run").json()["run"] == run
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0, log.read_text()
        assert psutil.wait_procs(family, timeout=10)[1] == []
        assert "Traceback" not in log.read_text()
    finally:
        process.kill()


def answers(address):
    try:
        return httpx2.get(address, timeout=5).status_code == 200
    except httpx2.HTTPError:
        return False
