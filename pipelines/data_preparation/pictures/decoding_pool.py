"""Decodes pictures in processes that may die: who is at fault is found, and nobody else loses anything."""

import collections
import concurrent.futures
import contextlib
import json
import os
import queue
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Self

from pipelines.data_preparation.caption_image_sources import CaptionImage
from pipelines.data_preparation.filtering import DropReason, drop_reason
from pipelines.data_preparation.pictures import decoding_process
from pipelines.data_preparation.pictures.decoding import SquarePicture
from pipelines.data_preparation.pictures.picture_options import DecodingSettings

PROGRAM = ("-m", decoding_process.__name__)
SAMPLES_AHEAD_PER_WORKER = 16
MOST_BYTES_AHEAD = 64 * 2**20
"""Of pictures that wait for a decoder: more samples are not read until some are done."""

SECONDS_PER_PICTURE = 600
"""Until a process that neither answers nor computes is given up; one that computes ends itself much earlier."""

LARGEST_HEADER_BYTES = 2**10
LARGEST_THUMBNAIL_BYTES = 2**16

MEMORY_VARIABLES = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": str(2**22), "MALLOC_TRIM_THRESHOLD_": str(2**24)}
"""So that a large picture's memory goes back to the machine: glibc would keep blocks of up to 32 MiB."""


class DecodingError(RuntimeError):
    """Decoding processes that do not even start."""


class DecoderDiedError(Exception):
    """A decoding process that ended, or talked nonsense, instead of answering."""


class DecodingProcess:
    """One process; `ask` once at a time. Everything it says is checked: a picture may have taken it over."""

    def __init__(self, settings: DecodingSettings, program: Sequence[str] = PROGRAM):
        self.settings = settings
        ours, theirs = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", SECONDS_PER_PICTURE, 0))
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", *program, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), **MEMORY_VARIABLES},
                process_group=0,  # Ctrl-C is for the parent
            )
        self.connection = Connection(ours.detach())
        with self._death_noticed():
            self.connection.send_bytes(json.dumps(asdict(settings)).encode())
            self.connection.recv_bytes(len(b"ready"))

    def ask_square(self, image_bytes: bytes) -> SquarePicture | DropReason:
        """The picture as a square, or why not; DecoderDiedError if the process died of it."""
        header, body = self._ask(decoding_process.SQUARE, image_bytes, 3 * self.settings.side**2)
        with self._death_noticed():
            if "reason" in header:
                return DropReason(header["reason"])
            width, height = int(header["width"]), int(header["height"])
            if len(body) != 3 * self.settings.side**2 or min(width, height) < 1 or max(width, height) >= 2**31:
                raise ValueError(f"{len(body)} bytes for a picture of {width} x {height}")
            return SquarePicture(pixels=body, width=width, height=height)

    def ask_thumbnail(self, image_bytes: bytes) -> bytes | None:
        """A small JPEG for people, None if nothing can be seen; DecoderDiedError if the process died of it."""
        return self._ask(decoding_process.THUMBNAIL, image_bytes, LARGEST_THUMBNAIL_BYTES)[1] or None

    def _ask(self, kind: bytes, image_bytes: bytes, most_bytes: int) -> tuple[dict, bytes]:
        with self._death_noticed():
            self.connection.send_bytes(kind + image_bytes)
            header, _, body = self.connection.recv_bytes(LARGEST_HEADER_BYTES + most_bytes).partition(b"\n")
            return json.loads(header), body

    @contextlib.contextmanager
    def _death_noticed(self) -> Iterator[None]:
        try:
            yield
        except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
            self.kill()
            raise DecoderDiedError(f"exit status {self.process.returncode}: {error!r}") from error

    def kill(self) -> None:
        """End it, whatever it does."""
        self.process.kill()
        self.process.wait()
        self.connection.close()


class DecodingPool:
    """A few decoding processes, each with a thread that waits for it.

    A picture whose decoder died is tried once more, in a fresh process while all others rest: the kernel may have taken
    the process for the memory of others. Dying again, it is dropped.
    """

    def __init__(self, settings: DecodingSettings, num_workers: int, program: Sequence[str] = PROGRAM):
        self.settings, self.program = settings, program
        self.num_workers = num_workers
        self._threads = concurrent.futures.ThreadPoolExecutor(num_workers, "decoding")
        self._idle: queue.SimpleQueue[DecodingProcess] = queue.SimpleQueue()
        self._turns = threading.Semaphore(num_workers)
        self._alone = threading.Lock()
        self._started: list[DecodingProcess] = []
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._is_closed = True
        for process in self._started:
            process.process.kill()  # the threads that wait for it notice
        self._threads.shutdown(wait=True, cancel_futures=True)
        for process in self._started:
            process.kill()

    def decoded(self, samples: Iterable[CaptionImage]) -> Iterator[tuple[CaptionImage, SquarePicture | DropReason]]:
        """Every sample in its order, with its square picture or why it is dropped; what is dropped for its caption or
        labels is not decoded.

        DecodingError if decoding processes do not start.
        """
        waiting: collections.deque = collections.deque()
        num_bytes = 0
        for sample in samples:
            waiting.append((sample, self._threads.submit(self.decode, sample)))
            num_bytes += len(sample.image_bytes or b"")
            while len(waiting) > SAMPLES_AHEAD_PER_WORKER * self.num_workers or num_bytes > MOST_BYTES_AHEAD:
                first, future = waiting.popleft()
                num_bytes -= len(first.image_bytes or b"")
                yield first, future.result()
        while waiting:
            first, future = waiting.popleft()
            yield first, future.result()

    def decode(self, sample: CaptionImage) -> SquarePicture | DropReason:
        """One sample's square picture, or why it is dropped."""
        if reason := drop_reason(sample, self.settings.policy):
            return reason
        try:
            with self._turns, self._process() as process:
                return process.ask_square(sample.image_bytes)
        except DecoderDiedError:
            return self._decode_alone(sample)

    def thumbnail(self, image_bytes: bytes) -> bytes | None:
        """A small JPEG for people, None if nothing can be seen."""
        try:
            with self._turns, self._process() as process:
                return process.ask_thumbnail(image_bytes)
        except DecoderDiedError:
            return None

    def _decode_alone(self, sample: CaptionImage) -> SquarePicture | DropReason:
        with self._alone, contextlib.ExitStack() as turns:
            for _ in range(self.num_workers):
                turns.enter_context(self._turns)
            try:
                with self._process() as process:
                    return process.ask_square(sample.image_bytes)
            except DecoderDiedError:
                return DropReason.DECODING_FAILED

    @contextlib.contextmanager
    def _process(self) -> Iterator[DecodingProcess]:
        """A process that is idle, or a new one."""
        if self._is_closed:
            raise concurrent.futures.CancelledError
        try:
            process = self._idle.get_nowait()
        except queue.Empty:
            process = self._new_process()
        try:
            yield process
        except DecoderDiedError:
            raise
        except BaseException:
            process.kill()
            raise
        self._idle.put(process)

    def _new_process(self) -> DecodingProcess:
        self._started = [process for process in self._started if process.process.returncode is None]
        try:
            process = DecodingProcess(self.settings, self.program)
        except DecoderDiedError as error:
            raise DecodingError(
                f"A decoding process does not start ({error.args[0]}). What it printed is above; "
                f"try it: {sys.executable} -c 'import {decoding_process.__name__}'"
            ) from error
        self._started.append(process)
        return process
