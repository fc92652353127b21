"""The dashboard beside a real run: peers that come, one that is killed, and who is credited with which samples."""

import json
import os
import signal
import time
import urllib.request
from pathlib import Path

import pytest
from assistants import assistant
from swarm_of_processes import Swarm

SPACE = Path(__file__).parents[2] / "spaces" / "training_dashboard"
RUN = "org/run-on-the-dashboard"
SECONDS_TO_APPEAR, SECONDS_TO_VANISH = 20, 40

pytestmark = [pytest.mark.slow, pytest.mark.swarm, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture(scope="module")
def environment(hub, training_material):
    training_material.create_run(RUN, run_id="watched", optimizer_bits=8, progress_expiration_seconds=20.0)
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**kept, **hub.environment(), "RUN": RUN, "OMP_NUM_THREADS": "1"}


@pytest.fixture
def ask(address):
    def ask(name):
        with urllib.request.urlopen(f"{address.rstrip('/')}/api/{name}", timeout=30) as answer:
            return json.load(answer)

    return ask


def wait_until(is_so, seconds, what):
    """Wait until something is so; return when."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if is_so():
            return time.time()
        time.sleep(0.1)
    raise AssertionError(f"not {what} within {seconds} s")


@pytest.mark.long
@pytest.mark.timeout(400)
def test_peers_appear_vanish_and_are_credited_with_what_they_have_signed(training_material, ask, tmp_path):
    def states():
        return {peer["username"]: peer["state"] for peer in ask("peers")}

    def signed():
        return sum(peer["num_samples"] for peer in ask("peers"))

    def credited():
        return {row["username"]: row["samples"] for row in ask("leaderboard")}

    wait_until(lambda: "has no entry address" in ask("run")["problems"].get("Swarm", ""), 60, "waiting for an address")
    folder = tmp_path / "swarm"
    folder.mkdir()
    helper = assistant(training_material, RUN, tmp_path, "helper", "--metrics-seconds", "1")
    with helper as auxiliary:
        auxiliary.wait_until(lambda look: True, "up")
        run = training_material.settings(RUN)
        who = dict(num_peers=2, anchor_keys=training_material.anchors(RUN))
        with Swarm(folder, run, entry_addresses=list(run.entry_addresses), **who) as swarm:
            wait_until(lambda: not ask("run")["problems"], 120, "watching the swarm before anybody trains")
            one, two = (swarm.start(name, seconds_per_batch=0.2) for name in ("one", "two"))
            begun = max(peer.wait_for("ready")["time"] for peer in (one, two))
            shown = wait_until(lambda: states() == {"one": "training", "two": "training"}, 60, "shown")
            assert shown - begun < SECONDS_TO_APPEAR
            assert {peer["device"] for peer in ask("peers")} == {"CPU, 1 thread"}
            for peer in (one, two):
                peer.wait_for("step", ended_epoch=True)
            wait_until(lambda: all(peer["num_samples"] for peer in ask("peers")), 30, "reporting figures")
            # The auxiliary peer credits whom it has found in a round; it may have missed the first one.
            wait_until(lambda: set(credited()) == {"one", "two"}, 60, "credited at first")

            killed = time.time()
            one.kill()
            gone = wait_until(lambda: states() == {"one": "gone", "two": "training"}, 60, "noticed")
            assert gone - killed < SECONDS_TO_VANISH
            print(f"shown after {shown - begun:.1f} s, noticed after {gone - killed:.1f} s")

            # Figures expire. The auxiliary peer reads the last ones in time if the peer whose state it takes over is
            # alive: from a dead one it waits for an answer for up to a minute.
            two.process.send_signal(signal.SIGUSR1)
            wait_until(lambda: set(credited()) == {"one", "two"}, 60, "credited")
            assert 0 < sum(credited().values()) <= signed(), "a newcomer is credited in part, see `contributions`"
