"""Accounts, clients and throw-away repositories on the embedded Hub, for the tests of hub_tools."""

import os
import re
import subprocess
import sys
import zlib
from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub import constants
from huggingface_hub.utils import disable_progress_bars

PROGRAMS = os.path.dirname(sys.executable)  # noqa: PTH120 - the virtual environment's own folder, links unresolved


@pytest.fixture(scope="session", autouse=True)
def private_hub_client():
    """What `prepare_hub_client` does where HF_ENDPOINT is set: these tests name the endpoint per client instead."""
    constants.HF_HUB_DISABLE_XET = True
    disable_progress_bars()


@pytest.fixture(scope="session")
def tokens(hub):
    """Tokens of the organization's admin, of members with less, and of a stranger."""
    tokens = SimpleNamespace(alice=hub.alice_token, alice_read=hub.create_token("alice", role="read"))
    for user, role in (("writer-bob", "write"), ("reader-carol", "read"), ("stranger-eve", None)):
        setattr(tokens, user.partition("-")[2], hub.create_user(user))
        if role:
            hub.add_member("org", user, role)
    return tokens


@pytest.fixture(scope="session")
def client(hub):
    """A function that gives a client of the embedded Hub: `client(token)`; `client(False)` is anonymous."""
    return lambda token: huggingface_hub.HfApi(endpoint=hub.endpoint, token=token)


@pytest.fixture
def api(client, tokens):
    """The organization's admin."""
    return client(tokens.alice)


@pytest.fixture
def repo_id(request):
    """A name that no other test uses."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")
    return f"org/{name[:60].strip('-')}-{zlib.crc32(request.node.nodeid.encode()):08x}"


@pytest.fixture
def repo(api, repo_id):
    """A fresh model repository."""
    api.create_repo(repo_id)
    return repo_id


@pytest.fixture(scope="session")
def run_client(hub):
    """A function that runs a program or Python code as a client of the Hub, in a process of its own."""

    def run(*command, token=None, code=None, check=True, **environment):
        if code is not None:
            command = (sys.executable, "-c", code)
        variables = {**os.environ, **hub.environment(token), "HF_HUB_DISABLE_PROGRESS_BARS": "1", **environment}
        variables["PATH"] = f"{PROGRAMS}{os.pathsep}{variables['PATH']}"
        variables.setdefault("OMP_NUM_THREADS", "1")
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=240)
        if check:
            assert done.returncode == 0, done.stdout + done.stderr
        return done

    return run
