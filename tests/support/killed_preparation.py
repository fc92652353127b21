"""`data prepare` as a process that is killed and started again, with the memory of all its processes."""

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

COMMAND = (sys.executable, "-m", "pipelines.command_line.main", "data", "prepare")
WATCH_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True)
class HeldMemory:
    """What processes hold at one moment."""

    resident: int
    """Bytes; those of libraries count in every process that uses them."""
    anonymous: int
    """Bytes of it that are no files."""

    @classmethod
    def of(cls, pids: set[int]) -> "HeldMemory":
        """Look at these processes now."""
        rollups = [_rollup(pid) for pid in pids if not _shares_its_parents_memory(pid)]
        resident, anonymous = (sum(rollup.get(kind, 0) for rollup in rollups) for kind in ("Rss", "Anonymous"))
        return cls(resident=resident, anonymous=anonymous)


def prepare_with_kills(arguments: Sequence[str], output: Path, num_kills: int, num_shards: int) -> list[HeldMemory]:
    """Run the command, kill it with SIGKILL when the shards that exist are spread evenly over the run, and start it
    again, to its end; return what its processes held together, every WATCH_SECONDS.

    RuntimeError if it fails, or if a process outlives it.
    """
    held: list[HeldMemory] = []
    for number in range(num_kills + 1):
        stop_at = (number + 1) * num_shards // (num_kills + 1) if number < num_kills else None
        with subprocess.Popen(
            [*COMMAND, *arguments, "--output", str(output)], stdout=subprocess.PIPE, text=True
        ) as process:
            children = _watch(process, output, stop_at, held)
            said, _ = process.communicate()
        if process.returncode not in ((0,) if stop_at is None else (0, -signal.SIGKILL)):
            raise RuntimeError(f"data prepare ended with {process.returncode}: {said}")
        _wait_for_end(children)
    return held


def _watch(process: subprocess.Popen, output: Path, stop_at: int | None, held: list[HeldMemory]) -> set[int]:
    children: set[int] = set()
    while process.poll() is None:
        tree = {process.pid, *_children(process.pid)}
        children |= tree - {process.pid}
        held.append(HeldMemory.of(tree))
        if stop_at is not None and len(list(output.glob("train-*.parquet"))) >= stop_at:
            process.send_signal(signal.SIGKILL)
            break
        time.sleep(WATCH_SECONDS)
    return children


def _wait_for_end(pids: set[int]) -> None:
    deadline = time.monotonic() + 90
    while any(_is_running(pid) for pid in pids):
        if time.monotonic() > deadline:
            raise RuntimeError("decoding processes outlive their parent")
        time.sleep(WATCH_SECONDS)


def _rollup(pid: int) -> dict[str, int]:
    """Kinds of memory and their bytes; nothing if the process has ended."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]
        return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
    return {}


def _shares_its_parents_memory(pid: int) -> bool:
    """Whether this process has been started and has not yet begun its own program: Linux shows its parent's memory."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        parent = process.parent()
        return parent is not None and process.cmdline() == parent.cmdline()
    return False


def _children(pid: int) -> set[int]:
    found = set()
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found |= {int(child) for child in (task / "children").read_text(encoding="ascii").split()}
    return found


def _is_running(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] not in "ZX"
    return False


def folder_digest(folder: Path) -> str:
    """One digest over the names and bytes of all files."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder)} {len(content)}{os.linesep}".encode() + content)
    return digest.hexdigest()
