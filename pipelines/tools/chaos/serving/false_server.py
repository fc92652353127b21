"""A server that draws with other weights than it says; usage: false_server.py ORG/RUN EVENTS HOST."""

import copy
import sys
from pathlib import Path
from typing import Any

import torch

from modeling_dalle_collab import DalleCollabForConditionalGeneration

NOISE = 5.0
"""So much that every candidate is another: the codes of a tiny model hardly depend on its weights."""


@torch.no_grad()
def with_noise(
    model: DalleCollabForConditionalGeneration, share: float, seed: int
) -> DalleCollabForConditionalGeneration:
    """Return the model with noise of this share of each tensor's spread in its weights."""
    noisy, generator = copy.deepcopy(model), torch.Generator().manual_seed(seed)
    for parameter in noisy.parameters():
        if parameter.numel() > 1:
            parameter += share * parameter.std() * torch.randn(parameter.shape, generator=generator)
    return noisy


def main(repository: str, events: str, host: str) -> None:
    """Serve until the process is killed; everything but the weights is as an honest server has it."""
    from hub_tools.endpoint import prepare_hub_client
    from hub_tools.processes.process_group import guard_process_group
    from pipelines.core.swarm.network_options import NetworkOptions
    from pipelines.features.serving.draw import drawing_offer
    from pipelines.features.serving.draw.checkpoints import load_served
    from pipelines.features.serving.offer import ServingOptions
    from pipelines.features.serving.serving_run import serve_run
    from pipelines.tools.chaos.chaotic_peer import EventLog

    guard_process_group()
    prepare_hub_client()

    def load_falsely(*args: Any, **kwargs: Any) -> Any:
        served = load_served(*args, **kwargs)
        served.parts.model.load_state_dict(with_noise(served.parts.model, NOISE, seed=0).state_dict())
        return served

    drawing_offer.load_served = load_falsely  # type: ignore[attr-defined]  # imported there by name
    log = EventLog(Path(events))

    def on_event(event: str, **values: Any) -> None:
        log.write(event, **({"peer": values["peer"].peer_id} if event == "serving" else {}))

    network = NetworkOptions(host_addresses=(host,), startup_timeout_seconds=240.0)
    options = ServingOptions(device="cpu", cpu_threads=1, name="liar")
    with serve_run(repository, network=network, options=options, on_event=on_event, takes_signals=True) as (peer, stop):
        for _ in peer.follow(stop):
            pass


if __name__ == "__main__":
    main(*sys.argv[1:])
