"""A peer that answers one service over streams; usage: python stream_peer.py SETTINGS.json.

`log` of the settings is a file for a line of JSON when it is ready; `limits` are those of the streams. With `model`, a
folder, it serves some of its layers: `layers` are two numbers, `memory` are the bytes that one client may take.
"""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import torch

from hub_tools.processes.process_group import guard_process_group
from pipelines.core.swarm.network_options import NetworkOptions
from pipelines.core.swarm.node import open_dht, visible_addresses
from pipelines.core.swarm.streams.introductions import Introductions
from pipelines.core.swarm.streams.peer_loop import PeerLoop
from pipelines.core.swarm.streams.quotas import Quota
from pipelines.core.swarm.streams.refusals import Refusal
from pipelines.core.swarm.streams.server import StreamLimits, StreamServer

NAMESPACE, SERVICE = "a-run", "echo"
HOST = "/ip4/127.0.0.1/tcp/0"


class Echo:
    """Does what each message says."""

    name = SERVICE
    most_tensor_bytes = 2**20

    def __init__(self) -> None:
        self.num_open = 0

    def about(self) -> dict:
        return dict(num_open=self.num_open)

    async def serve(self, conversation) -> None:
        self.num_open += 1
        try:
            while True:
                message = await conversation.receive(600.0)
                if (wanted := message.body.get("do")) == "leave":
                    return
                await self._answer(wanted, message, conversation)
        finally:
            self.num_open -= 1

    async def _answer(self, wanted, message, conversation) -> None:
        if wanted == "echo":
            await conversation.send(message.body, message.tensors)
        elif wanted == "count":
            for number in range(message.body["times"]):
                await conversation.send(dict(number=number), dict(number=torch.tensor([number])))
        elif wanted == "be busy":
            await asyncio.sleep(message.body["seconds"])
            await conversation.send({})
        elif wanted == "refuse":
            raise Refusal("invalid", "There is no such thing.")
        else:
            raise RuntimeError("a fault of the service")


def layers_of(settings: dict):
    """Return the service of some layers of the model in a folder."""
    from pipelines.features.serving.blocks.client.distributed_model import local_server
    from pipelines.features.serving.blocks.service import BlocksService
    from pipelines.features.serving.blocks.weights import find_model

    memory = Quota("bytes of caches", per_peer=settings["memory"], in_all=2 * settings["memory"])
    blocks = local_server(find_model(settings["model"]), range(*settings["layers"]), memory=memory)
    return BlocksService(blocks), blocks.revision


def main(settings: dict) -> None:
    guard_process_group()
    torch.set_num_threads(1)
    options = NetworkOptions(host_addresses=(HOST,), startup_timeout_seconds=300.0)
    with open_dht(NAMESPACE, (), options, admission=None) as dht, PeerLoop(dht) as loop:
        server = StreamServer(loop.p2p, NAMESPACE, Introductions(None), limits=StreamLimits(**settings["limits"]))
        service, revision = layers_of(settings) if "model" in settings else (Echo(), None)
        loop.call(server.offer(service))
        ready = dict(addresses=visible_addresses(dht), peer=dht.peer_id.to_base58(), pid=os.getpid())
        if revision is not None:
            ready["revision"] = revision
        Path(settings["log"]).write_text(json.dumps(ready) + "\n", encoding="utf-8")
        signal.sigwait({signal.SIGTERM})
        loop.call(server.leave(5.0))
        if revision is not None:
            service.close()


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
