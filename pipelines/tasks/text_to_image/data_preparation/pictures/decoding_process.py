"""A process that decodes pictures and may die: of a bomb, of a broken decoder, by the kernel.

Usage: python -m pipelines.tasks.text_to_image.data_preparation.pictures.decoding_process SOCKET_DESCRIPTOR

It answers over the socket that it inherits, and ends when the other end is closed, so that a parent that was killed
leaves none behind. What it reads comes from its parent; what it answers is plain, since a picture may have taken it
over: a line of JSON, then bytes.
"""

import json
import os
import resource
import signal
import struct
import sys
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from PIL import AvifImagePlugin, Image

from pipelines.tasks.text_to_image.data_preparation.filtering import DropReason
from pipelines.tasks.text_to_image.data_preparation.pictures.decoding import square_picture, thumbnail
from pipelines.tasks.text_to_image.data_preparation.pictures.picture_options import DecodingSettings, PictureOptions

SQUARE, THUMBNAIL = b"S", b"T"
SPARE_BYTES = 256 * 2**20
"""Beyond the picture's own limit: its file, and what the estimate from its header leaves out."""


def serve(connection: Connection) -> None:
    """Answer requests until the other end is closed."""
    settings = DecodingSettings.from_json(json.loads(connection.recv_bytes()))
    _limit_resources(settings.options)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # decoders print a line for each fault they find
    connection.send_bytes(b"ready")
    while True:
        try:
            request = connection.recv_bytes()
        except EOFError:
            return
        answers = [_answer(request[:1], picture, settings) for picture in _pictures_in(request)]
        headers, bodies = zip(*answers, strict=True)
        connection.send_bytes(b"".join([json.dumps(headers).encode(), b"\n", *bodies]))


def request_for(kind: bytes, pictures: Sequence[bytes]) -> bytes:
    """The message that asks for something about these pictures."""
    return b"".join([kind, struct.pack(f"<I{len(pictures)}I", len(pictures), *map(len, pictures)), *pictures])


def _pictures_in(request: bytes) -> Iterator[bytes]:
    (number,) = struct.unpack_from("<I", request, 1)
    start = 5 + 4 * number
    for length in struct.unpack_from(f"<{number}I", request, 5):
        yield request[start : start + length]
        start += length


def _answer(kind: bytes, image_bytes: bytes, settings: DecodingSettings) -> tuple[dict[str, object], bytes]:
    # The default action of this signal ends the process, which no decoder's loop can prevent.
    signal.setitimer(signal.ITIMER_PROF, settings.options.cpu_seconds)
    try:
        if kind == THUMBNAIL:
            return {}, thumbnail(image_bytes, settings.options) or b""
        squared = square_picture(image_bytes, settings.side, settings.policy, settings.options)
    except MemoryError:
        return {"reason": DropReason.DECODING_FAILED.value}, b""
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    if isinstance(squared, DropReason):
        return {"reason": squared.value}, b""
    return {"width": squared.width, "height": squared.height}, squared.pixels


def _limit_resources(options: PictureOptions) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    num_bytes = _virtual_bytes() + options.memory_mib * 2**20 + SPARE_BYTES
    num_bytes = num_bytes if hard == resource.RLIM_INFINITY else min(hard, num_bytes)
    resource.setrlimit(resource.RLIMIT_AS, (num_bytes, num_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # If the machine runs out of memory, this process is what the kernel should take.
    Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    Image.MAX_IMAGE_PIXELS = None  # the memory limit decides
    AvifImagePlugin.DEFAULT_MAX_THREADS = 1


def _virtual_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(Connection(int(sys.argv[1])))
