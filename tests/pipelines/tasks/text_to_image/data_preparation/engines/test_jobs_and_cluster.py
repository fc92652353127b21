"""`data prepare` by several jobs and over Ray, with workers killed by SIGKILL: the bytes of one process that is not."""

import contextlib
import math
import os
import re
import signal
import subprocess
import threading
from pathlib import Path

import psutil
import pytest
from dirty_pictures import write_dirty_tars
from killed_preparation import COMMAND, folder_digest

from pipelines.tasks.text_to_image.data_preparation.engines.ray_engine import (
    MOST_ATTEMPTS,
    make_shard,
    share_of_cluster,
)
from pipelines.tasks.text_to_image.data_preparation.engines.spans import InputSpan
from pipelines.tasks.text_to_image.data_preparation.preparation_manifest import InputPosition, PreparationError
from pipelines.tasks.text_to_image.data_preparation.shard_writing import (
    Preparation,
    PreparationOptions,
    begin_preparation,
    prepare_shards,
)
from pipelines.tasks.text_to_image.data_preparation.sources.finding import find_sources

pytestmark = pytest.mark.slow

NUM_SHARDS = 12
OPTIONS = PreparationOptions(shard_size=100, num_workers=1)
WATCH_SECONDS = 0.02


@pytest.fixture(scope="module")
def arguments(codec, tmp_path_factory):
    """The pictures, and what else every job is told."""
    folder = tmp_path_factory.mktemp("input")
    write_dirty_tars(folder / "tars", 100 * NUM_SHARDS - 20, samples_per_tar=500, side=40, large=())
    codec.save_pretrained(folder / "codec")
    return [str(folder / "tars"), "--codec", str(folder / "codec"), "--shard-size", "100"]


@pytest.fixture(scope="module")
def whole(arguments, codec, tmp_path_factory):
    """The digest of the folder that one process makes."""
    output = tmp_path_factory.mktemp("whole")
    prepare_shards(find_sources(arguments[:1]), codec, output, OPTIONS)
    return folder_digest(output)


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    """Ray keeps a token in the home folder."""
    monkeypatch.setenv("HOME", str(tmp_path))


