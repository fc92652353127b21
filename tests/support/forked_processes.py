"""Programs in forks of one process that has paid for all heavy imports; run as a program this file is that process."""

import atexit
import contextlib
import json
import os
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipelines.tools.chaos.fork_server import ForkServer, import_what_is_there, serve


class WarmForkServer(ForkServer):
    """A fork server that has imported what commands need, too."""

    server = (__file__,)


_SERVERS: dict[str, ForkServer] = {}


def fork_server(environment: Mapping[str, str] = {}) -> ForkServer:
    """Return the server whose forks have the Hub and the instructions of this environment; it ends with the tests.

    Whoever needs neither gets one that is running already.
    """
    names = [environment.get(name) for name in ("HF_ENDPOINT", "ATEN_CPU_CAPABILITY")]
    key = " ".join(filter(None, names)) or next(iter(_SERVERS), "")
    if key not in _SERVERS:
        server = WarmForkServer(Path(tempfile.mkdtemp(prefix="test-forks-")), environment).__enter__()
        atexit.register(server.__exit__)
        _SERVERS[key] = server
    return _SERVERS[key]


class ForkedProcess:
    """A program that runs in a process group of its own, with the methods of `subprocess.Popen` that tests need."""

    def __init__(
        self,
        server: ForkServer,
        program: str,
        arguments: Sequence[str],
        log: Path,
        environment: Mapping[str, str] = {},
    ) -> None:
        self._server = server
        self.pid = server.start(str(log.with_suffix("")), program, arguments, environment)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, or None while the program runs."""
        if self.returncode is None:
            self.returncode = self._server.poll(self.pid)
        return self.returncode

    def wait(self, seconds: float = 60) -> int:
        """Wait until the program has ended; return its exit code."""
        deadline = time.monotonic() + seconds
        while self.poll() is None:
            assert time.monotonic() < deadline, f"process {self.pid} has not ended within {seconds} s"
            time.sleep(0.02)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal to the program alone."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def signal_group(self, number: int) -> None:
        """Send a signal to all processes of its group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def kill(self) -> None:
        """Kill the program alone and wait until it is gone."""
        self.send_signal(signal.SIGKILL)
        self.wait()


def printed_json(log: Path) -> dict:
    """Return the object that a program has printed as a line of JSON: its libraries' warnings may stand after it."""
    lines = [line for line in log.read_text(encoding="utf-8").splitlines() if line.startswith("{")]
    assert lines, f"no line of {log} is a JSON object:\n{log.read_text(encoding='utf-8')[-3000:]}"
    return json.loads(lines[-1])


if __name__ == "__main__":
    import_what_is_there(
        (
            *("pipelines.command_line.terminal.check_list", "pipelines.command_line.terminal.worker"),
            *("pipelines.tasks.text_to_image.image_codes.vqgan_codec", "pipelines.tools.doctor.examination"),
        )
    )
    serve()
