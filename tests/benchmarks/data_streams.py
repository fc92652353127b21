"""Streaming a published dataset of image codes: bytes, requests, rate, and what a restart costs, beside other readers.

All read the same shards from an embedded Hub, through a proxy that counts bytes, each in a fresh process with an empty
cache. `litdata` is left out if it is not installed; it is no dependency of ours: pip install litdata polars
"""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

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


@dataclass(kw_only=True)
class Reading:
    """What one reader did."""

    bytes_first: int = 0
    """Bytes that the Hub had sent when the first sample was there."""

    num_bytes: int = 0
    figures: dict[str, Any] = field(default_factory=dict)
    """What the reader printed."""


def write_shape(folder: Path, shape: Shape) -> None:
    """Write records with numbered captions, with codes as skewed as a Zipf law."""
    random = np.random.default_rng(0)
    weights = 1.0 / np.arange(1, LAYOUT.codebook_size + 1) ** 0.5
    steps = np.cumsum(weights / weights.sum())
    folder.mkdir(parents=True)
    for shard in range(shape.num_shards):
        codes = np.searchsorted(steps, random.random((shape.records_per_shard, LAYOUT.num_codes), np.float32))
        first = shard * shape.records_per_shard
        captions = [f"picture number {first + row} of a web page" for row in range(len(codes))]
        table = image_code_table(captions, codes.clip(0, LAYOUT.codebook_size - 1), LAYOUT)
        write_image_code_shard(folder / f"train-{shard:05d}.parquet", table)


class Library:
    """An embedded Hub with datasets, behind a proxy that counts what it sends."""

    def __init__(self, hub: LocalHub, proxy: LinkProxy) -> None:
        self._hub, self._proxy = hub, proxy
        self.token = hub.create_user("alice")
        self._link: PeerLink = proxy.add("hub", hub.port)

    def publish(self, folder: Path, repository: str) -> None:
        """Publish a folder of shards as anybody does."""
        command = [sys.executable, "-m", "hub_tools.command_line", "publish", "dataset", str(folder), repository]
        subprocess.run(
            command, env={**os.environ, **self._hub.environment(self.token)}, check=True, capture_output=True
        )

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
