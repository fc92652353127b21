"""A Space started from its bundle. A test file names its folder in `SPACE` and has a fixture `environment`."""

import os
import re
import signal
import subprocess
import sys

import gradio_client
import pytest

from hub_tools.space_bundling import bundle_folder

ADDRESS = re.compile(r"Running on local URL:\s+(http://\S+)")


@pytest.fixture(scope="module")
def bundle(request, tmp_path_factory):
    output = tmp_path_factory.mktemp("bundle") / "space"
    bundle_folder(request.module.SPACE, output)
    return output


@pytest.fixture(scope="module")
def address(bundle, environment):
    environment = {**environment, "GRADIO_ANALYTICS_ENABLED": "False", "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "app.py"]
    with subprocess.Popen(
        command, cwd=bundle, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            found = next(filter(None, map(ADDRESS.search, iter(process.stdout.readline, ""))), None)
            assert found is not None, f"the Space ended with exit code {process.wait()}"
            yield found[1]
        finally:
            os.killpg(process.pid, signal.SIGTERM)


@pytest.fixture(scope="module")
def client(address, tmp_path_factory):
    return gradio_client.Client(address, download_files=str(tmp_path_factory.mktemp("files")), verbose=False)
