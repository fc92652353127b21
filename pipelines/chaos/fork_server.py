"""Runs programs of this package in forks of one process that has imported everything.

On a machine that hosts a whole swarm, the imports of a trainer that comes back would take the processor from all others
for many seconds; a volunteer's own machine does not. `ForkServer` is the side that asks; run as a module this file is
the server: a JSON request per line of standard input, a number per line of answer. It ends with its input.
"""

import contextlib
import json
import os
import runpy
import signal
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipelines.chaos.skewed_clock import CLOCK


class ForkServer:
    """Starts programs in forks. Use as a context manager; all that was forked and guards its group ends with it."""

    def __init__(self, log_folder: Path, environment: Mapping[str, str]) -> None:
        self._log_folder, self._environment = log_folder, environment

    def __enter__(self) -> "ForkServer":
        self._log_folder.mkdir(parents=True, exist_ok=True)
        with (self._log_folder / "fork_server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pipelines.chaos.fork_server"],
                env={**os.environ, **self._environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def log(self, name: str) -> Path:
        """Return the file of what a program prints."""
        return self._log_folder / f"{name}.log"

    def start(self, name: str, module: str, arguments: Sequence[str], environment: Mapping[str, str] = {}) -> int:
        """Start a module as a program in a process group of its own; return the group, which is its process id too."""
        request = dict(
            module=module, arguments=list(arguments), environment=dict(environment), log_file=str(self.log(name))
        )
        return self._ask(request)

    def wait(self, pid: int) -> int:
        """Wait until a program has ended; return its exit code."""
        return self._ask(dict(wait=pid))

    def _ask(self, request: Mapping[str, object]) -> int:
        print(json.dumps(request), file=self._process.stdin, flush=True)
        if not (line := self._process.stdout.readline()):
            raise ChildProcessError(f"The fork server ended; see {self.log('fork_server')}.")
        return int(line)


def fork_program(module: str, arguments: Sequence[str], environment: Mapping[str, str], log_file: str) -> int:
    """Run a module as `__main__` in a fork that leads a process group of its own; return its process id."""
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
        sys.argv = [module, *arguments]
        runpy.run_module(module, run_name="__main__")
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def serve() -> None:
    """Import what swarms need, then answer requests until the input ends."""
    CLOCK.install()
    import datasets  # noqa: F401 - these imports are what the forks need not repeat
    import safetensors.torch  # noqa: F401
    import transformers  # noqa: F401

    from pipelines.training import auxiliary_peer, image_code_stream, run_creation, training_peer  # noqa: F401

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        request = json.loads(line)
        answer = _exit_code(request["wait"]) if "wait" in request else fork_program(**request)
        print(answer, file=answers, flush=True)


def _exit_code(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    serve()
