"""Processes that end together: a peer says so and ends when one that it needs has died, and they end with their peer.

hivemind's calls wait without a limit for answers of its processes, and do not notice that the kernel has killed one.
"""

import contextlib
import logging
import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from typing import Protocol

logger = logging.getLogger(__name__)

SECONDS_BETWEEN_LOOKS = 1.0


class ChildDiedError(RuntimeError):
    """A process that this one needs has died; the message says which, how, and what to do."""


class StartingProcess(Protocol):
    """A process of hivemind's, which says when it is ready."""

    def wait_until_ready(self, timeout: float | None = None) -> None:
        """Return when it is ready; raise the error that it has met, or TimeoutError."""

    def is_alive(self) -> bool:
        """Tell whether it has not exited."""


class ChildWatch:
    """Ends this process within a second when one that it needs has died. Use as a context manager.

    All that it watches ends too, and what it still watches at the end of the block. Outside of the block, and in a
    fork of this process, it watches nothing.
    """

    def __init__(self, end: Callable[[str], None] | None = None) -> None:
        """`end` is called, from another thread, with the line that says what has died; default: `end_at_once`."""
        self._end = end or self._say_and_end
        self._lock = threading.Lock()
        self._names: dict[int, str] = {}
        """What is watched, by its process descriptor."""

        self._descriptors: dict[int | None, int] = {}
        self._poll = select.epoll()

    def __enter__(self) -> "ChildWatch":
        self._closing = os.eventfd(0, os.EFD_CLOEXEC)
        self._poll.register(self._closing, select.EPOLLIN)
        self._thread = threading.Thread(target=self._watch, name="children", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        os.eventfd_write(self._closing, 1)
        self._thread.join()
        self._kill()
        self.forget(*list(self._descriptors))
        self._poll.close()
        os.close(self._closing)

    def add(self, process: int, name: str) -> None:
        """Watch a process, by its id, from now on; `name` is the beginning of a sentence that says how it died.

        Raises:
            ChildDiedError: it has died already.
        """
        try:
            descriptor = os.pidfd_open(process)
        except ProcessLookupError:
            raise ChildDiedError(what_died(name, None)) from None
        with self._lock:
            self._names[descriptor], self._descriptors[process] = name, descriptor
            self._poll.register(descriptor, select.EPOLLIN)

    def forget(self, *processes: int | None) -> None:
        """Let these processes end: from now on they are not watched, if they were."""
        for process in processes:
            with self._lock:
                if process in self._descriptors:
                    self._drop(self._descriptors[process])

    def end_at_once(self, code: int) -> None:
        """Kill what is watched, and exit without any cleaning up: calls to what has died would never return."""
        self._kill()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        os._exit(code)

    def _kill(self) -> None:
        with self._lock:
            for descriptor in self._names:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)

    def _watch(self) -> None:
        while (descriptor := self._poll.poll()[0][0]) != self._closing:
            with self._lock:
                if descriptor not in self._names:
                    continue  # it was forgotten meanwhile
                line = what_died(self._names[descriptor], _end_of(descriptor))
                self._drop(descriptor)
            self._end(line)

    def _drop(self, descriptor: int) -> None:
        del self._names[descriptor]
        self._descriptors = {process: other for process, other in self._descriptors.items() if other != descriptor}
        self._poll.unregister(descriptor)
        os.close(descriptor)

    def _say_and_end(self, line: str) -> None:
        logger.critical("%s", line)
        self.end_at_once(1)


def wait_until_started(process: StartingProcess, name: str) -> None:
    """Return when a process of hivemind's is ready.

    Raises:
        ChildDiedError: it has died before.
    """
    while True:
        try:
            return process.wait_until_ready(SECONDS_BETWEEN_LOOKS)
        except TimeoutError as error:
            if str(error):
                raise  # its own: something has not answered it in time
            if process.is_alive():
                continue
        with contextlib.suppress(TimeoutError):  # its last word may just have come
            return process.wait_until_ready(SECONDS_BETWEEN_LOOKS)
        raise ChildDiedError(what_died(name, getattr(process, "exitcode", None)))


def what_died(name: str, code: int | None) -> str:
    """Return the line for people: which process has died and how, by its exit code, and what to do."""
    if code == -signal.SIGKILL:
        how = "was killed (out of memory?)"
    elif code is not None and code < 0:
        how = f"was ended by {signal.Signals(-code).name}" if -code in set(signal.Signals) else f"got signal {-code}"
    else:
        how = "has ended" if code is None else f"has ended with exit code {code}"
    return (
        f"{name} {how}. This program cannot go on without it and ends. See what the system says of it (sudo dmesg | "
        "tail), close other programs if memory is short, and start it again."
    )


def _end_of(descriptor: int) -> int | None:
    """Return how a child has ended, as `subprocess` writes it; None if it is no child, or was waited for already."""
    with contextlib.suppress(OSError):
        result = os.waitid(os.P_PIDFD, descriptor, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if result is not None:
            return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status
    return None


def end_with_parent(before: Callable[[], None] = lambda: None) -> None:
    """Kill this process as soon as its parent has died; call `before` first. Call it in a process that was forked."""

    def wait_and_end() -> None:
        with contextlib.suppress(ProcessLookupError):
            parent = os.pidfd_open(os.getppid())
            poll = select.poll()
            poll.register(parent, select.POLLIN)
            poll.poll()
        before()
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait_and_end, name="parent", daemon=True).start()
