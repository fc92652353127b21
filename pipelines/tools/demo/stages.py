"""The demo's stages, each of timed public commands in separate processes; what is finished is not done again."""

import contextlib
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.markup import escape

from hub_tools.processes.child_process import last_line
from pipelines.tools.demo.running.finished_work import FinishedWork, remove
from pipelines.tools.demo.running.programs import Program, start_program, stop_all
from pipelines.tools.demo.running.progress_lines import ProgressLines

LOGS_FOLDER, FINISHED_FILE = "logs", "finished.json"
Result = TypeVar("Result")


class StageError(RuntimeError):
    """A command of the demo failed; the message names it, its log and how to run it by itself."""


@dataclass
class Stages:
    """Runs public commands one after another; their output goes to logs, what users need to the terminal."""

    output: Path
    """The demo's folder; logs are written to `logs` in it."""

    environment: Mapping[str, str]
    console: Console
    shows_commands: bool = field(default=False, kw_only=True)
    """Whether commands are printed as a user would type them."""

    lines: ProgressLines = field(init=False)
    finished: FinishedWork = field(init=False)

    def __post_init__(self) -> None:
        self.lines = ProgressLines(self.console)
        self.finished = FinishedWork(self.output, self.output / "work" / FINISHED_FILE)

    @property
    def seconds(self) -> dict[str, float]:
        """How long each stage took over all calls, without nested stages: they add up to the total."""
        return self.finished.seconds

    @contextlib.contextmanager
    def stage(self, name: str, description: str) -> Iterator[None]:
        """Show a stage while it runs and record how long it took."""
        started, inside_before = time.monotonic(), sum(self.seconds.values())
        try:
            with self.lines.doing(description):
                yield
        finally:
            elapsed, inside = time.monotonic() - started, sum(self.seconds.values()) - inside_before
            self.seconds[name] = round(self.seconds.get(name, 0.0) + elapsed - inside, 1)
            self.finished.save()
        self.lines.say(f"[green]done[/green] {escape(description)} [dim]({elapsed:.0f} s)[/dim]", markup=True)

    def once(
        self,
        name: str,
        description: str,
        work: Callable[[], Result],
        *,
        piece: str = "",
        inputs: str = "",
        outputs: Sequence[Path] = (),
        is_there: Callable[[], bool] = lambda: True,
        continues: bool = False,
    ) -> Result:
        """Do a stage's work unless an earlier call has finished it; return its result, which JSON can hold.

        `piece` names it within the stage, if that has several. It is done again if it was made from other `inputs`, if
        one of its `outputs` is not as it was written, or if what it made elsewhere is not there. What is left of it is
        removed before; `continues`: not what an interrupted call has left, which the work goes on with.
        """
        key = piece or name
        found = self.finished.find(key, inputs)
        if found is not None and is_there():
            self.lines.say(f"[green]kept[/green] {escape(description)}", markup=True)
            return found.result
        if self.finished.was_done(key) or not continues:
            for path in outputs:
                remove(path)
        with self.stage(name, description):
            result = work()
            self.finished.add(key, inputs, outputs, result)
        return result

    def run(self, *command: str, token: str = "", log_name: str) -> str:
        """Run `dalle-collab` or `hub-tools` with arguments; return its standard output.

        Raises:
            StageError: the command exited with a code other than 0.
        """
        log = self._log(log_name)
        length = log.stat().st_size if log.exists() else 0
        program = self.start(*command, token=token, log_name=log_name, keep_output=True)
        self.lines.tell(lambda: progress_in(last_line(log, length)))
        try:
            output, _ = program.process.communicate()
        except BaseException:
            stop_all([program])
            raise
        if program.exit_code != 0:
            raise StageError(self.failure(command, program.exit_code or 0, log_name))
        return output

    def start(self, *command: str, token: str = "", log_name: str, keep_output: bool = False) -> Program:
        """Start a public command in its own process group; its output goes to `LOG_NAME.log`."""
        if self.shows_commands:
            self.lines.say(f"[dim]$ {escape(shlex.join(command))}[/dim]", markup=True)
        program = [str(Path(sys.executable).with_name(command[0])), *command[1:]]
        return self.start_program(program, token=token, log_name=log_name, keep_output=keep_output)

    def start_program(
        self,
        command: Sequence[str],
        *,
        folder: Path | None = None,
        environment: Mapping[str, str] = {},
        token: str = "",
        log_name: str,
        keep_output: bool = False,
    ) -> Program:
        """Start any program in the same way, in a folder and with extra environment variables."""
        self.logs.mkdir(parents=True, exist_ok=True)
        with self._log(log_name).open("a", encoding="utf-8") as log:
            return start_program(
                command,
                self.output,
                log_name,
                {**os.environ, **self.environment, **environment, "HF_TOKEN": token, "NO_COLOR": "1"},
                cwd=folder,
                stdout=subprocess.PIPE if keep_output else log,
                stderr=log,
            )

    def failure(self, command: Sequence[str], code: int, log_name: str) -> str:
        """Say which command failed, why, and where its log is."""
        log = self._log(log_name)
        return f"`{' '.join(command)}` ended with exit code {code}: {last_line(log)} Full log: {log}"

    def last_words(self, log_name: str) -> str:
        """Return the last line of a program's log."""
        return last_line(self._log(log_name))

    @property
    def logs(self) -> Path:
        """Folder of the logs."""
        return self.output / LOGS_FOLDER

    def _log(self, name: str) -> Path:
        return self.logs / f"{name}.log"


PROGRESS = re.compile(r"[\w ]+: [\d,]+( of [\d,]+)? .*")
"""A line of `stage_progress` in a log."""


def progress_in(line: str) -> str:
    """Return a logged line if it says how far a command is, else nothing."""
    return line if PROGRESS.fullmatch(line) else ""
