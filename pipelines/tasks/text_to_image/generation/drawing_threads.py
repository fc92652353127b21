"""Codes are drawn with the number of threads that is fastest on this machine at present."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from pipelines.features.local_computation.thread_choice import ThreadChoice, halves
from pipelines.features.torch_devices import wanted_threads

PASSES_TO_SETTLE = 16
"""In the first passes the model looks for the number of codes that one should guess."""

PASSES_OF_A_STEP = 8
"""Some passes find many codes and some one; together they are like each other."""


class DrawingThreads:
    """Measures the threads by the passes of a drawing. Pure: it is told of them, and says how many the next one takes.

    `clock` gives seconds.
    """

    def __init__(self, numbers: Sequence[int], clock: Callable[[], float] = time.monotonic) -> None:
        self._choice, self._clock = ThreadChoice(numbers), clock
        self._num_passes = self._done = 0
        self._since = clock()

    @property
    def num_threads(self) -> int:
        """With how many threads to go on."""
        return self._choice.num_threads

    def note(self, done: int) -> None:
        """Take note of another pass, after which so many codes are drawn."""
        self._num_passes += 1
        if self._num_passes < PASSES_TO_SETTLE or self._num_passes % PASSES_OF_A_STEP:
            return
        now = self._clock()
        if self._num_passes > PASSES_TO_SETTLE and done > self._done:
            self._choice.note(now - self._since, done - self._done)
        self._since, self._done = now, done


@contextmanager
def measured_threads(device: torch.device) -> Iterator[Callable[[int], None]]:
    """Give a function to call after each pass, with how many codes are drawn; it changes this thread's number.

    It stays as it is on another device, and where the person has said how many (OMP_NUM_THREADS); at the end it is as
    it was.
    """
    before = torch.get_num_threads()
    if device.type != "cpu" or wanted_threads(None, os.environ) is not None:
        yield lambda done: None
        return
    threads = DrawingThreads(halves(before))

    def note(done: int) -> None:
        threads.note(done)
        if threads.num_threads != torch.get_num_threads():
            torch.set_num_threads(threads.num_threads)

    try:
        yield note
    finally:
        torch.set_num_threads(before)
