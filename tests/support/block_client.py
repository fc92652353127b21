"""A client of a run's block servers; usage: python block_client.py SETTINGS.json.

Writes JSON to `log`: the codes that it has drawn across the servers, the chain, and a learned gradient's norm.
"""

import json
import sys
from pathlib import Path

import torch

from hub_tools.processes.process_group import guard_process_group
from pipelines.core.swarm.network_options import NetworkOptions
from pipelines.features.serving.blocks.client.distributed_model import DistributedModel
from pipelines.features.serving.blocks.client.stream_swarm import join_as_client


def main(settings: dict) -> None:
    guard_process_group()
    torch.set_num_threads(1)
    network = NetworkOptions(client_mode=True, startup_timeout_seconds=240.0)
    with join_as_client(settings["run"], network) as swarm:
        model = DistributedModel.from_pretrained(settings["run"], swarm=swarm, patience_seconds=60.0)
        text = torch.tensor(settings["text"])
        codes = model.generate_image_codes(text, num_candidates=2, seed=3, window=1)
        chain = model.layers.route.chain(range(len(model.layers)))
        found = dict(codes=codes.tolist(), chain=[[hop.start, hop.end] for hop in chain])
        Path(settings["log"]).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
