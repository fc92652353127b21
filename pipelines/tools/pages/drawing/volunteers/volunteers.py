"""Volunteers' servers, for a page: pictures' codes for a prompt, and who has drawn them."""

import json
import logging
import queue
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pipelines.tasks.text_to_image.generation.generation_options import GenerationOptions
from pipelines.tasks.text_to_image.generation.progressive_drawing import NUM_PREVIEWED
from pipelines.tools.pages.drawing.volunteers import client_program
from pipelines.tools.pages.line_program import LineProgram

logger = logging.getLogger(__name__)

SECONDS_TO_START = 180.0
SECONDS_OF_SILENCE = 20.0
"""A program that is silent for this long hangs, and is ended."""

TICK_SECONDS = 1.0


class VolunteersError(ValueError):
    """Nobody draws, or nobody can be asked; the message says why."""


@dataclass(frozen=True, kw_only=True)
class VolunteerOptions:
    """How volunteers are asked."""

    precision: str = "float32"
    """One of `PRECISIONS`."""
    audits: bool = False
    """Whether a sample is checked, for which the weights are downloaded."""
    patience_seconds: float = 60.0
    """How long it is waited for somebody who draws."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What is there of a drawing; nothing at first, while servers are looked for."""

    num_done: int = 0
    """Codes drawn, of all candidates."""
    num_total: int = 0
    """Codes to draw; 0: not known yet."""
    known: Sequence[Tensor] = ()
    """The codes that are there of the first candidates, (number,) int64 each."""


@dataclass(frozen=True, kw_only=True)
class DrawnByVolunteers:
    """A finished drawing."""

    image_codes: Tensor
    """(candidate, image) int64."""
    drawn_by: Sequence[str]
    """A stranger's name for each candidate."""
    remarks: Sequence[str] = field(default=())
    """Sentences about who has drawn, and whether it was checked."""


class Volunteers:
    """Asks the servers of a run; a program does it, which is started when it is first needed and after it has ended."""

    def __init__(self, repository: str, options: VolunteerOptions) -> None:
        self.repository, self.options = repository, options
        self._client: _StreamClient | None = None
        self._lock = threading.Lock()

    def draw(
        self, commit: str | None, prompt: str, options: GenerationOptions, image_prompt: Tensor | None = None
    ) -> Iterator[Progress | DrawnByVolunteers]:
        """Yield what is there, at least once in a while, and then the drawing; stopping the iteration stops it.

        `commit` is that of the checkpoint; `image_prompt: (given,)` are the codes that every picture starts with.

        Raises:
            VolunteersError: nobody draws, or the program that asks has failed.
        """
        with self._lock:
            if self._client is None or self._client.end_reason or self._client.commit != commit:
                self.close()
                self._client = _StreamClient(self.repository, commit, self.options)
            client = self._client
        yield from client.draw(
            dict(
                prompt=prompt,
                num_candidates=options.num_candidates,
                num_previewed=NUM_PREVIEWED,
                seed=options.seed,
                image_prompt=None if image_prompt is None else image_prompt.tolist(),
                sampling=options.chosen,
            )
        )

    def close(self) -> None:
        """End the program that asks."""
        if self._client is not None:
            self._client.end("The page asks for another checkpoint now.")


class _StreamClient:
    """The program that asks for drawings of one checkpoint, from its start to its end."""

    def __init__(self, repository: str, commit: str | None, options: VolunteerOptions) -> None:
        self.commit, self.end_reason = commit, ""
        self._news: dict[int, queue.SimpleQueue[Mapping[str, Any]]] = {}
        self._num_asked, self._deadline = 0, time.monotonic() + SECONDS_TO_START
        self._program = LineProgram(client_program.__name__, self._hear)
        self._program.send(
            dict(
                repository=repository,
                revision=commit,
                precision=options.precision,
                audits=options.audits,
                patience_seconds=options.patience_seconds,
            )
        )

    def draw(self, asked: Mapping[str, object]) -> Iterator[Progress | DrawnByVolunteers]:
        self._num_asked += 1
        number, latest = self._num_asked, Progress()
        news = self._news[number] = queue.SimpleQueue()
        self._program.send(dict(asked, number=number))
        try:
            while True:
                try:
                    what = news.get(timeout=TICK_SECONDS)
                    while "known" in what and not news.empty():
                        what = news.get()  # only the newest counts: decoding a preview may take longer than drawing it
                except queue.Empty:
                    if time.monotonic() > self._deadline:
                        self.end("The program that asks the volunteers hangs. Press Draw again.")
                    if self.end_reason:
                        raise VolunteersError(self.end_reason) from None
                    yield latest
                    continue
                if "problem" in what:
                    raise VolunteersError(what["problem"])
                if "codes" in what:
                    yield DrawnByVolunteers(
                        image_codes=torch.tensor(what["codes"]), drawn_by=what["drawn_by"], remarks=what["remarks"]
                    )
                    return
                known = [torch.tensor(codes) for _, codes in what["known"]]
                latest = Progress(num_done=what["done"], num_total=what["total"], known=known)
                yield latest
        finally:
            del self._news[number]
            self._program.send(dict(stop=number))

    def end(self, reason: str) -> None:
        self.end_reason = self.end_reason or reason
        self._program.end()

    def _hear(self, line: str | None) -> None:
        try:
            what = {"problem": "The program that asks the volunteers has ended."} if line is None else json.loads(line)
        except ValueError:
            logger.warning("A line of the program that asks volunteers is not JSON: %.200s", line)
            return
        self._deadline = time.monotonic() + SECONDS_OF_SILENCE
        if what.get("is_last", "number" not in what):
            self.end_reason = self.end_reason or what.get("problem", "")
        if (news := self._news.get(what.get("number"))) is not None:
            news.put(what)
