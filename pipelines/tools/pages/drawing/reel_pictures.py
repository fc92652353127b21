"""What a run has drawn by itself, for the page's empty box: the newest pictures of the reel, one for each caption."""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from PIL import Image

from hub_tools.foreign.downloads import fetch_file
from hub_tools.one_line_errors import explain_error
from hub_tools.printing.printable import one_line
from hub_tools.run_files import REEL_FOLDER, REEL_INDEX_FILE
from pipelines.features.publishing.metrics.sample_gallery import read_index, read_prompts
from pipelines.tasks.text_to_image.generation.uploaded_picture import read_picture
from pipelines.tools.pages.drawing.published_checkpoints import HUB_ERRORS

logger = logging.getLogger(__name__)

SECONDS_BETWEEN_LOOKS = 60.0
MOST_PROMPTS, LONGEST_PROMPT = 16, 300


class ReelPictures:
    """Asks the Hub at most once a minute, however many people open the page."""

    def __init__(self, repository: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._repository, self._clock = repository, clock
        self._lock, self._read_at = threading.Lock(), float("-inf")
        self._epoch, self._pictures = 0, list[tuple[Image.Image, str]]()

    def newest(self) -> tuple[int, list[tuple[Image.Image, str]]]:
        """Return an epoch, and pictures with the captions that the run has drawn after it; none if there are none.

        What cannot be read is not shown: the page is there to draw.
        """
        with self._lock:
            if self._clock() - self._read_at > SECONDS_BETWEEN_LOOKS:
                self._read_at = self._clock()
                try:
                    self._epoch, self._pictures = self._read()
                except (ValueError, *HUB_ERRORS) as error:
                    logger.info("The pictures of the progress reel are not shown: %s", explain_error(error))
            return self._epoch, self._pictures

    def _read(self) -> tuple[int, list[tuple[Image.Image, str]]]:
        index = self._file(REEL_INDEX_FILE)
        entry = max(read_index(index.parent), key=lambda one: one["epoch"], default=None)
        prompts = [one_line(prompt, LONGEST_PROMPT) for prompt in read_prompts(index.parent)[:MOST_PROMPTS]]
        if entry is None or not prompts:
            return 0, []
        picture = read_picture(self._file(entry["file"]))
        side, rest = divmod(picture.height, len(prompts))
        if rest or not 0 < side <= picture.width:
            raise ValueError(f"{entry['file']} of {self._repository} is no picture of {len(prompts)} rows of squares.")
        squares = (picture.crop((0, row * side, side, (row + 1) * side)) for row in range(len(prompts)))
        return entry["epoch"], list(zip(squares, prompts, strict=True))

    def _file(self, name: str) -> Path:
        if Path(self._repository).is_dir():
            return Path(self._repository) / REEL_FOLDER / name
        return fetch_file(self._repository, f"{REEL_FOLDER}/{name}")
