"""What a folder of shards holds, in figures for people: codes, captions, sizes. Bounded memory."""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipelines.tasks.text_to_image.image_codes.image_code_record import (
    ImageCodeFormatError,
    ImageCodeLayout,
    captions_and_codes,
    check_code_range,
    iterate_shard,
    open_shard,
    read_layout,
)

MOST_RECORDS_READ = 1_000_000
"""Of a larger folder, evenly spread shards are read, of about so many records."""

MOST_WORDS_COUNTED = 200_000
MOST_WORDS = 40
CAPTION_BIN = 10
MOST_CAPTION_BINS = 30
CUT_BINS = 10
WORD = re.compile(r"[^\W\d_]{2,}")


@dataclass(frozen=True, kw_only=True)
class DatasetFacts:
    """Figures about the records that were read."""

    layout: ImageCodeLayout
    """Codec and sizes."""
    num_shards: int
    """Shards in the folder."""
    num_bytes: int
    """Bytes of them."""
    num_records: int
    """Records in them."""
    num_records_read: int
    """Records that the other figures are about."""
    code_counts: np.ndarray
    """(codebook_size,) int64: how often each code occurs."""
    caption_lengths: np.ndarray
    """(MOST_CAPTION_BINS,) int64: captions by their characters, CAPTION_BIN to a bin; the last has all longer ones."""
    words: tuple[tuple[str, int], ...]
    """The most frequent words of captions, in lower case, with the number of captions that have them."""
    cut_shares: np.ndarray
    """(CUT_BINS,) int64: pictures by the share of their area that the central square leaves out, 0 to 1."""
    mean_cut_share: float
    """The mean of that share. Cut-outs, which are shown whole, count as if they were cut."""

    @property
    def entropy_bits(self) -> float:
        """Entropy of a code, in bits: no coding of codes one by one needs fewer."""
        shares = self.code_counts[self.code_counts > 0] / max(1, self.code_counts.sum())
        return float(-(shares * np.log2(shares)).sum())

    @property
    def num_codes_used(self) -> int:
        """Codes that occur."""
        return int((self.code_counts > 0).sum())


def collect_facts(folder: Path, on_shard: Callable[[int, int], None] = lambda done, total: None) -> DatasetFacts:
    """The figures of a folder; `on_shard` gets the number of shards read and how many will be.

    FileNotFoundError if it has no shards, ImageCodeFormatError for one that cannot be read or is of another codec.
    """
    paths = shards_of(folder)
    num_records = 0
    for path in paths:
        with open_shard(path) as shard:
            num_records += shard.metadata.num_rows
    layout = read_layout(paths[0])
    num_read = max(1, min(len(paths), len(paths) * MOST_RECORDS_READ // max(1, num_records)))
    counting = _Counting(layout)
    for done, path in enumerate(evenly_spread(paths, num_read), start=1):
        if not read_layout(path).is_of_same_codec(layout):
            raise ImageCodeFormatError(
                f"Shard {path.name} was made by another codec than {paths[0].name}. "
                f"See: dalle-collab data verify {folder}"
            )
        for batch in iterate_shard(path):
            counting.add(batch, path.name)
        on_shard(done, num_read)
    return DatasetFacts(
        layout=layout,
        num_shards=len(paths),
        num_bytes=sum(path.stat().st_size for path in paths),
        num_records=num_records,
        num_records_read=counting.num_records,
        code_counts=counting.codes,
        caption_lengths=counting.lengths,
        words=tuple(counting.words.most_common(MOST_WORDS)),
        cut_shares=counting.cuts,
        mean_cut_share=counting.total_cut / max(1, counting.num_sizes),
    )


def shards_of(folder: Path) -> list[Path]:
    """The folder's shards by name; FileNotFoundError if there are none."""
    paths = sorted(folder.glob("*.parquet"))
    if not paths:
        raise FileNotFoundError(f"{folder} has no Parquet shards. Make some: dalle-collab data prepare --output DIR")
    return paths


def evenly_spread(paths: list[Path], number: int) -> list[Path]:
    """At most so many of the paths, from the first to the last."""
    places = np.unique(np.linspace(0, len(paths) - 1, min(number, len(paths))).round().astype(int))
    return [paths[place] for place in places]


class _Counting:
    def __init__(self, layout: ImageCodeLayout):
        self.layout = layout
        self.num_records, self.num_sizes, self.total_cut = 0, 0, 0.0
        self.codes = np.zeros(layout.codebook_size, np.int64)
        self.lengths = np.zeros(MOST_CAPTION_BINS, np.int64)
        self.cuts = np.zeros(CUT_BINS, np.int64)
        self.words = Counter[str]()

    def add(self, batch: pa.RecordBatch, name: str) -> None:
        captions, codes = captions_and_codes(batch, num_codes=self.layout.num_codes, shard_name=f"Shard {name}")
        check_code_range(codes, self.layout.codebook_size, f"shard {name}")
        self.num_records += len(captions)
        self.codes += np.bincount(codes.reshape(-1), minlength=self.layout.codebook_size)
        self._add_captions([caption or "" for caption in captions])
        if {"width", "height"} <= set(batch.schema.names):
            self._add_sizes(*(_numbers(batch[side]) for side in ("width", "height")))

    def _add_captions(self, captions: Iterable[str]) -> None:
        for caption in captions:
            self.lengths[min(len(caption) // CAPTION_BIN, MOST_CAPTION_BINS - 1)] += 1
            self.words.update(set(WORD.findall(caption.lower())))
        if len(self.words) > MOST_WORDS_COUNTED:  # rare words are forgotten, so that memory stays bounded
            self.words = Counter(dict(self.words.most_common(MOST_WORDS_COUNTED // 2)))

    def _add_sizes(self, widths: np.ndarray, heights: np.ndarray) -> None:
        is_known = (widths > 0) & (heights > 0)
        widths, heights = widths[is_known], heights[is_known]
        cuts = 1 - np.minimum(widths, heights) / np.maximum(widths, heights)
        self.cuts += np.histogram(cuts, CUT_BINS, (0, 1))[0]
        self.num_sizes += len(cuts)
        self.total_cut += float(cuts.sum())


def _numbers(column: pa.Array) -> np.ndarray:
    return column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.float64)
