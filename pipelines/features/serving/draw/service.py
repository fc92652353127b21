"""The drawing service: checks what is asked for, puts it in the queue, sends the codes as they come."""

import asyncio
from collections.abc import Mapping

from torch import Tensor

from pipelines.core.swarm.streams.conversation import Conversation
from pipelines.core.swarm.streams.quotas import Quota
from pipelines.core.swarm.streams.refusals import Refusal
from pipelines.features.serving.draw.checkpoints import ServedCheckpoints
from pipelines.features.serving.draw.engine import DrawEngine, Job
from pipelines.features.serving.draw.modalities.choice import modality_of
from pipelines.features.serving.draw.requests import MOST_TENSOR_BYTES, SERVICE, DrawRequest

IDLE_SECONDS = 60.0
"""A conversation in which nothing is asked for so long is ended."""


class DrawService:
    """Answers conversations; in the event loop of the peer's streams."""

    name, most_tensor_bytes = SERVICE, MOST_TENSOR_BYTES

    def __init__(self, checkpoints: ServedCheckpoints, engine: DrawEngine, memory: Quota, places: Quota) -> None:
        """`memory` bounds the bytes that drawings take, `places` the candidates that wait or are drawn."""
        self.checkpoints, self.engine, self.memory, self.places = checkpoints, engine, memory, places

    def about(self) -> Mapping[str, object]:
        """See `Service`: what is served."""
        return dict(revision=self.checkpoints.current.revision, precision=self.checkpoints.precision)

    async def serve(self, conversation: Conversation) -> None:
        """Draw what one peer asks for, one request after the other, until it asks for no more.

        A request gets messages with new codes, (candidate, places) int32, and then one that says that it is done.
        """
        with self.checkpoints.in_use() as used:
            while True:
                message = await conversation.receive(IDLE_SECONDS)
                if message.body.get("do") != "draw":
                    raise Refusal("invalid", "Expected a request to draw.")
                await self._draw(conversation, message.body, message.tensors, used)

    async def _draw(
        self, conversation: Conversation, body: Mapping[str, object], tensors: Mapping[str, Tensor], used: set[str]
    ) -> None:
        if self.engine.is_paused:
            raise Refusal("leaving", "The server is paused by its owner.")
        asked = DrawRequest.from_message(body, tensors, self.checkpoints.current.parts.model.config)
        checkpoint = self.checkpoints.find(asked.sampling)
        used.add(checkpoint.revision)
        client, number, model = conversation.client, len(asked.candidates), checkpoint.parts.model
        bytes_needed = modality_of(model.config).needed_bytes(asked, model.config)
        news: asyncio.Queue[Tensor | Exception | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def tell(what: Tensor | Exception | None) -> None:
            loop.call_soon_threadsafe(news.put_nowait, what)

        # Turns go by addresses: whoever makes himself many peers has no more of them.
        job = Job(client=client.address, model=model, request=asked, tell=tell)
        with self.places.taken_during(client, number), self.memory.taken_during(client, bytes_needed):
            self.engine.submit(job)
            try:
                while (what := await news.get()) is not None:
                    if isinstance(what, Exception):
                        raise Refusal("failed", f"The model cannot draw: {what}") from what
                    await conversation.send({}, dict(codes=what))
            finally:
                self.engine.cancel(job)
        await conversation.send(dict(done=True))
