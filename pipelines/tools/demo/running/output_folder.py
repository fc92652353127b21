"""The folder of a demo: one demo at a time, what is there of an interrupted one, and whether it is of the same demo."""

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from hub_tools.atomic_files import write_text_whole
from hub_tools.counted import counted
from pipelines.core.run.versions import package_version
from pipelines.tools.demo.running.finished_work import remove
from pipelines.tools.demo.running.programs import end_leftovers, nothing_left
from pipelines.tools.demo.running.progress_lines import ProgressLines

MARKER_FILE = ".dalle-collab-demo"
LOCK_FILE = ".dalle-collab-demo.lock"
SECONDS_FOR_LEFTOVERS = 15.0
GIGABYTES_NEEDED = 0.5
"""What pictures, codes, pages and checkpoints of a demo take, and the copies that are being made."""


@contextlib.contextmanager
def demo_folder(
    folder: Path, ingredients: Mapping[str, object], lines: ProgressLines, *, keeps_others: bool = False
) -> Iterator[None]:
    """Hold a folder for a demo of these ingredients; files of a demo of others are removed.

    `keeps_others`: a folder with others is refused instead, and another version of the package goes on.

    Raises:
        ValueError: the folder has files that no demo wrote, another demo runs in it, or it cannot be written to.
    """
    refuse_strangers(folder)
    with sole_demo(folder, lines):
        _check_space(folder)
        own = dict(keeps_others=True) if keeps_others else dict(version=package_version())
        ingredients = {**ingredients, **own}
        _keep_or_empty(folder, ingredients, lines, keeps_others=keeps_others)
        yield


@contextlib.contextmanager
def sole_demo(folder: Path, lines: ProgressLines) -> Iterator[None]:
    """Hold a folder for one demo; what an interrupted one has left running is ended, and nothing is left at the end.

    Raises:
        ValueError: another demo runs in it, or it cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / LOCK_FILE).open("a+", encoding="utf-8")
    except OSError as error:
        raise ValueError(
            f"{folder} cannot be written to ({error.strerror}). Choose another folder: --output NAME"
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.seek(0)
            raise ValueError(
                f"{folder} is in use by a demo that runs as process {lock.read() or '?'}. Wait until it has ended, "
                "stop it, or choose another folder: --output NAME"
            ) from error
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        with lines.doing("Ending what an interrupted demo has left running"):
            num_left = end_leftovers(folder, SECONDS_FOR_LEFTOVERS)
        if num_left:
            lines.say(f"Ended what an interrupted demo had left running ({counted(num_left, 'process', 'processes')}).")
        with nothing_left(folder):
            yield


def refuse_strangers(folder: Path) -> None:
    """Raise ValueError if the folder is none, or has files and no demo wrote them."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file, expected a folder to write to: --output NAME")
    if folder.is_dir() and not (folder / MARKER_FILE).exists() and _content(folder):
        raise ValueError(f"{folder} has files that are not a demo's. Choose another folder: --output NAME")


def what_differs(before: Mapping[str, object], now: Mapping[str, object]) -> str:
    """Say which ingredients of two demos differ; empty if none does."""
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    return ", ".join(f"{name} was {_short(before.get(name))} and is {_short(now.get(name))}" for name in names)


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _content(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.name != LOCK_FILE]


def _keep_or_empty(
    folder: Path, ingredients: Mapping[str, object], lines: ProgressLines, *, keeps_others: bool
) -> None:
    marker = folder / MARKER_FILE
    text = json.dumps(ingredients, sort_keys=True)
    if marker.exists():
        try:
            before = json.loads(marker.read_text(encoding="utf-8"))
        except ValueError:
            before = None
        now = json.loads(text)
        if keeps_others and isinstance(before, dict):  # an older version knew fewer ingredients
            common = before.keys() & now.keys()
            before, now = ({name: values[name] for name in common} for values in (before, now))
        if isinstance(before, dict) and not (differences := what_differs(before, now)):
            lines.say(f"Going on with what is in {folder}; to begin anew, delete it.")
            return
        if keeps_others or (isinstance(before, dict) and before.get("keeps_others")):
            seen = differences if isinstance(before, dict) else f"{marker} cannot be read"
            raise ValueError(
                f"{folder} has a run of other pictures or options ({seen}). Give the same ones to go on with it, or "
                "choose another folder: --output NAME"
            )
        lines.say(
            f"{folder} has a demo of {'other settings' if isinstance(before, dict) else 'an older version'}"
            f"{f' ({differences})' if isinstance(before, dict) else ''}: beginning anew."
        )
        for path in _content(folder):
            if path != marker:
                remove(path)
    (folder / "work").mkdir(exist_ok=True)
    write_text_whole(marker, text + "\n")


def _check_space(folder: Path) -> None:
    gigabytes = shutil.disk_usage(folder).free / 1e9
    if gigabytes < GIGABYTES_NEEDED:
        raise ValueError(
            f"The disk of {folder} has {gigabytes:.1f} GB free, a demo needs {GIGABYTES_NEEDED:g}. Free some, or "
            "choose a folder on another disk: --output NAME"
        )
