"""What open sessions keep in memory when the served layers are replaced."""

import asyncio

import pytest
from tiny_models import tiny_dalle

from pipelines.core.swarm.streams.frames import Frame, Kind
from pipelines.core.swarm.streams.refusals import PeerGoneError, Refusal
from pipelines.core.swarm.streams.stream_clients import StreamClient
from pipelines.features.serving.blocks.client.distributed_model import local_server
from pipelines.features.serving.blocks.service import BlocksService
from pipelines.features.serving.blocks.weights import find_model


class Messages:
    """The answering end of a stream on which one message after the other comes."""

    def __init__(self, before_message):
        self.client, self.sent, self._before = StreamClient("ann", "203.0.113.7"), [], iter(before_message)

    async def receive(self, most_seconds):
        if (before := next(self._before, None)) is None:
            raise PeerGoneError("The client has left.")
        before()
        return Frame(kind=Kind.MESSAGE, body=dict(do="close"))

    async def send(self, body, tensors):
        self.sent.append(body)


def test_a_session_keeps_the_layers_that_were_replaced_once_and_not_those_that_were_replaced_twice(tmp_path):
    """Seen before: who asked for something once a minute kept the weights of every checkpoint in a server's memory."""
    tiny_dalle(tmp_path)
    layers = local_server(find_model(str(tmp_path)), range(1))
    service = BlocksService(layers)
    try:
        goes_on = Messages([lambda: None, lambda: service.use(layers), lambda: None])
        with pytest.raises(PeerGoneError):
            asyncio.run(service.serve(goes_on))
        assert len(goes_on.sent) == 3
        stays = Messages([lambda: None, lambda: (service.use(layers), service.use(layers))])
        with pytest.raises(Refusal, match="replaced twice since it began"):
            asyncio.run(service.serve(stays))
        assert len(stays.sent) == 1
    finally:
        service.close()
