"""Running a peer's command in its own process group, with its log on the terminal."""

import logging
import os
import sys
import warnings

import typer
from rich.console import Console
from rich.logging import RichHandler

from pipelines.command_line.terminal.consoles import LogLines, OneLineFormatter, open_console
from pipelines.training.peer.process_group import (
    START_AGAIN_EXIT_CODE,
    guard_process_group,
    is_worker,
    run_as_worker,
)


def become_worker() -> Console:
    """Continue only in a separate process group; in the process that the user started, wait for that group.

    Returns the terminal, to which the log goes from now on.
    """
    if not is_worker():
        while (code := run_as_worker(sys.argv[1:])) == START_AGAIN_EXIT_CODE:
            pass
        raise typer.Exit(code)
    guard_process_group()
    # hivemind 1.1.12 compiles its mixture-of-experts layers when it is imported; volunteers need not see that.
    warnings.filterwarnings("ignore", message="`torch.jit", category=FutureWarning)
    return _start_logging()


def _start_logging() -> Console:
    console = open_console(stderr=True)
    if console.is_terminal:
        shown = RichHandler(console=console, show_path=False, markup=False, rich_tracebacks=False)
        logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[shown], force=True)
    else:
        written = logging.StreamHandler()
        written.setFormatter(OneLineFormatter())
        logging.basicConfig(level=logging.WARNING, handlers=[written], force=True)
        logging.captureWarnings(True)
        console = LogLines.console()
    logging.getLogger("pipelines").setLevel(logging.INFO)
    # Metrics lie in the model's repository, as intended.
    warnings.filterwarnings("ignore", message="It seems that you are about to commit a data file", category=UserWarning)
    # Taking over a state advances the schedule without local steps, as intended.
    warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step\\(\\)` before")
    if "HIVEMIND_LOGLEVEL" not in os.environ:
        # Vanishing peers are an everyday event, which we report in one line; hivemind prints a traceback.
        # It sets its level when it is imported, which may be later than this.
        os.environ["HIVEMIND_LOGLEVEL"] = logging.getLevelName(logging.CRITICAL)
        logging.getLogger("hivemind").setLevel(logging.CRITICAL)
        # Its loops end with the process, in the middle of what they do; asyncio would name each of these tasks.
        logging.getLogger("asyncio").addFilter(lambda record: not record.getMessage().startswith("Task was destroyed"))
    return console
