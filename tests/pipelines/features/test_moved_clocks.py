"""A clock that is hours off: who joins with it is told so, and who has joined goes on with the swarm's time."""

import subprocess
import sys
import time

import pytest
from support_files import SUPPORT

from pipelines.core.swarm.network_options import NetworkOptions
from pipelines.core.swarm.node import open_dht, visible_addresses

pytestmark = [pytest.mark.slow, pytest.mark.swarm]

LOOPBACK = NetworkOptions(host_addresses=("/ip4/127.0.0.1/tcp/0",))


@pytest.fixture(scope="module")
def entry():
    with open_dht("test/run", (), LOOPBACK, admission=None) as dht:
        dht.store("key", "value", time.time() + 600)
        yield dht


def moved(entry, *, at_the_start, later):
    command = [sys.executable, "-W", "ignore", str(SUPPORT / "moved_clock.py"), *visible_addresses(entry)]
    streams = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    streams["start_new_session"] = True  # its guard ends its whole group
    return subprocess.Popen([*command, str(at_the_start), str(later)], **streams)


@pytest.mark.long
def test_a_newcomer_whose_clock_is_hours_off_is_told_to_set_it_and_does_not_join(entry):
    with moved(entry, at_the_start=6 * 3600, later=6 * 3600) as newcomer:
        said = newcomer.communicate(timeout=120)[0].splitlines()
    assert said[-1].startswith("This machine's clock is 6.0 h ahead of that of the run's entry peer; at most 3 s")
    assert "sudo timedatectl set-ntp true" in said[-1] and "joined" not in said


def test_who_has_joined_goes_on_when_its_clock_is_moved_and_says_so(entry):
    with moved(entry, at_the_start=0, later=-6 * 3600) as peer:
        for line in peer.stderr:
            if "clock was set back by 6.0 h: this peer goes on with the time as it was." in line:
                break
        else:
            raise AssertionError(f"it has not said so, but ended: {peer.stdout.read()}")
        said = peer.communicate("good morning\n", timeout=60)[0].splitlines()
    assert said[-2:] == ["joined", "reads value"]
    assert entry.get("said", latest=True).value == "good morning", "what it says is believed as before"
