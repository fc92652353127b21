"""Reads a dataset's stream as a peer does and prints it as JSON; run by the tests in an environment of its own.

Usage: python stream_reader.py layout REPOSITORY REVISION
       python stream_reader.py stream JSON, with `repository`, `processor` and the options of `stream_batches`.
"""

import dataclasses
import itertools
import json
import sys

from modeling_dalle_collab import DalleCollabProcessor
from pipelines.training.peer.prefetching import prefetched
from pipelines.training.tasks.text_to_image.image_code_stream import dataset_layout, stream_batches


def read(request: dict) -> list[list]:
    """Return `num_batches` batches as lists of (caption's token ids, image codes)."""
    num_batches, processor = request.pop("num_batches"), DalleCollabProcessor.from_pretrained(request.pop("processor"))
    repository = request.pop("repository")
    with prefetched(lambda: stream_batches(repository, "main", processor, **request)) as batches:
        return [
            [batch["input_ids"].tolist(), batch["image_codes"].tolist()]
            for batch in itertools.islice(batches, num_batches)
        ]


if __name__ == "__main__":
    try:
        if sys.argv[1] == "layout":
            print(json.dumps(dataclasses.asdict(dataset_layout(*sys.argv[2:]))))
        else:
            print(json.dumps(read(json.loads(sys.argv[2]))))
    except ValueError as error:
        sys.exit(f"ValueError: {error}")
