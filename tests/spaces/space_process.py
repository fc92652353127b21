"""A Space as a process of its own, started from its bundle."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ADDRESS = re.compile(r"Running on local URL:\s+(http://\S+)")


@contextlib.contextmanager
def started_space(bundle: Path, environment: Mapping[str, str]) -> Iterator[tuple[subprocess.Popen, str]]:
    """Start the Space in a bundle; yield its process and its address, and ask it to end after the block."""
    environment = {**environment, "GRADIO_ANALYTICS_ENABLED": "False", "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "app.py"]
    with subprocess.Popen(
        command, cwd=bundle, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            found = next(filter(None, map(ADDRESS.search, iter(process.stdout.readline, ""))), None)
            assert found is not None, f"the Space ended with exit code {process.wait()}"
            yield process, found[1]
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
