"""Draws for many clients in turn, in one thread: a step of each job after the other, and equal jobs together.

A job is a stream of codes that yields after some places; so one long drawing keeps nobody waiting, and who asks for
much gets no more of the machine than who asks for little. Jobs of strangers share a batch only if everything that
decides a tensor's shape is equal, and has been checked.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import PreTrainedModel

from pipelines.features.serving.draw.modalities.choice import modality_of
from pipelines.features.serving.draw.requests import DrawRequest

logger = logging.getLogger(__name__)

MOST_JOBS_AT_ONCE = 4
"""Batches in turn, or clients with one: more only make each other slower."""

MOST_SAMPLES_TOGETHER = 64


@dataclass(eq=False, kw_only=True)
class Job:
    """One request that waits or is drawn."""

    client: Hashable
    model: PreTrainedModel
    request: DrawRequest
    tell: Callable[[Tensor | Exception | None], None]
    """Called in the engine's thread with new codes, (candidate, places) int32; at last with None, or an error."""

    is_cancelled: bool = False
    num_told: int = field(default=0, init=False)

    @property
    def kind(self) -> tuple[Hashable, ...]:
        """Jobs of the same kind can share a batch."""
        sampling = self.request.sampling
        lengths = (len(self.request.candidates), sampling.input_ids.shape[1], sampling.num_given, sampling.every)
        return (id(self.model), *lengths, sampling.options)


class DrawEngine:
    """Use as a context manager; `submit` may be called from any thread."""

    def __init__(self, *, most_codes_per_second: float | None = None) -> None:
        """`most_codes_per_second`: what the machine's owner gives at most."""
        self._waiting: dict[Hashable, deque[Job]] = {}
        self._turns: deque[Hashable] = deque()
        """Clients with waiting jobs, the one whose turn is next in front."""

        self._active: dict[Hashable, deque[tuple[list[Job], Iterator[Tensor]]]] = {}
        """Batches by client, the one whose turn is next in front."""

        self._changed = threading.Condition()
        self._is_over = False
        self.is_paused = False
        self._pace = None if most_codes_per_second is None else _Pace(most_codes_per_second)
        self.num_drawn = 0
        """Candidates finished."""

        self._thread = threading.Thread(target=self._run, name="drawing", daemon=True)

    def __enter__(self) -> "DrawEngine":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify()
        self._thread.join()

    def submit(self, job: Job) -> None:
        """Draw a job when its client's turn has come."""
        with self._changed:
            if job.client not in self._waiting:
                self._waiting[job.client] = deque()
                self._turns.append(job.client)
            self._waiting[job.client].append(job)
            self._changed.notify()

    def cancel(self, job: Job) -> None:
        """Draw no more of a job; nothing is told of it any more."""
        with self._changed:
            job.is_cancelled = True
            if job in (waiting := self._waiting.get(job.client, deque())):
                waiting.remove(job)
            self._changed.notify()

    def pause(self, is_paused: bool) -> None:
        """Begin nothing and continue nothing, until told otherwise."""
        with self._changed:
            self.is_paused = is_paused
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_over or (self._has_work() and not self.is_paused))
                if self._is_over:
                    return
                while batch := self._next_batch():
                    self._active.setdefault(batch[0].client, deque()).append((batch, _streamed(batch)))
            if self._active:
                self._step()

    def _has_work(self) -> bool:
        return bool(self._turns or self._active)

    def _step(self) -> None:
        """Take one batch of the next client further, and put the client behind the others."""
        client = next(iter(self._active))
        batches = self._active.pop(client)
        batch, stream = batches.popleft()
        try:
            if not all(job.is_cancelled for job in batch) and self._draw_on(batch, stream):
                batches.append((batch, stream))
        except Exception as error:  # of the model, or memory is short; the others' jobs go on
            logger.exception("Drawing failed.")
            for job in batch:
                self._tell(job, error)
        if batches:
            self._active[client] = batches

    def _draw_on(self, batch: list[Job], stream: Iterator[Tensor]) -> bool:
        """Draw the next codes; return whether there may be more."""
        before, started = batch[0].num_told, time.monotonic()
        codes = next(stream, None)
        if codes is None:
            self.num_drawn += sum(len(job.request.candidates) for job in batch)
            for job in batch:
                self._tell(job, None)
            return False
        for job, own in zip(batch, codes, strict=True):  # (candidate, number)
            if (new := own[:, max(job.num_told, job.request.sampling.num_given) :]).shape[1]:
                self._tell(job, new.int().cpu())
            job.num_told = own.shape[1]
        if self._pace is not None:
            self._pace.keep(codes.shape[0] * codes.shape[1] * (codes.shape[2] - before), started)
        return True

    def _tell(self, job: Job, news: Tensor | Exception | None) -> None:
        try:
            if not job.is_cancelled:
                job.tell(news)
        except Exception as error:  # whoever asked is gone: the others' jobs go on
            logger.debug("Nobody hears of a job: %r", error)
            job.is_cancelled = True

    def _next_batch(self) -> list[Job]:
        """Take the next client's oldest job, and equal ones of other clients, from those that wait."""
        batch: list[Job] = []
        for client in list(self._turns):
            waiting = self._waiting[client]
            if waiting and (_fits(batch, waiting[0]) if batch else self._may_begin(client)):
                batch.append(waiting.popleft())
                self._turns.remove(client)
                self._turns.append(client)
            if not waiting:
                del self._waiting[client]
                self._turns.remove(client)
        return batch

    def _may_begin(self, client: Hashable) -> bool:
        """Tell whether a batch of a client may begin: nobody who has none waits for the many of another."""
        if client in self._active:
            return sum(map(len, self._active.values())) < MOST_JOBS_AT_ONCE
        return len(self._active) < MOST_JOBS_AT_ONCE


def _fits(batch: Sequence[Job], job: Job) -> bool:
    num_samples = sum(len(other.request.candidates) for other in [*batch, job])
    return job.kind == batch[0].kind and num_samples <= MOST_SAMPLES_TOGETHER


def _streamed(batch: Sequence[Job]) -> Iterator[Tensor]:
    """Yield the codes of equal jobs so far: (job, candidate, number) int64."""
    model, requests = batch[0].model, [job.request.sampling for job in batch]
    numbers = [job.request.sampling.numbers(job.request.candidates, model.config) for job in batch]
    yield from modality_of(model.config).stream(model, requests, torch.cat(numbers), len(batch[0].request.candidates))


class _Pace:
    """Sleeps so that no more codes a second are drawn than allowed."""

    def __init__(self, most_per_second: float) -> None:
        self._most, self._free_from = most_per_second, 0.0

    def keep(self, number: int, started: float) -> None:
        """Sleep until so many codes, on which work began at `started`, may be there; idle time is not made up for."""
        self._free_from = max(self._free_from, started) + number / self._most
        time.sleep(max(0.0, self._free_from - time.monotonic()))
