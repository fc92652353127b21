"""Draws for programs on this machine with what is served to others, as one client among them."""

import dataclasses
import io
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from pipelines.features.serving.draw.checkpoints import ServedCheckpoint, ServedCheckpoints
from pipelines.features.serving.draw.engine import DrawEngine, Job
from pipelines.features.serving.draw.http.picture_requests import PictureRequest
from pipelines.features.serving.draw.http.refused import RefusedRequestError, bad
from pipelines.features.serving.draw.http.text_answers import WrittenText, WrittenTexts, certain_part, until_stop
from pipelines.features.serving.draw.http.text_requests import TextRequest
from pipelines.features.serving.draw.modalities.choice import modality_of
from pipelines.features.serving.draw.modalities.texts import finished_text
from pipelines.features.serving.draw.requests import DrawRequest, SamplingRequest
from pipelines.tasks.text_to_image.image_codes.thumbnails import to_picture

CLIENT = "this machine"
MOST_AT_ONCE = 4
SECONDS_TO_DRAW = 3600.0


class LocalDrawing:
    """Any thread may use it."""

    def __init__(self, checkpoints: ServedCheckpoints, engine: DrawEngine) -> None:
        self._checkpoints, self._engine = checkpoints, engine
        self._places, self._decoding = threading.BoundedSemaphore(MOST_AT_ONCE), threading.Lock()

    def pictures(self, asked: PictureRequest) -> list[bytes]:
        """Return pictures as PNG files; raises `RefusedRequestError` if too many are being drawn."""
        with self._checkpoint() as checkpoint:
            parts: Any = checkpoint.parts
            ids = modality_of(parts.model.config).ids_of(parts.processor, asked.prompt)
            sampling = self._sampling(checkpoint, ids, asked)
            *_, codes = self._drawn(checkpoint, sampling, asked.number)
            with self._decoding, torch.no_grad():
                images = parts.codec.decode(codes.to(parts.model.device))
        return [_png(image) for image in images]

    def texts(self, asked: TextRequest) -> Iterator[WrittenTexts]:
        """Yield what is there of the texts, at first nothing and at last all; stopping the iteration stops the writing.

        Raises `RefusedRequestError` if too many are being written, or the prompt is too long; mostly at once.
        """
        with self._checkpoint() as checkpoint:
            config, tokenizer = checkpoint.parts.model.config, checkpoint.parts.processor
            ids = self._ids(checkpoint, asked)
            room = config.max_position_embeddings - ids.shape[1]
            if not ids.shape[1]:
                raise bad("The prompt has no tokens.")
            if room < 1:
                raise bad(
                    f"The prompt has {ids.shape[1]} tokens; this model reads {config.max_position_embeddings} in all."
                )
            most = min(room, asked.options.num_image_codes or room)
            options = dataclasses.replace(asked.options, num_image_codes=most)
            sampling = dataclasses.replace(self._sampling(checkpoint, ids, asked), options=options)

            def seen(row: Tensor) -> WrittenText:
                finished = finished_text(tokenizer, row, config)
                text, is_stopped = until_stop(finished.text, asked.stops)
                reason = "stop" if is_stopped or finished.has_ended else "length" if len(row) == most else None
                text = text if reason else certain_part(text, asked.stops)
                return WrittenText(text=text, num_tokens=finished.num_tokens, finish_reason=reason)

            yield WrittenTexts(num_prompt_tokens=ids.shape[1], texts=())
            for tokens in self._drawn(checkpoint, sampling, asked.number):
                written = WrittenTexts(num_prompt_tokens=ids.shape[1], texts=[seen(row) for row in tokens])
                yield written
                if tokens.shape[1] < most and all(text.finish_reason for text in written.texts):
                    return

    def _ids(self, checkpoint: ServedCheckpoint, asked: TextRequest) -> Tensor:
        tokenizer = checkpoint.parts.processor
        if asked.prompt is not None:
            return modality_of(checkpoint.parts.model.config).ids_of(tokenizer, asked.prompt)
        if not getattr(tokenizer, "chat_template", None):
            raise bad(
                "This run's tokenizer has no chat template, so its model was not made for chats. Ask for the "
                "continuation of a text: POST /v1/completions"
            )
        messages = [dataclasses.asdict(message) for message in asked.messages]
        try:
            text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        except Exception as error:  # a template is a program of the run's, which refuses messages in its own way
            raise bad(f"The run's chat template refuses these messages: {str(error)[:200]}") from error
        return torch.tensor([tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]], dtype=torch.int64)

    @contextmanager
    def _checkpoint(self) -> Iterator[ServedCheckpoint]:
        if not self._places.acquire(blocking=False):
            raise RefusedRequestError(429, "rate_limit_error", f"{MOST_AT_ONCE} requests are being drawn; try later.")
        try:
            with self._checkpoints.in_use() as used:
                checkpoint = self._checkpoints.current
                used.add(checkpoint.revision)
                yield checkpoint
        finally:
            self._places.release()

    def _sampling(
        self, checkpoint: ServedCheckpoint, ids: Tensor, asked: PictureRequest | TextRequest
    ) -> SamplingRequest:
        return SamplingRequest(
            revision=checkpoint.revision,
            precision=self._checkpoints.precision,
            tokenizer=checkpoint.tokenizer,
            input_ids=ids,
            seed=asked.seed,
            options=asked.options,
            every=modality_of(checkpoint.parts.model.config).every(checkpoint.parts.model.config),
        )

    def _drawn(self, checkpoint: ServedCheckpoint, sampling: SamplingRequest, number: int) -> Iterator[Tensor]:
        """Yield the codes of candidates as they come, all so far: (candidate, place) int64."""
        news = queue.Queue[Tensor | Exception | None]()
        request = DrawRequest(sampling=sampling, candidates=range(number))
        job = Job(client=CLIENT, model=checkpoint.parts.model, request=request, tell=news.put)
        self._engine.submit(job)
        codes = torch.empty(number, 0, dtype=torch.int64)
        try:
            while (what := news.get(timeout=SECONDS_TO_DRAW)) is not None:
                if isinstance(what, Exception):
                    raise RefusedRequestError(500, "server_error", f"The model cannot draw: {what}")
                codes = torch.cat([codes, what.long()], dim=1)
                yield codes
        except queue.Empty:
            raise RefusedRequestError(503, "server_error", "The drawing took too long.") from None
        finally:
            self._engine.cancel(job)


def _png(image: Tensor) -> bytes:
    file = io.BytesIO()
    to_picture(image).save(file, format="PNG")
    return file.getvalue()
