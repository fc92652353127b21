"""From pictures to shards: how fast, the share of the VQGAN itself, bytes per sample, and what other precisions change.

Usage: python tests/benchmarks/data.py [--quick]
"""

import argparse
import io
import resource
import tarfile
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from measurement import Row, write_results
from PIL import Image

from pipelines.tasks.text_to_image.data_preparation import device_encoding
from pipelines.tasks.text_to_image.data_preparation.device_encoding import encode_pixels, sub_batch_size
from pipelines.tasks.text_to_image.data_preparation.encoding import decode_picture
from pipelines.tasks.text_to_image.data_preparation.filtering import DropReason, FilterPolicy
from pipelines.tasks.text_to_image.data_preparation.inspection.dataset_facts import collect_facts
from pipelines.tasks.text_to_image.data_preparation.shard_writing import PreparationOptions, prepare_shards
from pipelines.tasks.text_to_image.data_preparation.sources.finding import find_sources
from pipelines.tasks.text_to_image.image_codes.vqgan_codec import VQGANCodec, VQGANConfig
from pipelines.tools.demo.scenes.scene_tars import SceneTarsConfig, write_scene_tars
from pipelines.tools.demo.shipped_models import PRETRAINED_CODEC

WEB_SIDE = 256
"""Pixels of a picture that img2dataset has resized."""

JPEG_QUALITY = 90

PUBLISHED = {
    "published size": VQGANConfig(),
    "VQ-16's size": VQGANConfig(
        codebook_size=16384,
        embedding_dim=8,
        channel_multipliers=(1, 1, 2, 2, 4),
        attention_resolutions=(16,),
        quantizer="cosine",
    ),
}
"""Codecs of 256 x 256 pixels that others have published: taming's, with 1,024 codes, and LlamaGen's, with 256."""


class CodecTime:
    """CPU seconds that the codec's encoding takes in all threads, while the block lasts."""

    def __enter__(self):
        self.seconds, self._lock, self._plain = 0.0, threading.Lock(), device_encoding.encode_pixels
        device_encoding.encode_pixels = self._timed
        return self

    def __exit__(self, *exception):
        device_encoding.encode_pixels = self._plain

    def _timed(self, *arguments):
        started = time.thread_time()
        codes = self._plain(*arguments)
        with self._lock:
            self.seconds += time.thread_time() - started
        return codes


def write_web_tars(folder: Path, num_pictures: int) -> None:
    """Write smooth random pictures of WEB_SIDE pixels as JPEGs, with captions."""
    random = np.random.default_rng(0)
    folder.mkdir()
    with tarfile.open(folder / "00000.tar", "w") as tar:
        for number in range(num_pictures):
            small = Image.fromarray(random.integers(0, 256, (12, 12, 3), np.uint8))
            stored = io.BytesIO()
            small.resize((WEB_SIDE, WEB_SIDE), Image.Resampling.BICUBIC).save(stored, "JPEG", quality=JPEG_QUALITY)
            for suffix, body in (("jpg", stored.getvalue()), ("txt", f"picture number {number}".encode())):
                member = tarfile.TarInfo(f"{number:09d}.{suffix}")
                member.size = len(body)
                tar.addfile(member, io.BytesIO(body))


def cpu_seconds() -> float:
    """CPU seconds of this process and of its children that have ended."""
    uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in uses)


def measure_rate(case: str, tars: Path, codec: VQGANCodec, output: Path) -> list[Row]:
    """Prepare a dataset; return its rate and the codec's share of all CPU time."""
    started, cpu_before = time.perf_counter(), cpu_seconds()
    with CodecTime() as codec_time:
        result = prepare_shards(find_sources([tars]), codec, output, PreparationOptions())
    wall, cpu = time.perf_counter() - started, cpu_seconds() - cpu_before
    return [
        Row(case=case, metric="pictures prepared", unit="1/s", ours=result.report.kept / wall),
        Row(case=case, metric="share of the time that is the VQGAN's", unit="%", ours=100 * codec_time.seconds / cpu),
    ]


def measure_bytes(case: str, folder: Path, tars: Path, codec: VQGANCodec) -> list[Row]:
    """Bytes of a sample in our shards, beside the raw codes and a JPEG of the size that the codec sees."""
    facts = collect_facts(folder)
    ours = facts.num_bytes / facts.num_records
    floor = facts.entropy_bits * facts.layout.num_codes / 8
    peers = {"raw codes": 2.0 * facts.layout.num_codes, "a JPEG of its size": _jpeg_bytes(tars, codec)}
    return [
        Row(case=case, metric=f"bytes of a sample, peer: {name}", unit="B", ours=ours, peer=peer, floor=floor)
        for name, peer in peers.items()
    ]