def start(*arguments: object) -> subprocess.Popen:
    return subprocess.Popen([*COMMAND, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def num_shards(output: Path) -> int:
    return len(list(output.glob("train-*.parquet")))


class Killer(threading.Thread):
    """Kills Ray's workers while they make shards, from the moment at which so many shards exist."""

    def __init__(self, process: subprocess.Popen, output: Path, *, from_shard: int, num_kills: float = math.inf):
        super().__init__(daemon=True)
        self.process, self.output = process, output
        self.num_kills, self.from_shard = num_kills, from_shard
        self.killed: set[int] = set()

    def run(self):
        while self.process.poll() is None and len(self.killed) < self.num_kills:
            if num_shards(self.output) >= self.from_shard:
                self._kill_one()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(WATCH_SECONDS)

    def _kill_one(self):
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(self.process.pid).children(recursive=True):
                if child.pid not in self.killed and child.cmdline()[:1] == [f"ray::{make_shard.__name__}"]:
                    child.kill()
                    self.killed.add(child.pid)
                    return


def test_two_jobs_of_which_one_is_killed_and_started_again_make_the_folder_of_one(arguments, whole, tmp_path):
    output = tmp_path / "out"
    common = [*arguments, "--output", output, "--workers", 1, "--part"]
    with start(*common, "1/2") as first, start(*common, "2/2") as second:
        while num_shards(output) < 3:
            assert first.poll() is None, first.communicate()
            os.sched_yield()
        second.send_signal(signal.SIGKILL)
        said, errors = first.communicate()
    assert first.returncode == 0, errors
    assert "Part 1/2: 6 shards finished." in said
    assert "shards of other parts, such as train-" in said and "(from sample " in said
    with start(*common, "2/2") as second:
        said, errors = second.communicate()
    assert second.returncode == 0, errors
    assert "Part 2/2: 6 shards finished." in said and f"{output}: 12 shards" in said
    assert folder_digest(output) == whole


@pytest.mark.long
def test_two_jobs_that_end_at_the_same_time_make_the_folder_of_one(arguments, whole, tmp_path):
    jobs = [start(*arguments, "--output", tmp_path / "out", "--workers", 1, "--part", f"{index}/2") for index in (1, 2)]
    for job in jobs:
        _, errors = job.communicate()
        assert job.returncode == 0, errors
    assert folder_digest(tmp_path / "out") == whole


@pytest.mark.long
def test_a_worker_of_ray_is_killed_and_the_folder_is_that_of_one_process(arguments, whole, tmp_path):
    output = tmp_path / "out"
    with start(*arguments, "--output", output, "--engine", "ray") as process:
        killer = Killer(process, output, from_shard=2, num_kills=1)
        killer.start()
        said, errors = process.communicate()
    assert process.returncode == 0, errors
    assert len(killer.killed) == 1 and f"{output}: 12 shards (0 from before)" in said
    assert folder_digest(output) == whole


@pytest.mark.long
def test_a_shard_of_which_every_worker_dies_is_named_and_the_next_run_goes_on(arguments, whole, tmp_path):
    output = tmp_path / "out"
    # One worker at a time, so that the others are finished when the last one's workers die.
    one_at_a_time = ["--engine", "ray", "--workers", len(os.sched_getaffinity(0))]
    with start(*arguments, "--output", output, *one_at_a_time) as process:
        killer = Killer(process, output, from_shard=NUM_SHARDS - 1)
        killer.start()
        _, errors = process.communicate()
    assert process.returncode == 1 and len(killer.killed) >= MOST_ATTEMPTS
    (line,) = [line for line in errors.splitlines() if line.startswith("dalle-collab: ")]
    assert f"Workers died {MOST_ATTEMPTS} times of train-" in line
    assert "train-00011.parquet (from sample 100 of 00002.tar): WorkerCrashedError" in line
    with start(*arguments, "--output", output) as process:
        said, errors = process.communicate()
    assert process.returncode == 0, errors
    num_kept = int(re.search(r"12 shards \((\d+) from before\)", said)[1])
    assert num_kept >= NUM_SHARDS - 2 and folder_digest(output) == whole


def test_a_shard_takes_what_a_machine_of_the_cluster_has():
    machines = [{"CPU": 4.0}, {"CPU": 16.0, "GPU": 2.0}, {"CPU": 64.0, "GPU": 4.0}]
    assert share_of_cluster(machines, is_on_gpu=False, num_workers=None) == {"num_cpus": 1, "num_gpus": 0}
    assert share_of_cluster(machines, is_on_gpu=False, num_workers=64) == {"num_cpus": 64, "num_gpus": 0}
    assert share_of_cluster(machines, is_on_gpu=True, num_workers=None) == {"num_cpus": 8, "num_gpus": 1}
    assert share_of_cluster(machines, is_on_gpu=True, num_workers=32) == {"num_cpus": 32, "num_gpus": 1}
    with pytest.raises(PreparationError, match=r"to take 65 cores, and the largest .* offers 64"):
        share_of_cluster(machines, is_on_gpu=False, num_workers=65)
    with pytest.raises(PreparationError, match="has a GPU"):
        share_of_cluster(machines[:1], is_on_gpu=True, num_workers=None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--engine", "spark"], "--engine is 'spark'; expected one of local, ray."),
        (["--engine", "ray", "--part", "1/2"], "--part is for jobs without an engine"),
        (["--engine", "ray", "--device", "cuda:1"], "is 'cuda:1'; expected one of cpu, cuda."),
        (["--engine", "ray:127.0.0.1:1"], "No Ray cluster answers at 127.0.0.1:1 "),
        (["--engine", "ray:127.0.0.1:door"], "No Ray cluster answers at 127.0.0.1:door "),
        (["--engine", "ray:nowhere"], "Ray at nowhere cannot be used: "),
        (["--part", "9/8"], "--part is '9/8'; expected I/N"),
    ],
)
def test_an_engine_that_cannot_be_used_is_one_line(arguments, tmp_path, options, message):
    with start(*arguments, "--output", tmp_path / "out", *options) as process:
        _, errors = process.communicate()
    (line,) = [line for line in errors.splitlines() if line.startswith("dalle-collab: ")]
    assert process.returncode == 1 and message in line
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").glob("train-*"))


def test_a_worker_that_does_not_see_output_or_sources_says_which(arguments, codec, tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(b"")
    preparation = Preparation(sources=find_sources([path]), codec=codec, output=tmp_path / "out", options=OPTIONS)
    span = InputSpan(number=0, begin=InputPosition(), end=InputPosition(source=1))
    with pytest.raises(PreparationError, match=r"does not see .*out/manifest.json. All machines have to see"):
        make_shard(preparation, span)
    begin_preparation(preparation)
    path.unlink()
    with pytest.raises(PreparationError, match=r"does not see .*a.tar. All machines have to see"):
        make_shard(preparation, span)
