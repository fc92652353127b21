"""Fixtures that all tests share."""

import asyncio
import configparser
import os
import signal
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import pytest

from hub_tools.local_hub import LocalHub

# Support modules of tests lie in folders of their own; importlib mode puts nothing on the path by itself.
FOLDERS = ("ancestor", "benchmarks", "golden", "isolation", "support")
for folder in FOLDERS:
    sys.path.insert(0, str(Path(__file__).parent / folder))

# Tests run side by side, and so do the peers of one: threads of one computation would only wait for each other. Set
# before torch is imported, and inherited by all that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Keys of organisers that tests make are not the user's.
os.environ["XDG_CONFIG_HOME"] = tempfile.mkdtemp(prefix="test-config-")

# A shell that starts a program in the background lets it ignore Ctrl-C, and its children inherit that; the commands
# under test must hear it wherever the tests are started from.
signal.signal(signal.SIGINT, signal.default_int_handler)

# hivemind's futures ask for the event loop of the thread that makes them. A main thread that never said which it has is
# given one, which nobody closes: a warning, in whichever test runs when it is collected.
asyncio.set_event_loop(None)

NEWEST_REPOSITORY = pytest.StashKey[int]()


def pytest_ignore_collect(collection_path, config):
    """Where slow tests alone are asked for, import only the files that have some: each worker imports them all."""
    if config.option.markexpr.startswith("slow") and collection_path.name.startswith("test_"):
        return "pytest.mark.slow" not in collection_path.read_text(encoding="utf-8") or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Begin with the files whose tests may take longest, swarms before all: the short ones fill the gaps at the end.

    A long test is a slow one: `-m "not slow"`, which chooses after this, leaves it out.
    """
    longest = defaultdict(float)
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker("slow")
        limit = item.get_closest_marker("timeout")
        seconds = limit.args[0] if limit else 0.0
        longest[item.path] = max(longest[item.path], seconds + 1e6 * (item.get_closest_marker("swarm") is not None))
    items.sort(key=lambda item: -longest[item.path])


def pytest_terminal_summary(terminalreporter):
    """Print also why a test failed that was run again: its second run says nothing of it."""
    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.section(f"RERUN {report.nodeid}")
        terminalreporter.line(report.longreprtext)


@pytest.fixture(scope="session")
def setup_cfg():
    """Return what setup.cfg says."""
    parser = configparser.ConfigParser()
    parser.read(Path(__file__).parents[1] / "setup.cfg", encoding="utf-8")
    return parser


@pytest.fixture(scope="session")
def hub(tmp_path_factory):
    """Yield an embedded Hub that runs as a process of its own, with the organisation `org` and its user `alice`."""
    with LocalHub(tmp_path_factory.mktemp("hub"), controlled=True) as local_hub:
        local_hub.alice_token = local_hub.create_user("alice")
        local_hub.create_organization("org", members={"alice": "admin"})
        yield local_hub


@pytest.fixture(autouse=True)
def second_try(request):
    """Let a test that is run again, as those of a swarm are, find the Hub as its first try found it."""
    if "hub" in request.fixturenames and request.config.getoption("reruns", None):
        from second_tries import newest_repository, set_aside

        root = request.getfixturevalue("hub").root
        if request.node.execution_count > 1:
            set_aside(root, request.node.stash[NEWEST_REPOSITORY])
        request.node.stash[NEWEST_REPOSITORY] = newest_repository(root)


@pytest.fixture(scope="module")
def dht():
    """Yield a DHT node without others."""
    from pipelines.core.admission.dht_gate import SwarmDHT

    node = SwarmDHT(admission=None, host_maddrs=["/ip4/127.0.0.1/tcp/0"], use_ipfs=False, start=True)
    yield node
    node.shutdown()


@pytest.fixture(scope="session")
def training_material(hub, commands, tmp_path_factory):
    """A tiny dataset of image codes with its codec on the embedded Hub, from which runs can be created."""
    from published_runs import publish_training_material

    return publish_training_material(hub, commands, tmp_path_factory.mktemp("material"))


@pytest.fixture(scope="session")
def commands(hub):
    """Return what runs `dalle-collab` commands in forks, so that the heavy imports are paid once."""
    from forked_commands import ForkedCommands

    return ForkedCommands(hub)
