"""Reads some layers of a repository's weights; usage: python weights_reader.py REPOSITORY START END.

Prints JSON: the bytes that were read, those of the whole file, the names; or the error in one line.
"""

import dataclasses
import json
import sys

from pipelines.features.publishing.repository.manifest import CheckpointRefusedError
from pipelines.features.serving.blocks.spans import load_span, tensor_prefixes
from pipelines.features.serving.blocks.weights import find_model


def main(repository: str, layers: range) -> dict[str, object]:
    try:
        model = find_model(repository)
        read: list[int] = []

        def counted(start: int, end: int) -> bytes:
            read.append(end - start)
            return model.read_range(start, end)

        counting = dataclasses.replace(model, read_range=counted)
        load_span(counting, layers)
        names = sorted(counting.read(tensor_prefixes(model.config, layers)))
    except (CheckpointRefusedError, ValueError) as error:
        return dict(error=f"{type(error).__name__}: {error}")
    whole = max(entry.end for entry in model.header.values())
    return dict(read=sum(read) // 2, whole=whole, names=names, revision=model.revision, signed=bool(model.digests))


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], range(int(sys.argv[2]), int(sys.argv[3])))))
