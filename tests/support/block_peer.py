"""A peer that serves some layers of a model in a folder; usage: python block_peer.py SETTINGS.json.

`log` of the settings is a file for a line of JSON when it is ready; `model` is a folder; `layers` are two numbers;
`memory` are the bytes that one client may take.
"""

import json
import os
import signal
import sys
from pathlib import Path

import torch

from pipelines.serving.blocks.client.distributed_model import local_server
from pipelines.serving.blocks.service import BlocksService
from pipelines.serving.blocks.weights import find_model
from pipelines.swarm.network_options import NetworkOptions
from pipelines.swarm.node import open_dht, visible_addresses
from pipelines.swarm.streams.introductions import Introductions
from pipelines.swarm.streams.peer_loop import PeerLoop
from pipelines.swarm.streams.quotas import Quota
from pipelines.swarm.streams.server import StreamLimits, StreamServer
from pipelines.training.peer.process_group import guard_process_group

NAMESPACE = "a-run"
HOST = "/ip4/127.0.0.1/tcp/0"


def main(settings: dict) -> None:
    guard_process_group()
    torch.set_num_threads(1)
    options = NetworkOptions(host_addresses=(HOST,), startup_timeout_seconds=300.0)
    with open_dht(NAMESPACE, (), options, admission=None) as dht, PeerLoop(dht) as loop:
        memory = Quota("bytes of caches", per_peer=settings["memory"], in_all=2 * settings["memory"])
        blocks = local_server(find_model(settings["model"]), range(*settings["layers"]), memory=memory)
        server = StreamServer(loop.p2p, NAMESPACE, Introductions(None), limits=StreamLimits(streams_per_peer=64))
        service = BlocksService(blocks)
        loop.call(server.offer(service))
        ready = dict(
            addresses=visible_addresses(dht), peer=dht.peer_id.to_base58(), pid=os.getpid(), revision=blocks.revision
        )
        Path(settings["log"]).write_text(json.dumps(ready) + "\n", encoding="utf-8")
        signal.sigwait({signal.SIGTERM})
        loop.call(server.leave(5.0))
        service.close()


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
