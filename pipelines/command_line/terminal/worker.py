"""Running a peer's command in its own process group, with its log on the terminal."""

import contextlib
import logging
import os
import signal
import sys
import threading

import typer
from rich.console import Console
from rich.highlighter import NullHighlighter
from rich.logging import RichHandler

from hub_tools.one_line_errors import TRACEBACK_VARIABLE
from hub_tools.printing.consoles import open_console
from hub_tools.processes.process_group import (
    HAS_GROUPS,
    START_AGAIN_EXIT_CODE,
    guard_process_group,
    is_worker,
    run_as_worker,
)
from pipelines.command_line.terminal.consoles import FoldsRepetitions, LogLines, OneLineFormatter
from pipelines.command_line.terminal.peer_names import PeerNames

logger = logging.getLogger(__name__)


def become_worker(names: PeerNames | None = None, *, pauses: bool = False) -> Console:
    """Continue only in a separate process group; in the process that the user started, wait for that group.

    Returns the terminal, to which the log goes from now on, with these `names` of peers. A worker that `pauses` by
    SIGUSR1, once it has begun, does so by a key, too.
    """
    if not HAS_GROUPS:
        return _start_logging(names or PeerNames(), shows_everything=_shows_everything())
    if not is_worker():
        from pipelines.command_line.terminal.pause_key import pausing_by_key

        with pausing_by_key() if pauses else contextlib.nullcontext():
            while (code := run_as_worker(sys.argv[1:])) == START_AGAIN_EXIT_CODE:
                pass
        raise typer.Exit(code)
    if pauses:
        for number in (signal.SIGUSR1, signal.SIGUSR2):  # would kill a worker that has not begun
            signal.signal(number, signal.SIG_IGN)
    guard_process_group()
    return _start_logging(names or PeerNames(), shows_everything=_shows_everything())


def _shows_everything() -> bool:
    return os.environ.get(TRACEBACK_VARIABLE) == "1"


def _start_logging(names: PeerNames, *, shows_everything: bool) -> Console:
    """Send the log to the terminal, of this process and of all that it forks."""
    console = open_console(stderr=True)
    how = dict(name_peers=names.put_into, shows_tracebacks=shows_everything)
    handler: logging.Handler
    if console.is_terminal:
        from huggingface_hub.utils import disable_progress_bars

        disable_progress_bars()  # the progress is there already
        # Lines above the progress, which stays; columns for time and level would take half of a terminal.
        handler = RichHandler(
            console=console, show_time=False, show_level=False, show_path=False, highlighter=NullHighlighter()
        )
    else:
        handler = logging.StreamHandler()
        console = LogLines.console()
    handler.setFormatter(OneLineFormatter(**how))
    if not shows_everything:
        handler.addFilter(FoldsRepetitions())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("pipelines").setLevel(logging.DEBUG if shows_everything else logging.INFO)
    if not shows_everything:
        _keep_libraries_quiet()
    return console


def _keep_libraries_quiet() -> None:
    """Let only our own lines through: a peer that vanishes is an everyday event, which they say in one line each."""
    # Deprecations; loops and streams of hivemind that end with the process or with a stranger's connection; each try of
    # the Hub's client.
    logging.captureWarnings(True)
    for name in ("py.warnings", "asyncio", "huggingface_hub"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    threading.excepthook = _say_which_thread_ended
    sys.unraisablehook = lambda unraisable: logger.debug("%s", unraisable.err_msg, exc_info=unraisable.exc_value)
    if "HIVEMIND_LOGLEVEL" not in os.environ:
        # It sets its level when it is imported, which may be later than this.
        os.environ["HIVEMIND_LOGLEVEL"] = logging.getLevelName(logging.CRITICAL)
        logging.getLogger("hivemind").setLevel(logging.CRITICAL)


def _say_which_thread_ended(ended: threading.ExceptHookArgs) -> None:
    if ended.exc_type is not SystemExit:
        name = "a thread" if ended.thread is None else ended.thread.name
        logger.error("%s has ended by an error.", name, exc_info=ended.exc_value)
