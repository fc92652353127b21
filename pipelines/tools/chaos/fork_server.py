"""Runs programs of this package in forks of one process that has imported everything.

On a machine that hosts a whole swarm, the imports of a restarting trainer would take CPU time from all others for many
seconds; on a volunteer's own machine they would not. `ForkServer` is the client; run as a module this file is the
server: a JSON request per line of standard input, a line of JSON per answer. It ends with its input.
"""

import contextlib
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hub_tools.processes.child_process import ChildProcess
from pipelines.tools.chaos.faults.skewed_clock import CLOCK

SKEWED = "--clock-can-be-skewed"

IMPORTED = (
    *("datasets", "safetensors.torch", "transformers"),
    *("pipelines.features.publishing.auxiliary.assisting", "pipelines.joining.join_run"),
    "pipelines.tasks.text_to_image.task",
)
"""What most programs of a swarm import."""


class ForkServer:
    """Starts programs in forks. Use as a context manager; all forks that guard their group end with it."""

    server = ("-m", "pipelines.tools.chaos.fork_server")
    """What Python runs: this file, or a program that imports more and then calls `serve`."""

    def __init__(
        self, log_folder: Path, environment: Mapping[str, str] = {}, *, clock_can_be_skewed: bool = False
    ) -> None:
        self._log_folder, self._environment = log_folder, environment
        self._options = [SKEWED] if clock_can_be_skewed else []
        self._lock = threading.Lock()

    def __enter__(self) -> "ForkServer":
        self._log_folder.mkdir(parents=True, exist_ok=True)
        with (self._log_folder / "fork_server.log").open("ab") as log:
            self._process = ChildProcess(
                [sys.executable, *self.server, *self._options],
                env={**os.environ, **self._environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.__exit__(*exception)

    def log(self, name: str) -> Path:
        """Return the file with a program's output."""
        return self._log_folder / f"{name}.log"

    def start(self, name: str, program: str, arguments: Sequence[str], environment: Mapping[str, str] = {}) -> int:
        """Start a module or a .py file as a program; return its process group, which is its process id too."""
        request = dict(
            program=program, arguments=list(arguments), environment=dict(environment), log_file=str(self.log(name))
        )
        return self._ask(request)

    def wait(self, pid: int) -> int:
        """Wait until a program has ended; return its exit code."""
        return self._ask(dict(wait=pid))

    def poll(self, pid: int) -> int | None:
        """Return the exit code of a program that has ended, once, or None while it runs."""
        return self._ask(dict(poll=pid))

    def _ask(self, request: Mapping[str, object]) -> Any:
        with self._lock:
            self._process.send(request)
            if not (line := self._process.stdout.readline()):
                raise ChildProcessError(f"The fork server exited; see {self.log('fork_server')}.")
            return json.loads(line)


def fork_program(program: str, arguments: Sequence[str], environment: Mapping[str, str], log_file: str) -> int:
    """Run a program as `__main__` in a fork that leads a process group of its own; return its process id."""
    if (pid := os.fork()) != 0:
        return pid
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.update(environment)
        log = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for stream, target in ((0, os.open(os.devnull, os.O_RDONLY)), (1, log), (2, log)):
            os.dup2(target, stream)
        CLOCK.own()
        from pipelines.core.swarm.forks import take_own_locks  # not before the clock is set

        take_own_locks()
        sys.argv = [program, *arguments]
        if program.endswith(".py"):
            sys.path.insert(0, str(Path(program).parent))
            runpy.run_path(program, run_name="__main__")
        else:
            runpy.run_module(program, run_name="__main__")
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def import_what_is_there(modules: Sequence[str]) -> None:
    """Import modules so that the forks need not; what is not installed is for those that ask for it to miss."""
    for module in modules:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(module)


def serve() -> None:
    """Import what swarms need, then answer requests until the input ends."""
    if SKEWED in sys.argv:
        CLOCK.install()
    from hub_tools.endpoint import prepare_hub_client

    import_what_is_there(IMPORTED)
    prepare_hub_client()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(_answer(request)), file=answers, flush=True)


def _answer(request: dict[str, Any]) -> int | None:
    if "wait" in request:
        return os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1])
    if "poll" in request:
        ended, status = os.waitpid(request["poll"], os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if ended else None
    return fork_program(**request)


if __name__ == "__main__":
    serve()
