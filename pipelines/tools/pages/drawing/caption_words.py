"""Words of a prompt that no training caption has: what they mean, the model cannot know."""

import logging
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from hub_tools.counted import counted
from hub_tools.foreign.downloads import fetch_file
from hub_tools.one_line_errors import explain_error
from hub_tools.run_files import TRAINING_RUN_FILE
from pipelines.core.run.training_run import TrainingRun
from pipelines.tasks.text_to_image.image_codes.dataset_shards import dataset_on_hub
from pipelines.tasks.text_to_image.image_codes.shard_blocks import ShardBlocks
from pipelines.tools.pages.drawing.published_checkpoints import HUB_ERRORS

logger = logging.getLogger(__name__)

MOST_CAPTIONS, MOST_SHARDS = 200_000, 32
"""What is read of a dataset."""
MOST_BYTES, MOST_WORDS, MOST_READING_SECONDS = 2**26, 500_000, 120.0
"""Of captions, of different words, and of reading; without the words of them all nothing is said."""
MOST_SECONDS = 10.0
"""How long the drawings that are finished wait for the captions, all together."""
MOST_NAMED, LONGEST_WORD = 3, 30


class CaptionWords:
    """Reads the captions, beside the first drawing and once; without them nothing is said."""

    def __init__(self, repository: str) -> None:
        """`repository` is the run's, or a folder with its files."""
        self._repository = repository
        self._lock = threading.Lock()
        self._reader: threading.Thread | None = None
        self._waits_until = 0.0
        self._words, self._num_captions, self._is_all = set[str](), 0, True

    def begin(self) -> None:
        """Read the captions in the background, unless that has begun."""
        with self._lock:
            if self._reader is None:
                self._reader = threading.Thread(target=self._read, daemon=True, name="caption words")
                self._reader.start()
                self._waits_until = time.monotonic() + MOST_SECONDS

    def remark(self, prompt: str) -> str:
        """Return a sentence about the prompt's words that no caption has; empty if there are none or it is unknown."""
        self.begin()
        assert self._reader is not None, "it has begun"
        self._reader.join(max(0.0, self._waits_until - time.monotonic()))
        if self._reader.is_alive() or not self._num_captions:
            return ""
        return remark_on(words_of(prompt, self._words), self._num_captions, is_all=self._is_all)

    def _read(self) -> None:
        try:
            words, number, num_bytes, begun = set[str](), 0, 0, time.monotonic()
            for column in self._captions():
                number, num_bytes = number + len(column), num_bytes + column.nbytes
                if max(num_bytes / MOST_BYTES, len(words) / MOST_WORDS) > 1 or (
                    time.monotonic() - begun > MOST_READING_SECONDS
                ):
                    raise ValueError("its captions are too many to be read beside drawing")
                words.update(word for one in column.to_pylist() if isinstance(one, str) for word in words_of(one))
            self._words, self._num_captions = words, number
        except (ValueError, *HUB_ERRORS) as error:
            logger.info("The words of the training captions are not known: %s", explain_error(error))

    def _captions(self) -> Iterator[pa.ChunkedArray]:
        folder = Path(self._repository)
        own = folder / TRAINING_RUN_FILE
        run = TrainingRun.from_file(own if folder.is_dir() else fetch_file(self._repository, TRAINING_RUN_FILE))
        dataset = dataset_on_hub(run.dataset_repository, run.dataset_revision)
        blocks = ShardBlocks(dataset, dataset.shards, lambda names: ("caption",))
        step = -(-len(blocks.shards) // MOST_SHARDS)
        chosen = range(0, len(blocks.shards), step)
        self._is_all = step == 1
        for shard in chosen:
            left = MOST_CAPTIONS // len(chosen)
            for block, size in enumerate(blocks.sizes(shard)):
                if left <= 0:
                    self._is_all = False
                    break
                left -= size
                yield blocks.read(shard, block).column("caption")


def words_of(text: str, known: set[str] | frozenset[str] = frozenset()) -> list[str]:
    """Return the words of a text that are not `known`, small, each once, in order.

    Only of scripts with small and capital letters: others need not have spaces between words.
    """
    found = re.findall(r"[^\W\d_]{2,}", text.lower())
    return [word for word in dict.fromkeys(found) if word not in known and word[0] != word[0].upper()]


def remark_on(unknown: list[str], num_captions: int, *, is_all: bool) -> str:
    """Say mildly that the words are in none of the captions; `is_all`: more were not read."""
    if not unknown:
        return ""
    named = ", ".join(f"“{word[:LONGEST_WORD]}”" for word in unknown[:MOST_NAMED])
    more = f" and {counted(len(unknown) - MOST_NAMED, 'more word')}" if len(unknown) > MOST_NAMED else ""
    what, it = ("the words", "they mean") if len(unknown) > 1 else ("the word", "it means")
    which = f"No training caption has {what}" if is_all else f"None of {num_captions:,} training captions has {what}"
    return f"{which} {named}{more}: the model can only guess what {it}."
