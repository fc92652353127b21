"""The demo's stages, each a timed public command in a separate process."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from pipelines.training.peer.process_group import die_with_parent

STOP_SECONDS = 30.0


class StageError(RuntimeError):
    """A command of the demo failed; the message names it, its log and how to run it by itself."""


@dataclass
class Stages:
    """Runs public commands one after another; their output goes to logs, what users need to the terminal."""

    folder: Path
    """Logs are written here."""

    environment: Mapping[str, str]
    console: Console
    seconds: dict[str, float] = field(default_factory=dict)
    """How long each stage took, without nested stages: they add up to the total."""

    @contextlib.contextmanager
    def stage(self, name: str, description: str) -> Iterator[None]:
        """Show a stage while it runs and record how long it took."""
        started, inside_before = time.monotonic(), sum(self.seconds.values())
        with self.console.status(f"{description} ..."):
            yield
        elapsed, inside = time.monotonic() - started, sum(self.seconds.values()) - inside_before
        self.seconds[name] = round(self.seconds.get(name, 0.0) + elapsed - inside, 1)
        self.console.print(f"[green]done[/green] {description} [dim]({elapsed:.0f} s)[/dim]")

    def run(self, *command: str, token: str = "", log_name: str) -> str:
        """Run `dalle-collab` or `hub-tools` with arguments; return its standard output.

        Raises:
            StageError: the command exited with a code other than 0.
        """
        process = self.start(*command, token=token, log_name=log_name, keep_output=True)
        try:
            output, _ = process.communicate()
        except BaseException:
            stop_group(process)
            raise
        if process.returncode != 0:
            raise StageError(self.failure(command, process.returncode, log_name))
        return output

    def start(self, *command: str, token: str = "", log_name: str, keep_output: bool = False) -> subprocess.Popen[str]:
        """Start a public command in its own process group; its output goes to `LOG_NAME.log`."""
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
    ) -> subprocess.Popen[str]:
        """Start any program in the same way, in a folder and with extra environment variables."""
        with self._log(log_name).open("a", encoding="utf-8") as log:
            return subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, **self.environment, **environment, "HF_TOKEN": token, "NO_COLOR": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if keep_output else log,
                stderr=log,
                text=True,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    def failure(self, command: Sequence[str], code: int, log_name: str) -> str:
        """Say which command failed, why, and where its log is."""
        log = self._log(log_name)
        return f"`{' '.join(command)}` ended with exit code {code}: {last_line(log)} Full log: {log}"

    def _log(self, name: str) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder / f"{name}.log"


def last_line(log: Path) -> str:
    """Return the last line that a program logged."""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() if log.exists() else []
    return lines[-1] if lines else "it printed nothing"


def stop_group(process: subprocess.Popen[str]) -> None:
    """Ask a process to exit, then kill it and its group."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
