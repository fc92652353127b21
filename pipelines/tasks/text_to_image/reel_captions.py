"""The captions that a run's progress reel draws: few, held out from training, clean, of different things."""

import hashlib
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

from hub_tools.printing.printable import one_line
from pipelines.tasks.text_to_image.image_code_stream import evaluation_split, held_out_mask
from pipelines.tasks.text_to_image.image_codes.image_code_record import captions_and_codes

NUM_REEL_CAPTIONS = 4
LONGEST_CAPTION = 120
"""Characters; longer ones are not drawn while there are shorter ones."""

MOST_SHARDS, MOST_RECORDS = 4, 2048
"""What is read of a dataset: of so many shards so many records each."""


def held_out_reel_captions(
    files: Sequence[str], open_file: Callable[[str], IO[bytes]], *, num_codes: int, share: float
) -> list[str]:
    """Return at most `NUM_REEL_CAPTIONS` captions of a dataset's held-out records, always the same; none if none are.

    Captions that trained records have, too, come last.

    files: the shards, of which a `validation` or `test` split is the held-out part if there is one.

    Raises:
        ImageCodeFormatError, pyarrow.ArrowException, OSError: a shard cannot be read.
    """
    split = evaluation_split(files)
    own = [file for file in files if split and file.rsplit("/", 1)[-1].startswith(f"{split}-")]
    held_out, trained = list[str](), set[str]()
    for batch in _beginnings(own or files, open_file):
        captions, codes = captions_and_codes(batch, num_codes=num_codes)
        mask = [True] * len(captions) if own else held_out_mask(codes, share).tolist()
        for caption, is_held_out in zip(captions, mask, strict=True):
            if is_held_out:
                held_out.append(caption or "")
            else:
                trained.add(one_line(caption or ""))
    lines = (one_line(caption, 4 * LONGEST_CAPTION) for caption in held_out)
    clean = [text for text in lines if re.search(r"\w", text)]
    short = [text for text in clean if len(text) <= LONGEST_CAPTION]
    short = short or [one_line(text, LONGEST_CAPTION) for text in clean]
    new = captions_to_draw((text for text in short if text not in trained), NUM_REEL_CAPTIONS)
    return [*new, *captions_to_draw(set(short) & trained, NUM_REEL_CAPTIONS - len(new))]


def captions_to_draw(captions: Iterable[str], number: int) -> list[str]:
    """Return some of the captions, each once and always the same: those of most pictures, as a model learns them first.

    They begin with as many different words as possible; otherwise they would often be of one thing. Of captions that
    as many pictures have the choice is by their digests.
    """
    counted, chosen = Counter(captions), Counter[str]()
    rank: dict[str, int] = {}
    for text in sorted(counted, key=lambda text: (-counted[text], hashlib.sha256(text.encode()).digest())):
        begin = next(iter(re.findall(r"\w+", text)), "").lower()
        rank[text], chosen[begin] = chosen[begin], chosen[begin] + 1
    return sorted(rank, key=lambda text: rank[text])[:number]


def _beginnings(files: Sequence[str], open_file: Callable[[str], IO[bytes]]) -> Iterator[pa.RecordBatch]:
    for file in files[:: max(1, math.ceil(len(files) / MOST_SHARDS))][:MOST_SHARDS]:
        with open_file(file) as opened:
            shard = pq.ParquetFile(opened)
            columns = [name for name in ("caption", "codes", "code") if name in shard.schema_arrow.names]
            yield from itertools.islice(shard.iter_batches(MOST_RECORDS, columns=columns), 1)
