"""`dalle-collab` in a Python that lacks what Windows lacks: hivemind, fork, process groups and several modules.

`sys.platform` says win32 once the libraries that choose files of their own by it are imported.
"""

import asyncio
import multiprocessing.heap
import multiprocessing.sharedctypes
import multiprocessing.synchronize
import os
import signal
import sys
import time

LACKING = ("hivemind", "fcntl", "resource", "termios", "pwd", "grp", "tty", "pty")
OF_OS = ("fork", "forkpty", "killpg", "getpgrp", "setsid", "setpgid", "pidfd_open", "sched_getaffinity", "sysconf")
OF_SIGNAL = ("SIGUSR1", "SIGUSR2", "SIGKILL", "SIGHUP", "SIGQUIT", "SIGTSTP", "SIGCONT")


def main() -> None:
    import datasets
    import huggingface_hub
    import rich.console
    import torch
    import transformers
    import typer

    import modeling_dalle_collab.modeling_dalle_collab
    import pipelines.features.memory_estimate.architectures

    assert all((modeling_dalle_collab, pipelines))
    assert all((asyncio, datasets, huggingface_hub, rich.console, torch, transformers, typer))
    for name in LACKING:
        sys.modules[name] = None  # type: ignore[assignment]
    for module, names in ((os, OF_OS), (signal, OF_SIGNAL), (time, ("clock_gettime", "CLOCK_BOOTTIME"))):
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    multiprocessing.get_all_start_methods = lambda: ["spawn"]
    sys.platform = "win32"
    from pipelines.command_line.main import main as run

    run()


if __name__ == "__main__":
    main()
