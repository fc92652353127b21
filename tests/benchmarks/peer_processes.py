"""Peers of a benchmark as processes: all end well, or the benchmark says what the one that did not has printed."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

NUM_LAST_LINES = 15


def run_peers(
    program: str,
    arguments: Sequence[Sequence[str]],
    folder: Path,
    *,
    seconds: float,
    on_start: Callable[[int, int], None] = lambda number, pid: None,
    prefixes: Sequence[Sequence[str]] | None = None,
) -> None:
    """Run a program once per list of arguments, side by side, until all have ended; what they print is in `folder`.

    `prefixes`: what precedes each one's command.

    Raises:
        RuntimeError: one has failed; the message ends with its last lines.
        subprocess.TimeoutExpired: one has not ended in time.
    """
    peers: list[subprocess.Popen] = []
    logs = [folder / f"peer-{number}.log" for number in range(len(arguments))]
    try:
        for number, own in enumerate(arguments):
            with logs[number].open("wb") as log:
                before = prefixes[number] if prefixes is not None else ()
                command = [*before, sys.executable, "-W", "ignore", program, *own]
                peers.append(subprocess.Popen(command, start_new_session=True, stderr=log))
            on_start(number, peers[-1].pid)
        for peer, log in zip(peers, logs, strict=True):
            if peer.wait(timeout=seconds) != 0:
                last = log.read_text(encoding="utf-8", errors="replace").splitlines()[-NUM_LAST_LINES:]
                raise RuntimeError(f"{log.stem} ended with exit code {peer.returncode}:\n" + "\n".join(last))
    finally:
        for peer in peers:
            if peer.poll() is None:
                os.killpg(peer.pid, signal.SIGKILL)
