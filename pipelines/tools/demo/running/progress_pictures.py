"""The pictures that the auxiliary peer draws while it trains, as a file beside the demo's results."""

import contextlib
from pathlib import Path

from PIL import Image

from hub_tools.atomic_files import written_whole
from hub_tools.run_files import REEL_FOLDER
from pipelines.features.publishing.metrics.sample_gallery import read_index, read_prompts

PROGRESS_FILE = "progress.png"


class ProgressPictures:
    """Copies the newest picture of a run's reel, once each."""

    def __init__(self, auxiliary_folder: Path, output: Path) -> None:
        self._auxiliary, self._file = auxiliary_folder, output / PROGRESS_FILE
        self._shown_epoch = 0

    def news(self, num_epochs: int) -> str:
        """Copy the reel's newest picture if it is another one; return the line that says so, else an empty one."""
        for gallery in self._auxiliary.glob(f"*/{REEL_FOLDER}"):
            newest = max(read_index(gallery), key=lambda entry: entry["epoch"], default=None)
            if newest is None or newest["epoch"] <= self._shown_epoch:
                continue
            with contextlib.suppress(OSError):  # another auxiliary peer has drawn it, or it is being replaced
                with Image.open(gallery / newest["file"]) as picture, written_whole(self._file) as temporary:
                    picture.save(temporary, format="PNG")
                is_first, self._shown_epoch = not self._shown_epoch, newest["epoch"]
                said = f"ictures, after {self._shown_epoch} of {num_epochs} epochs: {self._file}"
                return f"The first p{said} ({'; '.join(read_prompts(gallery))})" if is_first else f"P{said}"
        return ""
