"""`dalle-collab start` as an organiser calls it, killed in the middle and called again, with a volunteer who joins."""

import json
import os
import re
import shlex
import subprocess
import sys
import time

import pytest
from PIL import Image, ImageDraw

from pipelines.tools.demo.running.programs import VARIABLE, mark_of_all
from pipelines.tools.process_table import processes_with_variable

COLOURS = ("red", "green", "blue", "orange", "purple", "black")


def write_pictures(folder, number):
    folder.mkdir()
    for one in range(number):
        picture, colour, shape = Image.new("RGB", (64, 64), "white"), COLOURS[one % 6], one // 6 % 2
        place = (8 + one % 5, 8 + one % 7, 40 + one % 11, 40 + one % 13)
        (ImageDraw.Draw(picture).ellipse if shape else ImageDraw.Draw(picture).rectangle)(place, fill=colour)
        picture.save(folder / f"{colour} {'circle' if shape else 'box'} {one}.png")


class Start:
    """A call whose output goes to a file."""

    def __init__(self, folder, log):
        self.log = log
        words = ["start", "pictures", "--name", "my-org/shapes", "--caption-from", "name", "--hours", "0.1"]
        with log.open("w") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pipelines.command_line.main", *words], cwd=folder, stdout=file, stderr=file
            )

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(120)

    def wait_for(self, pattern):
        """Return what the pattern finds in the output, once it does."""
        while (found := re.search(pattern, self.log.read_text())) is None:
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.2)
        return found


@pytest.mark.slow
@pytest.mark.swarm
@pytest.mark.long
@pytest.mark.timeout(2400)
def test_a_folder_becomes_a_run_that_a_volunteer_joins_although_the_organiser_was_killed(tmp_path):
    write_pictures(tmp_path / "pictures", 240)
    with Start(tmp_path, tmp_path / "first.log") as first:
        first.wait_for(r"epoch [1-9]\d*/")
        first.process.kill()
    with Start(tmp_path, tmp_path / "second.log") as second:
        check_that_it_goes_on(second, tmp_path)


def check_that_it_goes_on(second, tmp_path):
    command = shlex.split(second.wait_for(r"Others join in another terminal: (.*)")[1])
    second.wait_for(r"epoch [1-9]\d*/")
    settings = [word.split("=", 1) for word in command[: command.index("dalle-collab")]]
    environment = dict(os.environ, HF_HOME=str(tmp_path / "home")) | dict(settings)
    words = [*command[len(settings) + 1 :], "--host", "/ip4/127.0.0.1/tcp/0", "--max-hours", "0.01"]
    joined = subprocess.run(
        [sys.executable, "-m", "pipelines.command_line.main", *words],
        env=environment, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert joined.returncode == 0 and "Left my-org/shapes: contributed" in joined.stderr, joined

    assert second.process.wait(1800) == 0, second.log.read_text()
    text = second.log.read_text()
    assert "kept Training a codec for these pictures" in text and text.count("$ dalle-collab codec train") == 0
    output = tmp_path / "shapes-run"
    assert json.loads((output / "summary.json").read_text())["kept"] == 240
    with Image.open(output / "grid.png") as grid:
        assert grid.height > 64
    assert not processes_with_variable(VARIABLE, mark_of_all(output), or_longer=True)
