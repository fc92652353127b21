"""The codec on devices: sub-batches of one fixed size, as many in flight as memory allows, codes in order.

Codes depend on the shape of the batch in their last bits, so a sub-batch always has the size that the codec's
configuration gives, the last one padded with black: neither memory, workers nor interruptions change a code.

Axis names: picture, side, num_codes.
"""

import collections
import concurrent.futures
import contextlib
import copy
import queue
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Self

import numpy as np
import torch

from hub_tools.checks import check_choice
from pipelines.tasks.text_to_image.image_codes.vqgan_codec import VQGANCodec, VQGANConfig

PRECISIONS = ("float32", "tf32", "bfloat16")
ACTIVATION_COPIES = 5
"""Activations of the first level that are in memory at a time; the published codec took 163 MB for a picture."""

SUB_BATCH_BYTES = 2**30
LARGEST_SUB_BATCH = 64
SHARE_OF_FREE_MEMORY = 0.5
MOST_IN_FLIGHT_ON_GPU = 4
"""Sub-batches: one computes while others are copied."""


def picture_bytes(config: VQGANConfig) -> int:
    """About what encoding one picture takes, beside the weights."""
    return ACTIVATION_COPIES * 4 * config.channels * (config.image_size // config.patch_size) ** 2


def sub_batch_size(config: VQGANConfig) -> int:
    """Pictures that are encoded together, a power of two: 4 with the published codec, at most 64."""
    fitting = max(1, SUB_BATCH_BYTES // picture_bytes(config))
    return int(min(LARGEST_SUB_BATCH, 2 ** (fitting.bit_length() - 1)))


def encode_pixels(
    codec: VQGANCodec, pixels: Sequence[np.ndarray], num_pictures: int, precision: str = "float32"
) -> np.ndarray:
    """Codes of at most num_pictures pictures, encoded as if there were as many.

    pixels: each (side, side, 3) uint8 -> (len(pixels), num_codes) int16. Only the network has a reduced precision:
    distances to the codebook are float32.
    """
    side, device = codec.config.image_size, codec.codebook.device
    padded = np.zeros((num_pictures, side, side, 3), np.uint8)
    padded[: len(pixels)] = pixels
    images = torch.from_numpy(padded).to(device).permute(0, 3, 1, 2).float() / 255  # (picture, 3, side, side)
    with torch.no_grad():
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16"):
            latents = codec.latents(images)
        codes = codec.nearest_codes(latents.float()).flatten(1)
    return codes[: len(pixels)].to("cpu", torch.int16).numpy()


class Encoders:
    """The codec on one or more devices, which take sub-batches as they become free."""

    def __init__(
        self,
        codec: VQGANCodec,
        *,
        devices: Sequence[str] = (),
        precision: str = "float32",
        num_threads: int = 1,
        batch_size: int | None = None,
    ):
        """devices: default, that of the codec. num_threads: most sub-batches at a time on the CPU, each in a thread of
        its own: faster than sharing small convolutions. batch_size: most pictures at a time on a device; default, what
        its free memory holds. ValueError for a precision that the device does not have."""
        check_choice("precision", precision, PRECISIONS)
        names = list(devices) or [str(codec.codebook.device)]
        if precision == "tf32" and any(torch.device(name).type != "cuda" for name in names):
            raise ValueError(f"Only GPUs know tf32; the codec is on {', '.join(names)}. Use float32 or bfloat16.")
        self.codec, self.precision = codec, precision
        self.sub_batch_size = sub_batch_size(codec.config)
        self._places: queue.SimpleQueue[VQGANCodec] = queue.SimpleQueue()
        self.num_in_flight = 0
        for number, name in enumerate(names):
            on_device = codec.to(name) if number == 0 else copy.deepcopy(codec).to(name)
            for _ in range(_places_on(name, self.sub_batch_size, codec.config, num_threads, batch_size)):
                self._places.put(on_device)
                self.num_in_flight += 1
        self._contexts = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._contexts.enter_context(_arithmetic(self.precision))
        self._threads = concurrent.futures.ThreadPoolExecutor(
            self.num_in_flight, "encoding", initializer=torch.set_num_threads, initargs=(1,)
        )
        return self

    def __exit__(self, *exception: object) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._contexts.close()

    def encoded(self, sub_batches: Iterable[Sequence[np.ndarray]]) -> Iterator[np.ndarray]:
        """The codes of each sub-batch, in order; a few sub-batches are read ahead."""
        waiting: collections.deque = collections.deque()
        for pixels in sub_batches:
            waiting.append(self._threads.submit(self._encode, pixels))
            if len(waiting) > 2 * self.num_in_flight:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def _encode(self, pixels: Sequence[np.ndarray]) -> np.ndarray:
        codec = self._places.get()
        try:
            return encode_pixels(codec, pixels, self.sub_batch_size, self.precision)
        except torch.OutOfMemoryError as error:
            raise ValueError(
                f"{codec.codebook.device} has too little memory for {self.sub_batch_size} pictures at a time, of about "
                f"{picture_bytes(codec.config) / 1e6:.0f} MB each. Stop what else uses it, or use --batch-size 1."
            ) from error
        finally:
            self._places.put(codec)


def _places_on(device: str, size: int, config: VQGANConfig, num_threads: int, batch_size: int | None) -> int:
    """How many sub-batches are in flight on a device: at least one."""
    most = num_threads if torch.device(device).type == "cpu" else MOST_IN_FLIGHT_ON_GPU
    if batch_size is not None:
        return max(1, min(most, batch_size // size))
    return max(1, min(most, int(SHARE_OF_FREE_MEMORY * _free_bytes(device)) // (size * picture_bytes(config))))


def _free_bytes(device: str) -> int:
    if torch.device(device).type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))


@contextlib.contextmanager
def _arithmetic(precision: str) -> Iterator[None]:
    """Let GPUs compute as the precision says: torch's own default for convolutions is tf32, and any algorithm."""
    wanted = "tf32" if precision == "tf32" else "ieee"
    settings = (torch.backends.cudnn.conv, torch.backends.cuda.matmul)
    before, was_deterministic = [setting.fp32_precision for setting in settings], torch.backends.cudnn.deterministic
    for setting in settings:
        setting.fp32_precision = wanted
    torch.backends.cudnn.deterministic = True
    try:
        yield
    finally:
        torch.backends.cudnn.deterministic = was_deterministic
        for setting, value in zip(settings, before, strict=True):
            setting.fp32_precision = value
