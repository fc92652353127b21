"""Streaming a published dataset of image codes: bytes, requests, rate, and what a restart costs, beside other readers.

All read the same shards from an embedded Hub, through a proxy that counts bytes, each in a fresh process with an empty
cache. "Ours" is a peer with leases of the ledger. `litdata` is left out if it is not installed; it is no dependency.
"""

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from measurement import Row
from stream_readers import BATCH_SIZE, KINDS

from hub_tools.local_hub import LocalHub
from pipelines.chaos.faults.link_proxy import LinkLimits, LinkProxy, PeerLink
from pipelines.image_codes.image_code_record import ImageCodeLayout, image_code_table, write_image_code_shard

READER = Path(__file__).parent / "stream_readers.py"
LAYOUT = ImageCodeLayout(codec_fingerprint="0" * 16, codebook_size=8192, grid_size=32)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How many records a dataset has, and how they lie in its shards."""

    name: str
    num_shards: int
    records_per_shard: int

    @property
    def num_records(self) -> int:
        """In all shards."""
        return self.num_shards * self.records_per_shard

    @property
    def repository(self) -> str:
        """Where it is published."""
        return f"alice/{self.num_shards}-x-{self.records_per_shard}"


@dataclass(kw_only=True)
class Reading:
    """What one reader did."""

    bytes_first: int = 0
    """Bytes that the Hub had sent when the first sample was there."""

    num_bytes: int = 0
    figures: dict[str, Any] = field(default_factory=dict)
    """What the reader printed."""


def records(shape: Shape) -> Iterator[tuple[list[str], np.ndarray]]:
    """Numbered captions of each shard, with codes (records_per_shard, num_codes) int16, skewed by a Zipf law."""
    random = np.random.default_rng(0)
    weights = 1.0 / np.arange(1, LAYOUT.codebook_size + 1) ** 0.5
    steps = np.cumsum(weights / weights.sum())
    for shard in range(shape.num_shards):
        codes = np.searchsorted(steps, random.random((shape.records_per_shard, LAYOUT.num_codes), np.float32))
        first = shard * shape.records_per_shard
        captions = [f"picture number {first + row} of a web page" for row in range(len(codes))]
        yield captions, codes.clip(0, LAYOUT.codebook_size - 1).astype(np.int16)


def write_shape(folder: Path, shape: Shape) -> None:
    """Write shards as `dalle-collab data prepare` does."""
    folder.mkdir(parents=True)
    for shard, (captions, codes) in enumerate(records(shape)):
        write_image_code_shard(folder / f"train-{shard:05d}.parquet", image_code_table(captions, codes, LAYOUT))


def write_foreign(folder: Path, shape: Shape) -> None:
    """Write shards with the columns of `laion_100m_vqgan_f8`, as Arrow writes them unless told otherwise."""
    folder.mkdir(parents=True)
    for shard, (captions, codes) in enumerate(records(shape)):
        table = pa.table(
            dict(
                caption=captions,
                NSFW=["UNLIKELY"] * len(codes),
                original_width=pa.array([256] * len(codes), pa.int32()),
                original_height=pa.array([256] * len(codes), pa.int32()),
                code=pa.array([row.astype("<i2").tobytes() for row in codes], pa.binary()),
            )
        )
        pq.write_table(table, folder / f"train-{shard:05d}.parquet")


class Library:
    """An embedded Hub with datasets, behind a proxy that counts what it sends."""

    def __init__(self, hub: LocalHub, proxy: LinkProxy) -> None:
        self._hub, self._proxy = hub, proxy
        self.token = hub.create_user("alice")
        self._link: PeerLink = proxy.add("hub", hub.port)

    def publish(self, folder: Path, repository: str) -> None:
        """Publish a folder of shards as anybody does."""
        command = [sys.executable, "-m", "hub_tools.command_line", "publish", "dataset", str(folder), repository]
        environment = os.environ | self._hub.environment(self.token)
        subprocess.run(command, env=environment, check=True, capture_output=True)

    def limit(self, limits: LinkLimits) -> None:
        """Pace what the Hub sends."""
        self._proxy.limit("hub", limits)

    def read(
        self, kind: str, repository: str, num_records: int, *, state: Any = None, seconds_computing: float = 0.0
    ) -> Reading:
        """Let a reader read so many records from an empty cache, or fewer, if it ends before that."""
        request = dict(
            repository=repository, num_records=num_records, state=state, num_codes=LAYOUT.num_codes,
            seconds_computing=seconds_computing,
        )  # fmt: skip
        with tempfile.TemporaryDirectory() as home:
            environment = {**os.environ, **self._hub.environment(self.token), "HF_HOME": home, "HOME": home}
            environment["HF_ENDPOINT"] = f"http://127.0.0.1:{self._link.proxy_port}"
            with subprocess.Popen(
                [sys.executable, str(READER), kind, json.dumps(request)], env=environment, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            ) as process:  # fmt: skip
                return self._follow(process)

    def _follow(self, process: "subprocess.Popen[str]") -> Reading:
        assert process.stdin is not None and process.stdout is not None
        reading, before = Reading(), 0
        for line in process.stdout:
            passed = self._link.bytes_passed
            if line.strip() == "ready":
                before = passed
            elif line.strip() == "first":
                reading.bytes_first = passed - before
            elif line.startswith("{"):
                reading.num_bytes, reading.figures = passed - before, json.loads(line)
                continue
            else:
                continue  # a library's word to its user
            process.stdin.write("\n")
            process.stdin.flush()
        if not reading.figures:
            raise RuntimeError(f"A reader ended with {process.wait()} before it had read anything.")
        return reading


OURS = "ours, ledger"
LITDATA_IS_MISSING = "litdata is not installed: its rows are left out. Beside the pins: pip install litdata polars"
PACE = LinkLimits(bytes_per_second=20e6 / 8, delay_seconds=0.025)
SECONDS_OF_BATCH = 0.1


def peers() -> list[str]:
    """The other readers that are installed."""
    has_litdata = importlib.util.find_spec("litdata") is not None
    if not has_litdata:
        print(LITDATA_IS_MISSING, file=sys.stderr)
    return [kind for kind in KINDS if kind != OURS and (has_litdata or not kind.startswith("litdata"))]


def measure_streams(folder: Path, quick: bool) -> Iterator[Row]:
    """Rows of all shapes: a whole pass, a restart in the middle of it, and a slow link."""
    repeats, size = (1, 8) if quick else (3, 1)
    many = Shape(name="many small shards", num_shards=200 // size, records_per_shard=256)
    one = Shape(name="one large shard", num_shards=1, records_per_shard=65_536 // size)
    foreign = Shape(name="one row group of LAION's layout", num_shards=1, records_per_shard=32_768 // size)
    with LocalHub(folder / "hub") as hub, LinkProxy(lambda port: None) as proxy:
        library = Library(hub, proxy)
        for shape in (many, one, foreign):
            shards = folder / shape.name.replace(" ", "-").replace("'", "")
            (write_foreign if shape is foreign else write_shape)(shards, shape)
            library.publish(shards, shape.repository)
            yield from _whole_pass(library, shape, shards, repeats, litdata=shape is not foreign)
        yield from _resumed(library, many, repeats)
        library.limit(PACE)
        yield from _slow_link(library, one, 128 if quick else 8192)


def _whole_pass(library: Library, shape: Shape, shards: Path, repeats: int, *, litdata: bool) -> Iterator[Row]:
    kinds = [OURS, *(kind for kind in peers() if litdata or not kind.startswith("litdata"))]
    found = {kind: _medians([_pass_figures(library, shape, kind) for _ in range(repeats)]) for kind in kinds}
    stored = sum(path.stat().st_size for path in shards.rglob("*.parquet")) / shape.num_records
    case = f"{shape.name}, {shape.num_shards} x {shape.records_per_shard}"
    for kind in kinds[1:]:
        for metric, unit in FIGURES.items():
            yield Row(
                case=case, metric=f"{metric}, peer: {kind}", unit=unit, ours=found[OURS][metric],
                peer=found[kind][metric], floor=stored if metric == "bytes of a sample" else None,
            )  # fmt: skip


FIGURES = {
    "bytes before the first batch": "MB",
    "requests before the first batch": "1",
    "first batch after": "s",
    "samples": "1/CPU-s",
    "bytes of a sample": "B",
    "memory taken": "MB",
    "coverage": "%",
}


def _pass_figures(library: Library, shape: Shape, kind: str) -> dict[str, float]:
    reading = library.read(kind, shape.repository, shape.num_records)
    figures, numbers = reading.figures, reading.figures["numbers"]
    values = (
        reading.bytes_first / 1e6, figures["requests_first"], figures["seconds_first"],
        len(numbers) / figures["cpu_seconds"], reading.num_bytes / len(numbers), figures["bytes_held"] / 1e6,
        100 * len(set(numbers)) / shape.num_records,
    )  # fmt: skip
    return dict(zip(FIGURES, values, strict=True))


RESUMED = {
    "first batch after a restart in the middle": "s",
    "bytes before it": "MB",
    "records of the pass lost": "1",
    "records of the pass read twice": "1",
}


def _resumed(library: Library, shape: Shape, repeats: int) -> Iterator[Row]:
    kinds = [OURS, *peers()]
    found = {kind: _medians([_resume_figures(library, shape, kind) for _ in range(repeats)]) for kind in kinds}
    for kind in kinds[1:]:
        for metric, unit in RESUMED.items():
            ours, peer = found[OURS][metric], found[kind][metric]
            yield Row(case=f"{shape.name}, resumed", metric=f"{metric}, peer: {kind}", unit=unit, ours=ours, peer=peer)


def _resume_figures(library: Library, shape: Shape, kind: str) -> dict[str, float]:
    half = shape.num_records // 2 // BATCH_SIZE * BATCH_SIZE
    first = library.read(kind, shape.repository, half).figures
    # Without a state it is at the beginning again, and would never come to an end.
    rest = shape.num_records - half if first["state"] is None else shape.num_records
    second = library.read(kind, shape.repository, rest, state=first["state"])
    numbers = first["numbers"] + second.figures["numbers"]
    values = (
        second.figures["seconds_first"], second.bytes_first / 1e6, shape.num_records - len(set(numbers)),
        len(numbers) - len(set(numbers)),
    )  # fmt: skip
    return dict(zip(RESUMED, values, strict=True))


def _slow_link(library: Library, shape: Shape, num_records: int) -> Iterator[Row]:
    case = f"{shape.name}, 20 Mbit/s, 50 ms, batches of {1000 * SECONDS_OF_BATCH:.0f} ms"
    kinds = [OURS, *peers()]
    found = {
        kind: library.read(kind, shape.repository, num_records, seconds_computing=SECONDS_OF_BATCH).figures
        for kind in kinds
    }
    for kind in kinds[1:]:
        for key, metric, unit in (
            ("seconds_first", "first batch after", "s"),
            ("seconds_waited", "waited for later batches", "s"),
        ):
            yield Row(
                case=case, metric=f"{metric}, peer: {kind}", unit=unit, ours=found[OURS][key], peer=found[kind][key]
            )


def _medians(readings: list[dict[str, float]]) -> dict[str, float]:
    return {metric: statistics.median(reading[metric] for reading in readings) for metric in readings[0]}