def _jpeg_bytes(tars: Path, codec: VQGANCodec) -> float:
    sizes = []
    for picture in _pictures(tars, codec, 200):
        stored = io.BytesIO()
        Image.fromarray(picture).save(stored, "JPEG", quality=JPEG_QUALITY)
        sizes.append(stored.tell())
    return float(np.mean(sizes))


def _pictures(tars: Path, codec: VQGANCodec, number: int) -> list[np.ndarray]:
    found: list[np.ndarray] = []
    for sample in find_sources([tars])[0].samples():
        decoded = decode_picture(sample.image_bytes or b"", codec.config.image_size, FilterPolicy())
        found += [] if isinstance(decoded, DropReason) else [decoded[0]]
        if len(found) == number:
            break
    return found


def measure_precision(case: str, pictures: list[np.ndarray], codec: VQGANCodec) -> list[Row]:
    """The share of codes that another way to compute changes, and the error of pictures drawn from them."""
    size = sub_batch_size(codec.config)
    exact = _all_codes(codec, pictures, size, "float32")
    ways = {
        "one picture at a time": lambda: _all_codes(codec, pictures, 1, "float32"),
        "bfloat16": lambda: _all_codes(codec, pictures, size, "bfloat16"),
    }
    rows = [Row(case=case, metric="error of pictures, float32", unit="of 1", ours=_error(codec, pictures, exact))]
    for name, encode in ways.items():
        codes = encode()
        rows += [
            Row(case=case, metric=f"changed codes, {name}", unit="%", ours=100 * float((codes != exact).mean())),
            Row(case=case, metric=f"error of pictures, {name}", unit="of 1", ours=_error(codec, pictures, codes)),
        ]
    return rows


def _all_codes(codec: VQGANCodec, pictures: list[np.ndarray], size: int, precision: str) -> np.ndarray:
    parts = [pictures[start : start + size] for start in range(0, len(pictures), size)]
    return np.concatenate([encode_pixels(codec, part, size, precision) for part in parts])


def _error(codec: VQGANCodec, pictures: list[np.ndarray], codes: np.ndarray) -> float:
    errors = []
    for start in range(0, len(pictures), 4):
        drawn = codec.decode(torch.from_numpy(codes[start : start + 4]).long()).permute(0, 2, 3, 1).numpy()
        errors.append(np.abs(drawn - np.stack(pictures[start : start + 4]) / 255).mean())
    return float(np.mean(errors))


def measure_preparation(folder: Path, quick: bool) -> list[Row]:
    """All rows."""
    num_scenes, num_web, num_large = (1000, 500, 8) if quick else (10_000, 4000, 48)
    write_scene_tars(folder / "scenes", SceneTarsConfig(num_pictures=num_scenes, pictures_per_tar=2500))
    write_web_tars(folder / "web", num_web)
    write_web_tars(folder / "few", num_large)
    shipped = VQGANCodec.from_pretrained(PRETRAINED_CODEC)
    rows = measure_rate("shipped codec, the demo's pictures", folder / "scenes", shipped, folder / "scenes-codes")
    rows += measure_rate(f"shipped codec, JPEGs of {WEB_SIDE} pixels", folder / "web", shipped, folder / "web-codes")
    rows += measure_bytes("the demo's pictures", folder / "scenes-codes", folder / "scenes", shipped)
    rows += measure_precision("shipped codec", _pictures(folder / "scenes", shipped, 200 if quick else 2000), shipped)
    for name, config in PUBLISHED.items():
        rows += measure_published(name, config, folder, 4 if quick else 16)
    return rows


def measure_published(name: str, config: VQGANConfig, folder: Path, num_exact: int) -> list[Row]:
    """A codec of a published one's size with random weights: its rates are the published one's, its codes are not."""
    torch.manual_seed(0)
    codec = VQGANCodec(config).eval().requires_grad_(False)
    if config.quantizer == "cosine":
        codec.codebook.copy_(F.normalize(codec.codebook, dim=1))
    tars, output = folder / "few", folder / f"codes-{config.num_codes}"
    rows = measure_rate(f"{name}, JPEGs of {WEB_SIDE} pixels", tars, codec, output)
    rows += measure_bytes(f"{name}, random weights", output, tars, codec)
    return rows + measure_precision(f"{name}, random weights", _pictures(tars, codec, num_exact), codec)


def main() -> None:
    """Measure all, print the tables, write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer pictures: minutes instead of a quarter of an hour")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = measure_preparation(Path(folder), arguments.quick)
    print(f"written to {write_results('data', rows, is_quick=arguments.quick)}")


if __name__ == "__main__":
    main()
