"""Decoding processes: they may die, the sample at fault is found, and nobody else loses anything."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pipelines.tasks.text_to_image.data_preparation.filtering import DropReason, FilterPolicy
from pipelines.tasks.text_to_image.data_preparation.pictures.decoding import square_picture
from pipelines.tasks.text_to_image.data_preparation.pictures.decoding_pool import DecodingError, DecodingPool
from pipelines.tasks.text_to_image.data_preparation.pictures.picture_options import DecodingSettings, PictureOptions
from pipelines.tasks.text_to_image.data_preparation.sources.sample import CaptionImage

DYING = (str(Path(__file__).parents[5] / "support/dying_decoder.py"),)
SETTINGS = DecodingSettings(side=16, policy=FilterPolicy(), options=PictureOptions())


def samples(contents: list[bytes | None]) -> list[CaptionImage]:
    return [
        CaptionImage(key=f"{number:03d}", source="a.tar", caption="a picture", image_bytes=content)
        for number, content in enumerate(contents)
    ]


def outcomes(pool: DecodingPool, contents: list[bytes | None]) -> list[object]:
    """Reasons, and "ok" for pictures that are what this process decodes."""
    found = []
    for sample, decoded in pool.decoded(samples(contents)):
        if isinstance(decoded, DropReason):
            found.append(decoded)
        else:
            expected = square_picture(sample.image_bytes, 16, FilterPolicy(), PictureOptions())
            found.append("ok" if decoded == expected else "another")
    return found


@pytest.mark.parametrize("num_workers", [1, 3])
def test_pictures_come_in_order_and_as_this_process_decodes_them(make_png, num_workers):
    contents = [make_png(number) for number in range(60)]
    contents[7], contents[20], contents[40] = b"<html>", None, make_png(1, (64, 16))
    with DecodingPool(SETTINGS, num_workers) as pool:
        found = list(pool.decoded(samples(contents)))
        assert outcomes(pool, contents) == [
            {7: DropReason.CORRUPT_IMAGE, 20: DropReason.MISSING_IMAGE, 40: DropReason.EXTREME_ASPECT_RATIO}.get(
                n, "ok"
            )
            for n in range(60)
        ]
    assert [sample.key for sample, _ in found] == [f"{number:03d}" for number in range(60)]


@pytest.mark.parametrize("num_workers", [1, 3])
@pytest.mark.parametrize("death", [b"KILL", b"SEGFAULT", b"BABBLE"])
def test_a_picture_that_kills_its_decoder_twice_is_dropped_and_no_other(make_png, num_workers, death):
    contents = [make_png(number) for number in range(20)]
    contents[3] = contents[4] = contents[19] = death
    with DecodingPool(SETTINGS, num_workers, DYING) as pool:
        found = outcomes(pool, contents)
    assert found == [DropReason.DECODING_FAILED if n in (3, 4, 19) else "ok" for n in range(20)]


def test_a_picture_whose_decoder_dies_once_is_kept(make_png, tmp_path):
    contents = [make_png(number) for number in range(12)]
    contents[5] += f"ONCE {tmp_path}/died ".encode()
    with DecodingPool(SETTINGS, 2, DYING) as pool:
        assert outcomes(pool, contents) == ["ok"] * 12
    assert (tmp_path / "died").exists()


def test_a_picture_that_died_among_others_and_alone_is_tried_once_more_in_a_fresh_process(make_png, tmp_path):
    contents = [make_png(number) for number in range(12)]
    contents[5] += f"ONCE {tmp_path}/among ONCE {tmp_path}/alone ".encode()
    with DecodingPool(SETTINGS, 2, DYING) as pool:
        assert outcomes(pool, contents) == ["ok"] * 12
    assert (tmp_path / "among").exists() and (tmp_path / "alone").exists()


def test_a_picture_that_takes_too_long_is_dropped(zeros_png, make_png):
    settings = DecodingSettings(side=16, policy=FilterPolicy(), options=PictureOptions(cpu_seconds=0.05))
    with DecodingPool(settings, 1) as pool:
        assert outcomes(pool, [zeros_png(8000, 8000), make_png(0)]) == [DropReason.DECODING_FAILED, "ok"]


def test_a_picture_for_which_there_is_no_memory_is_dropped_and_others_go_on(make_png, stored):
    with DecodingPool(SETTINGS, 1) as pool:
        assert outcomes(pool, [make_png(0)]) == ["ok"]
        (process,) = pool._started
        limit, _ = resource.prlimit(process.process.pid, resource.RLIMIT_AS)
        tight = int(Path(f"/proc/{process.process.pid}/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.prlimit(process.process.pid, resource.RLIMIT_AS, (tight + 2**20, limit))
        large = stored(Image.new("RGB", (3000, 3000)), "PNG")
        assert outcomes(pool, [large, make_png(1)]) == [DropReason.DECODING_FAILED, "ok"]


def test_a_thumbnail_comes_from_a_process_too(make_png):
    with DecodingPool(SETTINGS, 1, DYING) as pool:
        assert pool.thumbnail(make_png(0)).startswith(b"\xff\xd8")
        assert pool.thumbnail(b"<html>") is None and pool.thumbnail(b"KILL") is None


def test_processes_that_do_not_start_are_an_error_and_no_reason(make_png):
    with (
        DecodingPool(SETTINGS, 2, ("-c", "raise SystemExit(3)")) as pool,
        pytest.raises(DecodingError, match=r"does not start \(exit status 3"),
    ):
        list(pool.decoded(samples([make_png(0)] * 3)))


def test_a_decoder_is_light():
    code = (
        "import json, sys, pipelines.tasks.text_to_image.data_preparation.pictures.decoding_process\n"
        "heavy = {'torch', 'numpy', 'pyarrow', 'pandas', 'datasets', 'aiohttp', 'httpx'}\n"
        "print(json.dumps(sorted(heavy & set(sys.modules))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout) == []


def test_leaving_the_pool_ends_its_processes_even_in_the_middle_of_a_picture(make_png, zeros_png):
    started = time.monotonic()
    with DecodingPool(SETTINGS, 2) as pool:
        iterator = pool.decoded(samples([make_png(0)] + [zeros_png(8000, 8000)] * 8))
        next(iterator)
        pids = [process.process.pid for process in pool._started]
    assert pids and not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert time.monotonic() - started < 60


def test_a_killed_parent_leaves_no_orphans(tmp_path, make_png):
    (tmp_path / "a.png").write_bytes(make_png(0))
    code = f"""
import sys, time
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_decoding_pool import SETTINGS, DecodingPool, samples
pool = DecodingPool(SETTINGS, 1)
list(pool.decoded(samples([Path({str(tmp_path / "a.png")!r}).read_bytes()])))
print(pool._started[0].process.pid, flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 60
    while _is_running(pid) and time.monotonic() < deadline:
        os.sched_yield()
    assert not _is_running(pid)


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_memory_stays_bounded_and_is_given_back(stored):
    large = stored(Image.fromarray(np.zeros((6000, 6000, 3), np.uint8)), "PNG")
    with DecodingPool(SETTINGS, 1) as pool:
        assert outcomes(pool, [large] * 4) == ["ok"] * 4
        status = Path(f"/proc/{pool._started[0].process.pid}/status").read_text()
    sizes = {line.split(":")[0]: int(line.split()[1]) for line in status.splitlines() if line.startswith("Vm")}
    assert sizes["VmHWM"] < (6000 * 6000 * 4 + 80 * 2**20) / 1024 and sizes["VmRSS"] < 70 * 1024
