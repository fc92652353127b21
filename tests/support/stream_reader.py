"""Reads a dataset's stream as a peer does and prints it as JSON; run by the tests in an environment of its own.

Usage: python stream_reader.py layout REPOSITORY REVISION
       python stream_reader.py bytes REPOSITORY NUMBER
       python stream_reader.py stream JSON, with `repository`, `processor` and the options of `stream_batches`.
"""

import dataclasses
import itertools
import json
import sys

from huggingface_hub.hf_file_system import HfFileSystemFile

from modeling_dalle_collab import DalleCollabProcessor
from pipelines.core.peer.prefetching import prefetched
from pipelines.core.run.block_order import BlockOrder
from pipelines.core.run.span_source import WholeDataset
from pipelines.tasks.text_to_image.image_code_stream import dataset_layout, stream_batches, training_blocks


def read(request: dict) -> list[list]:
    """Return `num_batches` batches as lists of (caption's token ids, image codes)."""
    num_batches, processor = request.pop("num_batches"), DalleCollabProcessor.from_pretrained(request.pop("processor"))
    blocks = training_blocks(request.pop("repository"), "main")
    source = WholeDataset(BlockOrder(lambda: len(blocks.shards), blocks.sizes, request["seed"]))
    with prefetched(lambda: stream_batches(blocks, source, processor, **request)) as batches:
        return [
            [batch["input_ids"].tolist(), batch["image_codes"].tolist()]
            for batch in itertools.islice(batches, num_batches)
        ]


def count_bytes(repository: str, number: str) -> tuple[int, int]:
    """Return the bytes and the requests that it takes to read so many blocks of the first shard."""
    sizes = []
    fetch = HfFileSystemFile._fetch_range

    def counted(file, start: int, end: int) -> bytes:
        sizes.append(end - start)
        return fetch(file, start, end)

    HfFileSystemFile._fetch_range = counted
    blocks = training_blocks(repository, "main")
    for group in range(int(number)):
        blocks.read(0, 2 * group)
    return sum(sizes), len(sizes)


if __name__ == "__main__":
    try:
        if sys.argv[1] == "layout":
            print(json.dumps(dataclasses.asdict(dataset_layout(*sys.argv[2:]))))
        elif sys.argv[1] == "bytes":
            print(json.dumps(count_bytes(*sys.argv[2:])))
        else:
            print(json.dumps(read(json.loads(sys.argv[2]))))
    except ValueError as error:
        sys.exit(f"ValueError: {error}")
