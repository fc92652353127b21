"""Pausing and ending a peer from outside: from another thread, or with signals from another process."""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping

SECONDS_BETWEEN_LOOKS = 0.2


class PauseSwitch:
    """The last request, to pause or to resume. Safe to use from any thread and from signal handlers."""

    def __init__(self) -> None:
        self._going_on = threading.Event()
        self._going_on.set()
        self.on_rest: Callable[[bool], None] = lambda rests: None
        """Called when the pause starts (True) and when it ends (False)."""

        self.on_switch: Callable[[bool], None] = lambda is_on: None
        """Called at once with each request, to pause (True) or to resume (False)."""

    @property
    def is_on(self) -> bool:
        """Whether a pause was requested."""
        return not self._going_on.is_set()

    def pause(self) -> None:
        """Request a pause."""
        self._going_on.clear()
        self.on_switch(True)

    def resume(self) -> None:
        """Request to resume."""
        self._going_on.set()
        self.on_switch(False)

    def wait_until_off(self, stop: threading.Event) -> None:
        """Return when the pause is over, or when `stop` is set."""
        self.on_rest(True)
        while not stop.is_set() and not self._going_on.wait(SECONDS_BETWEEN_LOOKS):
            pass
        self.on_rest(False)


def take_break(seconds: float, stop: threading.Event, is_over: Callable[[], bool]) -> None:
    """Let the device rest for so long; less when `stop` is set or the break `is_over` for another reason."""
    end = time.monotonic() + seconds
    while (rest := end - time.monotonic()) > 0 and not is_over():
        if stop.wait(min(rest, SECONDS_BETWEEN_LOOKS)):
            return


@contextlib.contextmanager
def pause_on_signals(switch: PauseSwitch) -> Iterator[None]:
    """Let SIGUSR1 pause and SIGUSR2 resume within the block, where there are such; enter it in the main thread."""
    actions = {"SIGUSR1": switch.pause, "SIGUSR2": switch.resume}
    with _handled({getattr(signal, name): act for name, act in actions.items() if hasattr(signal, name)}):
        yield


@contextlib.contextmanager
def stop_on_signals(switch: PauseSwitch | None = None) -> Iterator[threading.Event]:
    """Yield an event that SIGINT and SIGTERM set; SIGUSR1 and SIGUSR2 pause and resume a peer.

    Enter it in the main thread after hivemind has forked: signals must kill its children.
    """
    stop = threading.Event()
    pausing = pause_on_signals(switch) if switch is not None else contextlib.nullcontext()
    with _handled({signal.SIGINT: stop.set, signal.SIGTERM: stop.set}), pausing:
        yield stop


@contextlib.contextmanager
def _handled(actions: Mapping[signal.Signals, Callable[[], None]]) -> Iterator[None]:
    """Replace some signal handlers within the block."""
    previous = {number: signal.signal(number, lambda *_, act=act: act()) for number, act in actions.items()}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
