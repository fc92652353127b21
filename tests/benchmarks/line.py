"""The line's first joint, from the dataset to the peer: bytes and time beside the plain alternative.

Usage: python tests/benchmarks/line.py [--quick]
"""

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from measurement import Row, write_results

from hub_tools.endpoint import prepare_hub_client
from hub_tools.local_hub import LocalHub
from hub_tools.publishing.dataset_publishing import publish_dataset
from pipelines.image_codes.image_code_record import ImageCodeLayout, image_code_table, write_image_code_shard

LAYOUT = ImageCodeLayout(codec_fingerprint="0" * 16, codebook_size=8192, grid_size=32)


def paper_size_records(num_records: int, folder: Path) -> int:
    """Write records of the paper's size, with codes as skewed as a Zipf law; return the shards' bytes."""
    random = np.random.default_rng(0)
    weights = 1.0 / np.arange(1, LAYOUT.codebook_size + 1) ** 0.5
    total = 0
    for shard in range(4):
        codes = random.choice(LAYOUT.codebook_size, (num_records // 4, LAYOUT.num_codes), p=weights / weights.sum())
        captions = [f"picture {number} of shard {shard}" for number in range(len(codes))]
        table = image_code_table(captions, codes, LAYOUT)
        total += write_image_code_shard(folder / f"train-{shard:05d}.parquet", table)
    return total


def entropy_bytes() -> float:
    """Return the entropy of one image's codes under that law, in bytes: no order-0 code can be shorter."""
    weights = 1.0 / np.arange(1, LAYOUT.codebook_size + 1) ** 0.5
    shares = weights / weights.sum()
    return float(-(shares * np.log2(shares)).sum() / 8 * LAYOUT.num_codes)


def measure_dataset(quick: bool) -> list[Row]:
    """Bytes per sample on the wire, and how fast one core streams them from a Hub over HTTP."""
    num_records = 1024 if quick else 8192
    with tempfile.TemporaryDirectory() as name, LocalHub(Path(name) / "hub") as hub:
        shards = Path(name) / "shards"
        shards.mkdir()
        num_bytes = paper_size_records(num_records, shards)
        environment = hub.environment(hub.create_user("alice"))
        ours, plain = (_streamed_per_cpu_second(environment, shards, kind) for kind in ("ours", "plain"))
    return [
        Row(
            case="32x32 codes of 8192",
            metric="bytes per sample on the wire",
            unit="B",
            ours=num_bytes / num_records,
            peer=2.0 * LAYOUT.num_codes,
            floor=entropy_bytes(),
        ),
        Row(case="32x32 codes of 8192", metric="streamed samples", unit="1/CPU-s", ours=ours, peer=plain),
    ]


def _streamed_per_cpu_second(environment: dict[str, str], shards: Path, kind: str) -> float:
    """Stream in a fresh interpreter, because clients read HF_ENDPOINT when they are imported."""
    import os
    import subprocess

    command = [sys.executable, __file__, "--stream", kind, str(shards)]
    result = subprocess.run(command, env={**os.environ, **environment}, check=True, capture_output=True, text=True)
    return float(result.stdout.strip().splitlines()[-1])


def stream(kind: str, shards: Path) -> None:
    """Publish the shards, stream them once, print samples per CPU-second; `plain` reads row by row."""
    import itertools
    import time

    import datasets

    from pipelines.training.run.block_order import BlockOrder
    from pipelines.training.run.span_source import WholeDataset
    from pipelines.training.tasks.text_to_image.image_code_stream import stream_batches, training_blocks

    prepare_hub_client()
    publish_dataset(shards, "alice/codes")
    num_records = sum(1 for _ in datasets.load_dataset("alice/codes", split="train", streaming=True))

    def tokenise(text: list[str]) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.zeros(len(text), 16, dtype=torch.int64)}

    started = time.process_time()
    if kind == "ours":
        blocks = training_blocks("alice/codes", "main")
        source = WholeDataset(BlockOrder(lambda: len(blocks.shards), blocks.sizes, 0))
        batches = stream_batches(blocks, source, tokenise, num_codes=LAYOUT.num_codes, batch_size=64, seed=0)
        count = sum(len(batch["image_codes"]) for batch in itertools.islice(batches, num_records // 64))
    else:
        rows = datasets.load_dataset("alice/codes", split="train", streaming=True).shuffle(seed=0, buffer_size=512)
        count = 0
        for row in rows:
            torch.tensor(row["codes"])
            count += 1
    print(count / (time.process_time() - started))


def main() -> None:
    """Measure all, print the table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller sizes: a minute instead of five")
    parser.add_argument("--stream", nargs=2, metavar=("KIND", "SHARDS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.stream:
        stream(arguments.stream[0], Path(arguments.stream[1]))
        return
    print(f"written to {write_results('line', measure_dataset(arguments.quick), is_quick=arguments.quick)}")


if __name__ == "__main__":
    main()
