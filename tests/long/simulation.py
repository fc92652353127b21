"""64 peers, 5 attackers and 10,000 epochs at the level of records and decisions, with and without an anchor.

Writes `results/simulation.json` after each of the two; what was simulated with this version is not simulated again.
Usage: python tests/long/simulation.py [--epochs N].
"""

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from simulated_swarm import SimulatedSwarm

from hub_tools.atomic_files import write_text_whole
from pipelines.core.run.versions import package_version

RESULTS = Path(__file__).with_name("results") / "simulation.json"
EPOCHS_BETWEEN_LINES = 500
AWAY = (*((start, 50) for start in range(500, 10_000, 1000)), (5000, 500))
"""When the anchor goes away, and for how long. Half of the peers change in about 90 epochs, so that after the long
absence hardly anybody is there whom it knew."""


def simulated(num_epochs: int, *, has_anchor: bool) -> dict[str, object]:
    away = {time for start, length in AWAY for time in range(start, start + length)}
    swarm, started = SimulatedSwarm(seed=1, has_anchor=has_anchor, anchor_away=away), time.monotonic()
    most_remembered = 0
    for epoch in range(num_epochs):
        swarm.epoch()
        most_remembered = max(most_remembered, swarm.num_remembered)
        if epoch % EPOCHS_BETWEEN_LINES == 0:
            print(f"epoch {epoch}, {time.monotonic() - started:.0f} s", file=sys.stderr)
    return dict(
        epochs=swarm.now,
        epochs_lost_to_a_returning_anchor=swarm.num_lost_epochs,
        peers_that_have_left=swarm.number - len(swarm.peers),
        peers_in_step=swarm.num_in_step,
        longest_fork_in_epochs=swarm.longest_fork,
        false_states_taken=swarm.num_false,
        times_a_peer_had_nobody_to_ask=swarm.num_waiting,
        most_peers_remembered_by_one=most_remembered,
        names_in_the_roster=len(swarm.roster.names),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10_000)
    options = parser.parse_args()
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    for name, has_anchor in (("with an anchor that is away now and then", True), ("without anchors", False)):
        made_with = [package_version(), options.epochs]
        if results.get(name, {}).get("made_with") != made_with:
            results[name] = dict(simulated(options.epochs, has_anchor=has_anchor), made_with=made_with)
            RESULTS.parent.mkdir(exist_ok=True)
            write_text_whole(RESULTS, json.dumps(results, indent=1) + "\n")
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
