"""A Space as a process of its own, started from its bundle with nothing but what its bundle says it needs."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from isolation import environment_without, packages_beside

ADDRESS = re.compile(r"Running on local URL:\s+(http://\S+)")


def requirements_of(space: Path) -> list[str]:
    """Return what the Hub installs for a Space of this folder: what it names, and the Gradio of its card."""
    card = (space / "README.md").read_text(encoding="utf-8")
    gradio = re.search(r"^sdk_version: (\S+)$", card, re.MULTILINE)
    return [f"gradio[oauth]=={gradio[1]}", *(space / "requirements.txt").read_text(encoding="utf-8").split()]


@contextlib.contextmanager
def started_space(bundle: Path, environment: Mapping[str, str]) -> Iterator[tuple[subprocess.Popen, str]]:
    """Start the Space in a bundle; yield its process and its address, and ask it to end after the block.

    It can import its own files and what its requirements bring, as in a virtual environment made from them.
    """
    environment = {**environment, "GRADIO_ANALYTICS_ENABLED": "False", "PYTHONUNBUFFERED": "1"}
    environment = environment_without(packages_beside(requirements_of(bundle)), environment, visible_folder=bundle)
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
