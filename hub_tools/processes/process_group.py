"""A peer is many processes (hivemind's, p2pd): they run in one process group and end together, in every case.

The user's command stays in the terminal's foreground and forwards signals; the worker leads its own group. A guard in
that group watches both and kills the group when either of them dies, even by SIGKILL.
"""

import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from hub_tools.processes.child_process import ChildProcess, end_group

WORKER_VARIABLE = "DALLE_COLLAB_WORKER"
WHOLE_PROGRAM = "pipelines.command_line.main"
VOLUNTEERS_PROGRAM = "pipelines.command_line.volunteer"
"""Modules that are started as workers: all of `dalle-collab`, or only `join` and `doctor`."""

STARTED_VARIABLE = "DALLE_COLLAB_STARTED"
HAS_GROUPS = hasattr(os, "pidfd_open")
"""Whether a peer can be a guarded process group, as on Linux; elsewhere it is one process, which needs no guard."""

IMPORTED_AT = time.monotonic()
START_AGAIN_EXIT_CODE = 86
"""A worker that exits with this code is restarted with the same arguments: its run has started a new generation."""


def is_worker() -> bool:
    """Tell whether this process is the worker that `run_as_worker` started."""
    return os.environ.get(WORKER_VARIABLE) == "1"


def start_worker(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    *,
    program: str = WHOLE_PROGRAM,
    started: float | None = None,
    **options: object,
) -> ChildProcess:
    """Start a program with these arguments as a worker, the leader of a new process group; `options` are Popen's.

    The whole group ends when the caller's process does. `started` is when the user asked for it, in seconds of the
    boot clock; default: now. The caller that stops the worker must also `end` it, for what is left of its group.
    """
    seconds = time.clock_gettime(time.CLOCK_BOOTTIME) if started is None else started
    return ChildProcess(
        [sys.executable, "-m", program, *arguments],
        env={**environment, WORKER_VARIABLE: "1", STARTED_VARIABLE: str(seconds)},
        **options,
    )


def die_with_parent(number: int = signal.SIGTERM) -> None:
    """Have the kernel send this process a signal when the thread that started it dies; runs between fork and exec."""
    set_death_signal = 1
    ctypes.CDLL(None).prctl(set_death_signal, int(number))


def run_as_worker(arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> int:
    """Run the same program again as the leader of a process group; return its exit code when all of it has exited.

    The first Ctrl-C or SIGTERM asks the worker to stop, the second one kills the group. SIGUSR1 and SIGUSR2
    are forwarded.
    """
    worker = start_worker(arguments, {**os.environ, **(environment or {})}, started=_start_of(os.getpid()), stdin=None)
    requests = 0

    def pass_on(number: int, _frame: object) -> None:
        nonlocal requests
        requests += 1
        if requests > 1:
            end_group(worker.pid)
        worker.terminate()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, pass_on)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda number, _frame: worker.send_signal(number))
    try:
        code = worker.wait()
    finally:
        worker.end()
    if requests and code < 0:
        return 130
    if code < 0:
        print(words_for_a_death(-code), file=sys.stderr, flush=True)
    return code if code >= 0 else 128 - code


def words_for_a_death(number: int) -> str:
    """Return the line for people about a worker that a signal has ended, which could not say so itself."""
    causes: dict[int, str] = {
        signal.SIGKILL: "out of memory? See: sudo dmesg | tail. Close other programs, or choose a smaller "
        "--micro-batch-size",
        signal.SIGBUS: "is the shared memory full? See: df -h /dev/shm. In docker: --shm-size 8g",
    }
    cause = causes.get(number, "a crash of a library? Start it again, and report it if it comes back")
    return f"This peer was ended by {signal.Signals(number).name} ({cause})."


def seconds_since_start() -> float:
    """Return how long ago the user asked for this worker, by command or button."""
    if not HAS_GROUPS:
        return time.monotonic() - IMPORTED_AT
    started = os.environ.get(STARTED_VARIABLE)
    return time.clock_gettime(time.CLOCK_BOOTTIME) - (float(started) if started else _start_of(os.getpid()))


def _start_of(process: int) -> float:
    """Return when a process was started, in seconds of the boot clock."""
    # The fields follow the name, which is in parentheses and may contain anything; the 20th is the start time.
    fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace").rpartition(") ")[2].split()
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")


def guard_process_group(limit_seconds: float | None = None) -> int:
    """Kill this process's whole group as soon as this process or its parent dies; call it first in a worker.

    `limit_seconds`: so long after the call in any case. Returns the guard's process id: code that freezes the group on
    purpose must spare the guard.
    """
    watched = [os.pidfd_open(os.getpid()), os.pidfd_open(os.getppid())]
    if (guard := os.fork()) != 0:
        for descriptor in watched:
            os.close(descriptor)
        return guard
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    poll = select.poll()
    for descriptor in watched:
        poll.register(descriptor, select.POLLIN)
    if not poll.poll(None if limit_seconds is None else 1000 * limit_seconds):
        print(f"Its {limit_seconds:g} seconds were up.", file=sys.stderr, flush=True)
    # A worker that exits by itself has shut its children down; a grace period would only keep orphans longer.
    os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(1)  # not reached: the guard is in the group, too
