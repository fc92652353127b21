"""Pausing by a key: the command in the terminal's foreground reads it and tells its worker, by signals.

The terminal then gives keys at once and does not show them. That has to end with the command, even by SIGKILL: a child
waits for that and puts the terminal back.
"""

import contextlib
import os
import select
import signal
import sys
import termios
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Attributes = list[Any]
"""Of a terminal, as `termios.tcgetattr` gives them."""

KEY = b"p"
SECONDS_BETWEEN_LOOKS = 0.3


@contextlib.contextmanager
def pausing_by_key() -> Iterator[None]:
    """Let a key pause and resume this process's worker during the block, where the standard input is a terminal.

    Enter it before this process has other threads. In the background nothing is read and the terminal stays as it is.
    """
    if not sys.stdin or not sys.stdin.isatty():
        yield
        return
    terminal = sys.stdin.fileno()
    kept = termios.tcgetattr(terminal)
    restorer, lifeline = _start_restorer(terminal, kept)
    _take_part_in_job_control(terminal, kept)
    ended = threading.Event()
    thread = threading.Thread(target=_listen, args=(terminal, kept, ended), name="pause-key", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        os.close(lifeline)
        os.waitpid(restorer, 0)


def wants_pause(worker: int) -> bool | None:
    """Return whether a worker has a handler for the signal that pauses it; None: it has ended."""
    try:
        text = Path(f"/proc/{worker}/status").read_text(encoding="utf-8")
    except OSError:
        return None
    caught = next(line for line in text.splitlines() if line.startswith("SigCgt:")).split()[1]
    return bool(int(caught, 16) >> (signal.SIGUSR1 - 1) & 1)


def _start_restorer(terminal: int, kept: Attributes) -> tuple[int, int]:
    """Fork what puts the terminal back when this process ends; return it, and what to close for it to do so now."""
    reading, lifeline = os.pipe()
    if (child := os.fork()) != 0:
        os.close(reading)
        return child, lifeline
    os.close(lifeline)
    # A shell may already have the foreground back: whoever ignores SIGTTOU may set its terminal all the same.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP, signal.SIGTTOU):
        signal.signal(number, signal.SIG_IGN)
    os.read(reading, 1)
    with contextlib.suppress(termios.error):
        termios.tcsetattr(terminal, termios.TCSADRAIN, kept)
    os._exit(0)


def _take_part_in_job_control(terminal: int, kept: Attributes) -> None:
    """Give the terminal back before Ctrl-Z stops this process, and never be stopped for touching it."""

    def stop(_number: int, _frame: object) -> None:
        with contextlib.suppress(termios.error):
            termios.tcsetattr(terminal, termios.TCSADRAIN, kept)
        os.kill(os.getpid(), signal.SIGSTOP)

    signal.signal(signal.SIGTSTP, stop)
    for number in (signal.SIGTTIN, signal.SIGTTOU):
        signal.signal(number, signal.SIG_IGN)


def _listen(terminal: int, kept: Attributes, ended: threading.Event) -> None:
    is_paused, at_once = False, _key_by_key(kept)
    while not ended.is_set():
        try:
            if os.tcgetpgrp(terminal) != os.getpgrp():
                ended.wait(SECONDS_BETWEEN_LOOKS)
                continue
            if termios.tcgetattr(terminal)[3] != at_once[3]:  # at first, and when the command is back from Ctrl-Z
                termios.tcsetattr(terminal, termios.TCSADRAIN, at_once)
            if not select.select([terminal], [], [], SECONDS_BETWEEN_LOOKS)[0]:
                continue
        except (OSError, termios.error):  # the terminal is gone
            return
        pressed = b""
        with contextlib.suppress(OSError):  # since it was looked at, the command has come into the background
            pressed = os.read(terminal, 1)
        worker = _worker()
        if pressed == KEY and worker is not None and wants_pause(worker):
            is_paused = not is_paused
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGUSR1 if is_paused else signal.SIGUSR2)


def _key_by_key(kept: Attributes) -> Attributes:
    """Return a terminal's settings with which keys come at once and are not shown; Ctrl-C stays what it is."""
    changed = list(kept)
    changed[3] &= ~(termios.ICANON | termios.ECHO)
    return changed


def _worker() -> int | None:
    """Return the child of this process that leads a group of its own; None: there is none at the moment."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            fields = path.read_text(encoding="utf-8", errors="replace").rpartition(") ")[2].split()
            process, parent, group = int(path.parent.name), int(fields[1]), int(fields[2])
            if parent == os.getpid() and process == group:
                return process
    return None
