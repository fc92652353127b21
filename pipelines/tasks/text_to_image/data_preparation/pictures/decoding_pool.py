"""Decodes pictures in processes that may die: who is at fault is found, and nobody else loses anything."""

import collections
import concurrent.futures
import contextlib
import itertools
import json
import os
import queue
import socket
import struct
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Self

from hub_tools.processes.child_process import ChildProcess
from pipelines.tasks.text_to_image.data_preparation.filtering import DropReason, drop_reason
from pipelines.tasks.text_to_image.data_preparation.pictures import decoding_process
from pipelines.tasks.text_to_image.data_preparation.pictures.decoding import SquarePicture
from pipelines.tasks.text_to_image.data_preparation.pictures.picture_options import DecodingSettings
from pipelines.tasks.text_to_image.data_preparation.sources.sample import CaptionImage

PROGRAM = ("-m", decoding_process.__name__)
SAMPLES_PER_GROUP = 8
"""Samples that a process decodes for one message: less than that, and messages cost as much as small pictures."""

MOST_BYTES_PER_GROUP = 2**20
GROUPS_AHEAD_PER_WORKER = 3
MOST_BYTES_AHEAD = 64 * 2**20
"""Of pictures that wait for a decoder: more samples are not read until some are done."""

SECONDS_PER_ANSWER = 3600
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
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", SECONDS_PER_ANSWER, 0))
        with theirs:
            self.process = ChildProcess(
                [sys.executable, "-P", *program, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                env={**os.environ, "PYTHONPATH": _python_path(), **MEMORY_VARIABLES},
            )
        self.connection = Connection(ours.detach())
        with self._death_noticed():
            self.connection.send_bytes(json.dumps(asdict(settings)).encode())
            self.connection.recv_bytes(len(b"ready"))

    def ask_squares(self, pictures: Sequence[bytes]) -> list[SquarePicture | DropReason]:
        """The pictures as squares, or why not; DecoderDiedError if the process died of one of them."""
        num_bytes = 3 * self.settings.side**2
        with self._death_noticed():
            headers, body = self._ask(decoding_process.SQUARE, pictures, num_bytes)
            bodies = (body[start : start + num_bytes] for start in itertools.count(0, num_bytes))
            answers = [
                DropReason(h["reason"]) if "reason" in h else _square(h, next(bodies), num_bytes) for h in headers
            ]
            if len(answers) != len(pictures):
                raise ValueError(f"{len(answers)} answers for {len(pictures)} pictures")
            return answers

    def ask_thumbnail(self, image_bytes: bytes) -> bytes | None:
        """A small JPEG for people, None if nothing can be seen; DecoderDiedError if the process died of it."""
        with self._death_noticed():
            return self._ask(decoding_process.THUMBNAIL, [image_bytes], LARGEST_THUMBNAIL_BYTES)[1] or None

    def _ask(self, kind: bytes, pictures: Sequence[bytes], most_bytes: int) -> tuple[list[dict], bytes]:
        self.connection.send_bytes(decoding_process.request_for(kind, pictures))
        answer = self.connection.recv_bytes(len(pictures) * (LARGEST_HEADER_BYTES + most_bytes))
        headers, _, body = answer.partition(b"\n")
        return json.loads(headers), body

    @contextlib.contextmanager
    def _death_noticed(self) -> Iterator[None]:
        try:
            yield
        except (OSError, EOFError, ValueError, KeyError, TypeError, RecursionError) as error:
            self.kill()
            raise DecoderDiedError(f"exit status {self.process.returncode}: {error!r}") from error

    def kill(self) -> None:
        """End it, whatever it does."""
        self.process.end()
        self.connection.close()


def _python_path() -> str:
    """So that a decoder imports the package of its parent, wherever that comes from."""
    return os.pathsep.join([str(Path(__file__).parents[5]), *filter(None, [os.environ.get("PYTHONPATH")])])


def _square(header: dict, pixels: bytes, num_bytes: int) -> SquarePicture:
    width, height = int(header["width"]), int(header["height"])
    if len(pixels) != num_bytes or min(width, height) < 1 or max(width, height) >= 2**31:
        raise ValueError(f"{len(pixels)} bytes for a picture of {width} x {height}")
    return SquarePicture(pixels=pixels, width=width, height=height)


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
        self._list_changes = threading.Lock()
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
        for group in _grouped(samples):
            waiting.append((group, self._threads.submit(self._decode_group, group)))
            num_bytes += _num_bytes(group)
            while len(waiting) > GROUPS_AHEAD_PER_WORKER * self.num_workers or num_bytes > MOST_BYTES_AHEAD:
                first, future = waiting.popleft()
                num_bytes -= _num_bytes(first)
                yield from zip(first, future.result(), strict=True)
        while waiting:
            first, future = waiting.popleft()
            yield from zip(first, future.result(), strict=True)

    def _decode_group(self, samples: Sequence[CaptionImage]) -> list[SquarePicture | DropReason]:
        reasons = [drop_reason(sample, self.settings.policy) for sample in samples]
        pictures = [sample.image_bytes or b"" for sample, reason in zip(samples, reasons, strict=True) if not reason]
        decoded = iter(self._decode(pictures))
        return [reason or next(decoded) for reason in reasons]

    def _decode(self, pictures: Sequence[bytes]) -> list[SquarePicture | DropReason]:
        """Decode pictures together; if the decoder dies, one by one, and then the one of which it dies alone."""
        if not pictures:
            return []
        try:
            with self._turns, self._process() as process:
                return process.ask_squares(pictures)
        except DecoderDiedError:
            if len(pictures) == 1:
                return [self._decode_alone(pictures[0])]
            return [squared for picture in pictures for squared in self._decode([picture])]

    def thumbnail(self, image_bytes: bytes) -> bytes | None:
        """A small JPEG for people, None if nothing can be seen."""
        try:
            with self._turns, self._process() as process:
                return process.ask_thumbnail(image_bytes)
        except DecoderDiedError:
            return None

    def _decode_alone(self, picture: bytes) -> SquarePicture | DropReason:
        with self._alone, contextlib.ExitStack() as turns:
            for _ in range(self.num_workers):
                turns.enter_context(self._turns)
            try:
                with self._process() as process:
                    return process.ask_squares([picture])[0]
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
        try:
            process = DecodingProcess(self.settings, self.program)
        except DecoderDiedError as error:
            raise DecodingError(
                f"A decoding process does not start ({error.args[0]}). What it printed is above; "
                f"try it: {sys.executable} -c 'import {decoding_process.__name__}'"
            ) from error
        with self._list_changes:
            self._started = [one for one in self._started if one.process.returncode is None] + [process]
        return process


def _grouped(samples: Iterable[CaptionImage]) -> Iterator[list[CaptionImage]]:
    group: list[CaptionImage] = []
    for sample in samples:
        group.append(sample)
        if len(group) == SAMPLES_PER_GROUP or _num_bytes(group) > MOST_BYTES_PER_GROUP:
            yield group
            group = []
    if group:
        yield group


def _num_bytes(samples: Sequence[CaptionImage]) -> int:
    return sum(len(sample.image_bytes or b"") for sample in samples)
