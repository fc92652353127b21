"""A hostile participant as one process with one DHT node.

Usage: python -m pipelines.tools.chaos.attacks.hostile_process FILE.json.

Settings: `attacks`, the number of keys that it uses for each attack of `table`, by name; `name` and `folder` of its
events; `repository`, or `run` and `entry_addresses`. In a run with an authority `HF_TOKEN` is that of its user.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

from hub_tools.processes.process_group import guard_process_group
from pipelines.core.admission.client import seek_admission
from pipelines.core.run.admission_config import admission_config_of
from pipelines.core.run.training_run import TrainingRun
from pipelines.core.swarm.network_options import NetworkOptions
from pipelines.core.swarm.node import open_dht
from pipelines.features.all_services import ALL_SERVICES
from pipelines.features.publishing.repository.snapshot import RunSnapshot
from pipelines.tools.chaos.attacks.hostile_node import SECONDS_BETWEEN_LIES, HostileNode
from pipelines.tools.chaos.attacks.table import ATTACKS
from pipelines.tools.chaos.chaotic_peer import EventLog, events_file


def main(settings: dict[str, Any]) -> None:
    """Attack until the process is killed."""
    guard_process_group()
    torch.set_num_threads(1)
    repository = settings.get("repository", "hostile/run")
    run = TrainingRun.from_mapping(settings["run"]) if "run" in settings else RunSnapshot.read(repository).run
    addresses = settings.get("entry_addresses", run.entry_addresses)
    events = EventLog(events_file(Path(settings["folder"]), settings["name"]))
    with seek_admission(admission_config_of(run, repository), None, os.environ.get("HF_TOKEN")) as (
        identity,
        admission,
    ):
        network = NetworkOptions(host_addresses=("/ip4/127.0.0.1/tcp/0",), identity_file=identity)
        with open_dht(repository, addresses, network, admission=admission, services=ALL_SERVICES) as dht:
            names, num_keys = zip(*settings["attacks"].items(), strict=True)
            nodes = HostileNode(run, dht, admission, sum(num_keys)).split(num_keys)
            attacks = [ATTACKS[name](node) for name, node in zip(names, nodes, strict=True)]
            events.write("ready", peer_id=dht.peer_id.to_base58(), addresses=[])
            while True:
                for attack, node in zip(attacks, nodes, strict=True):
                    next(attack)
                    node.finish()
                events.write("lied", cpu_seconds=sum(os.times()[:4]))
                time.sleep(SECONDS_BETWEEN_LIES)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
