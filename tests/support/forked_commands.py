"""Runs commands and short programs of the embedded Hub's users in forks, so that heavy imports are paid once.

Each is whole: its own process and group, environment, output and exit code. Run as a program in a fork, this file
is the command: FORKED_COMMANDS FOLDER OUTPUT ERRORS PROGRAM ARGUMENTS...
"""

import os
import runpy
import subprocess
import sys
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path

from forked_processes import ForkedProcess, fork_server

COMMAND = "dalle-collab"
SECONDS_TO_END = 240


class ForkedCommands:
    """Runs programs as users of the embedded Hub."""

    def __init__(self, hub) -> None:
        from published_runs import command_environment

        self._server = fork_server(command_environment(hub, hub.alice_token))

    def run(
        self, *arguments: object, token: str | None = None, is_worker: bool = False, folder: Path | None = None
    ) -> subprocess.CompletedProcess:
        """Run `dalle-collab` in a folder; `is_worker` makes it the worker that a peer's outer process would start."""
        environment = {"DALLE_COLLAB_WORKER": "1"} if is_worker else {}
        if token is not None:
            environment["HF_TOKEN"] = token
        return self._run(COMMAND, arguments, environment, folder or Path.cwd())

    def run_program(self, path: Path, *arguments: str) -> subprocess.CompletedProcess:
        """Run a Python file."""
        return self._run(str(path), arguments, {}, Path.cwd())

    def started_worker(self, log: Path, *arguments: str, **variables: str) -> AbstractContextManager[ForkedProcess]:
        """Start `dalle-collab` as the worker of a peer; kill it and all that it started at the end of the block.

        `variables` are those of its environment that are its own, such as `HF_TOKEN`.
        """
        from published_runs import killed_with_family

        worker = {"DALLE_COLLAB_WORKER": "1", **variables}
        return killed_with_family(ForkedProcess(self._server, "pipelines.command_line.main", arguments, log, worker))

    def _run(self, program, arguments, environment, folder) -> subprocess.CompletedProcess:
        arguments = list(map(str, arguments))
        with tempfile.TemporaryDirectory() as place:
            files = [Path(place) / name for name in ("output", "errors")]
            words = [*map(str, (folder, *files)), program, *arguments]
            log = Path(place) / "fork.log"
            code = ForkedProcess(self._server, __file__, words, log, environment).wait(SECONDS_TO_END)
            texts = [file.read_text(encoding="utf-8") for file in files]
        return subprocess.CompletedProcess([program, *arguments], code, *texts)


def main(folder: str, output: str, errors: str, program: str, *arguments: str) -> None:
    """Be a program in a folder, with its own output and errors."""
    os.chdir(folder)
    for file, stream in ((output, 1), (errors, 2)):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), stream)
    sys.argv = [program, *arguments]
    try:
        if program == COMMAND:
            from pipelines.command_line.main import main

            main()
        else:
            sys.path.insert(0, str(Path(program).parent))
            runpy.run_path(program, run_name="__main__")
    except SystemExit as leaving:
        if isinstance(leaving.code, str):
            print(leaving.code, file=sys.stderr)
        raise


if __name__ == "__main__":
    main(*sys.argv[1:])
