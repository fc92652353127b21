"""The ranking service: decodes candidates and tells how well CLIP finds that they fit their caption."""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial

from torch import Tensor

from pipelines.core.swarm.streams.conversation import Conversation
from pipelines.core.swarm.streams.quotas import Quota
from pipelines.core.swarm.streams.refusals import Refusal
from pipelines.features.serving.draw.ranking.requests import AT_ONCE, MOST_TENSOR_BYTES, SERVICE, RankRequest
from pipelines.features.serving.draw.service import IDLE_SECONDS
from pipelines.features.serving.fair_thread import FairThread
from pipelines.tasks.text_to_image.generation.text_to_image import RanksPictures


class RankService:
    """Answers conversations; in the event loop of the peer's streams."""

    name, most_tensor_bytes = SERVICE, MOST_TENSOR_BYTES

    def __init__(self, clip: str, parts: RanksPictures, places: Quota, is_paused: Callable[[], bool]) -> None:
        """`clip` is how the run names its CLIP; `places` bounds the candidates that wait or are scored."""
        self.clip, self._parts, self._places, self._is_paused = clip, parts, places, is_paused
        self._thread = FairThread("ranking")

    def about(self) -> Mapping[str, object]:
        """See `Service`: with which CLIP it ranks."""
        return dict(clip=self.clip)

    async def serve(self, conversation: Conversation) -> None:
        """Score what one peer asks for, one request after the other, until it asks for no more.

        A request gets messages with the next scores, (candidate) float32, until each candidate has one.
        """
        while True:
            message = await conversation.receive(IDLE_SECONDS)
            client = conversation.client
            asked = RankRequest.from_message(message.body, message.tensors, self._parts.codec.config)
            with self._places.taken_during(client, len(asked.codes)):
                for codes in asked.codes.split(AT_ONCE):
                    if self._is_paused():
                        raise Refusal("leaving", "The server is paused by its owner.")
                    # Turns go by addresses: whoever makes himself many peers has no more of them.
                    turn = self._thread.submit(client.address, partial(self._scores, asked.caption, codes))
                    await conversation.send({}, dict(scores=await asyncio.wrap_future(turn)))

    def close(self) -> None:
        """Score nothing more."""
        self._thread.close()

    def _scores(self, caption: str, codes: Tensor) -> Tensor:
        reranker = self._parts.reranker
        return reranker.scores(caption, self._parts.codec.decode(codes.to(reranker.device)))
