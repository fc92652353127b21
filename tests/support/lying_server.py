"""A server of the run that draws with other weights than it says; usage: lying_server.py ORG/RUN EVENTS HOST."""

import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

from false_drawings import with_noise

from hub_tools.endpoint import prepare_hub_client
from pipelines.command_line.terminal.peer_events import EventFile
from pipelines.serving.draw import serving_run
from pipelines.serving.draw.checkpoints import load_served
from pipelines.swarm.network_options import NetworkOptions
from pipelines.training.peer.process_group import guard_process_group


def load_falsely(*args: Any, **kwargs: Any) -> Any:
    served = load_served(*args, **kwargs)
    # So much that every candidate is another: an untrained model's codes hardly depend on its weights.
    served.parts.model.load_state_dict(with_noise(served.parts.model, 5.0, seed=0).state_dict())
    return served


def main(repository: str, events: str, host: str) -> None:
    guard_process_group()
    prepare_hub_client()
    serving_run.load_served = load_falsely
    network = NetworkOptions(host_addresses=(host,), startup_timeout_seconds=240.0)
    options = serving_run.ServingOptions(device="cpu", cpu_threads=1, name="liar")

    def hear(event: str, **_values: Any) -> None:
        EventFile(Path(events)).happened(event)

    with serving_run.serve_run(repository, network=network, options=options, hear=hear, takes_signals=True) as served:
        for _ in served[0].follow(served[1]):
            pass


if __name__ == "__main__":
    main(*sys.argv[1:])
