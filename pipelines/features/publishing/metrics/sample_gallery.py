"""The progress reel: the same captions drawn every few epochs, one small picture per epoch, with an index."""

import contextlib
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from hub_tools.atomic_files import write_text_whole, written_whole
from hub_tools.foreign.json_texts import read_json
from hub_tools.run_files import NEWEST_PICTURE, REEL_INDEX_FILE
from pipelines.core.run.training_run import TrainingRun

if TYPE_CHECKING:
    import torch

REEL_SEED = 0
PICTURE_NAME = re.compile(r"epoch-\d{8,12}\.webp")

DrawPictures = Callable[["torch.nn.Module", Sequence[str]], Image.Image | None]
"""Draws the prompts with the model, always with the same seed, as one picture; None: the task has no pictures."""


class SampleGallery:
    """A folder of pictures `epoch-00000100.webp` with `index.json`, and the newest one as `newest.jpg`."""

    def __init__(self, run: TrainingRun, folder: Path, draw: DrawPictures) -> None:
        self._run, self._folder, self._draw = run, folder, draw
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, epoch: int, model: "torch.nn.Module", now: float) -> Path | None:
        """Draw the run's prompts with an epoch's model; return the picture's file, if the task has pictures."""
        if (picture := self._draw(model, self._run.reel_prompts)) is None:
            return None
        path = self._folder / f"epoch-{epoch:08d}.webp"
        for place, kind in ((path, "WEBP"), (self._folder / NEWEST_PICTURE, "JPEG")):
            with written_whole(place) as temporary:
                picture.convert("RGB").save(temporary, format=kind, quality=80)
        entries = [entry for entry in read_index(self._folder) if entry["epoch"] < epoch]
        entry = dict(epoch=epoch, file=path.name, time=now, width=picture.width, height=picture.height)
        write_index(self._folder, self._run.reel_prompts, [*entries, entry])
        return path

    def newest_epoch(self) -> int:
        """Return the epoch of the newest picture, or 0."""
        return max((entry["epoch"] for entry in read_index(self._folder)), default=0)


def read_index(folder: Path) -> list[dict[str, Any]]:
    """Return the pictures that an index lists, by epoch; none if there is no index or it is damaged."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        pictures = read_json(folder / REEL_INDEX_FILE)["pictures"]
        return [one for one in pictures if isinstance(one["epoch"], int) and PICTURE_NAME.fullmatch(str(one["file"]))]
    return []


def read_prompts(folder: Path) -> list[str]:
    """Return the captions in an index, from top to bottom; none if there is no index or it is damaged."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        prompts = read_json(folder / REEL_INDEX_FILE)["prompts"]
        return [prompt for prompt in prompts if isinstance(prompt, str)]
    return []


def write_index(folder: Path, prompts: Sequence[str], pictures: Sequence[dict[str, object]]) -> None:
    """Write the index: the captions from top to bottom, and the pictures by epoch."""
    values = dict(format_version=1, seed=REEL_SEED, prompts=list(prompts), pictures=list(pictures))
    write_text_whole(folder / REEL_INDEX_FILE, json.dumps(values, indent=1, ensure_ascii=False) + "\n")


def take_over_gallery(folder: Path, published: Path, prompts: Sequence[str]) -> None:
    """Add the pictures of a published index to a folder's index; the files themselves stay on the Hub."""
    known = {picture["epoch"]: picture for picture in (*read_index(published), *read_index(folder))}
    if known:
        folder.mkdir(parents=True, exist_ok=True)
        write_index(folder, prompts, [known[epoch] for epoch in sorted(known)])
