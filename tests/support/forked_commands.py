"""Runs many short programs in forks of one process, so that the seconds of torch's and hivemind's import are paid once.

Each program is whole: its own process and group, environment, output and exit code. As a program itself it reads
requests, one JSON object per line, from standard input and answers each with one line.
"""

import json
import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

COMMAND = "dalle-collab"


class ForkedCommands:
    """Runs programs as users of the embedded Hub. Use as a context manager."""

    def __init__(self, hub) -> None:
        self._hub = hub

    def __enter__(self) -> "ForkedCommands":
        from published_runs import command_environment

        self._process = subprocess.Popen(
            [sys.executable, __file__],
            env=command_environment(self._hub, self._hub.alice_token),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()

    def run(self, *arguments: str, token: str | None = None, is_worker: bool = False) -> subprocess.CompletedProcess:
        """Run `dalle-collab`; `is_worker` makes it the worker that the outer process of a peer would start."""
        environment = {"DALLE_COLLAB_WORKER": "1"} if is_worker else {}
        if token is not None:
            environment["HF_TOKEN"] = token
        return self._ask(COMMAND, arguments, environment)

    def run_program(self, path: Path, *arguments: str) -> subprocess.CompletedProcess:
        """Run a Python file."""
        return self._ask(str(path), arguments, {})

    def _ask(self, program, arguments, environment) -> subprocess.CompletedProcess:
        request = dict(program=program, arguments=list(map(str, arguments)), environment=environment)
        print(json.dumps(request), file=self._process.stdin, flush=True)
        answer = json.loads(self._process.stdout.readline())
        return subprocess.CompletedProcess([program, *arguments], **answer)


def run_forked(program: str, arguments: list[str], environment: dict[str, str]) -> dict[str, object]:
    """Run one program in a fork; return its exit code and what it printed."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        child = os.fork()
        if child == 0:
            _become(program, arguments, environment, output.fileno(), errors.fileno())
        _, status = os.waitpid(child, 0)
        texts = []
        for file in (output, errors):
            file.seek(0)
            texts.append(file.read().decode())
    return dict(returncode=os.waitstatus_to_exitcode(status), stdout=texts[0], stderr=texts[1])


def _become(program: str, arguments: list[str], environment: dict[str, str], output: int, errors: int) -> None:
    os.setsid()
    os.environ.update(environment)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(errors, 2)
    sys.argv = [program, *arguments]
    code = 1
    try:
        if program == COMMAND:
            from pipelines.command_line.main import main

            main()
        runpy.run_path(program, run_name="__main__")
        code = 0
    except SystemExit as leaving:
        if isinstance(leaving.code, str):
            print(leaving.code, file=sys.stderr)
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _serve() -> None:
    import datasets  # noqa: F401 - these imports are what the forks need not repeat
    import transformers  # noqa: F401

    from pipelines.command_line.terminal import check_list, worker  # noqa: F401
    from pipelines.doctor import examination  # noqa: F401
    from pipelines.image_codes import vqgan_codec  # noqa: F401
    from pipelines.training.auxiliary import assisting  # noqa: F401
    from pipelines.training.peer import joining  # noqa: F401
    from pipelines.training.tasks.text_to_image import task  # noqa: F401

    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        print(json.dumps(run_forked(**json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    _serve()
