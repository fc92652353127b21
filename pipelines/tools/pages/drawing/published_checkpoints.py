"""Keep a run's published checkpoint loaded, the newest or a chosen one, for programs that draw for a long time."""

import logging
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import httpx2
import torch
from huggingface_hub import HfApi

from pipelines.tasks.text_to_image.generation.image_generation import RankingContext, TextToImage, load_text_to_image
from pipelines.tools.pages.drawing.drawing_request import NEWEST

logger = logging.getLogger(__name__)

HUB_ERRORS = (OSError, httpx2.HTTPError)
"""What the Hub's client raises when the Hub is down or has no such thing."""

EPOCH_TAG = re.compile(r"epoch-(\d{1,12})")
SECONDS_BETWEEN_LISTS = 60.0
"""Seconds for which the epochs are cached: a page that many people open asks the Hub once."""


class Checkpoint(NamedTuple):
    """A checkpoint that is loaded."""

    bundle: TextToImage | RankingContext
    """What draws, or only ranks what volunteers draw."""
    commit: str | None
    """Commit of the run's repository; None for a folder."""


class PublishedCheckpoints:
    """Loads a checkpoint when it is first requested, and a newer one when the run has published one since.

    One is in memory at a time, because a model of the paper's size takes gigabytes.
    """

    def __init__(
        self,
        repository_or_folder: str,
        *,
        codec: str | None = None,
        clip: str | None = None,
        device: torch.device | str = "cpu",
        load: Callable[..., TextToImage | RankingContext] = load_text_to_image,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = repository_or_folder
        self.codec, self.clip, self.device = codec, clip, device
        self._load, self._clock = load, clock
        self._loaded: Checkpoint | None = None
        self._newest_commit: str | None = None
        self._epochs: tuple[float, dict[str, str]] | None = None
        self._lock = threading.Lock()

    def get(self, version: str = NEWEST) -> Checkpoint:
        """Return the newest checkpoint, or that of a tag or commit.

        Raises what `load` raises, or one of `HUB_ERRORS`; the next call then tries again. While the Hub
        cannot be reached, the newest checkpoint is the one that was the newest before.
        """
        with self._lock:
            commit = self._commit(version)
            if self._loaded is None or commit != self._loaded.commit:
                bundle = self._load(self.name, revision=commit, codec=self.codec, clip=self.clip, device=self.device)
                self._loaded = Checkpoint(bundle, commit)
            return self._loaded

    def epochs(self) -> list[str]:
        """Return the tags `epoch-N` of the run, newest first; empty for a folder. Raises one of `HUB_ERRORS`."""
        return list(self._tags())

    def has_weights(self) -> bool:
        """Whether there is anything to draw with. Raises one of `HUB_ERRORS`."""
        return Path(self.name).is_dir() or any(
            file.rfilename.endswith(".safetensors") for file in HfApi().model_info(self.name).siblings or ()
        )

    def short_name(self, commit: str) -> str:
        """Return the tag `epoch-N` of a commit, or the commit if it has none or the Hub is away."""
        try:
            return next((tag for tag, tagged in self._tags().items() if tagged == commit), commit)
        except HUB_ERRORS:
            return commit

    def _tags(self) -> dict[str, str]:
        """Return the commits of the tags `epoch-N`, newest first."""
        if Path(self.name).is_dir():
            return {}
        now = self._clock()
        if self._epochs is None or now - self._epochs[0] > SECONDS_BETWEEN_LISTS:
            tags = {tag.name: tag.target_commit for tag in HfApi().list_repo_refs(self.name).tags}
            found = {int(match[1]): match[0] for tag in tags if (match := EPOCH_TAG.fullmatch(tag))}
            self._epochs = now, {found[epoch]: tags[found[epoch]] for epoch in sorted(found, reverse=True)}
        return self._epochs[1]

    def _commit(self, version: str) -> str | None:
        if Path(self.name).is_dir():
            if version != NEWEST:
                raise ValueError(f"This page draws from a folder, which has no checkpoint {version}. Choose {NEWEST}.")
            return None
        if version != NEWEST:
            return (
                self._loaded.commit if self._is_loaded(version) else HfApi().model_info(self.name, revision=version).sha
            )
        try:
            self._newest_commit = HfApi().model_info(self.name).sha
        except HUB_ERRORS:
            if self._newest_commit is None:
                raise
            logger.warning("The Hub did not return the newest commit of %s; drawing with the previous one.", self.name)
        return self._newest_commit

    def _is_loaded(self, version: str) -> bool:
        return self._loaded is not None and self._loaded.commit == version
