"""Keep the newest published checkpoint of a run at hand, for programs that draw for a long time."""

import logging
import threading
from pathlib import Path

import torch
from huggingface_hub import HfApi

from pipelines.generation.image_generation import TextToImage, load_text_to_image

logger = logging.getLogger(__name__)


class NewestCheckpoint:
    """Loads a run when it is first asked for it, and again when the run has published since."""

    def __init__(
        self,
        repository_or_folder: str,
        *,
        codec: str | None = None,
        clip: str | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.name = repository_or_folder
        self.codec, self.clip, self.device = codec, clip, device
        self.revision: str | None = None
        self._bundle: TextToImage | None = None
        self._lock = threading.Lock()

    def get(self) -> TextToImage:
        """Return the newest checkpoint. Raises what `load_text_to_image` raises; the next call then tries again.

        While the Hub cannot be reached, the checkpoint that is loaded already goes on being used.
        """
        with self._lock:
            revision = self._newest_revision()
            if self._bundle is None or revision != self.revision:
                self._bundle = load_text_to_image(
                    self.name, revision=revision, codec=self.codec, clip=self.clip, device=self.device
                )
                self.revision = revision
            return self._bundle

    def _newest_revision(self) -> str | None:
        if Path(self.name).is_dir():
            return None
        try:
            return HfApi().model_info(self.name).sha
        except OSError:
            if self._bundle is None:
                raise
            logger.warning("The Hub did not name the newest commit of %s; drawing with %s.", self.name, self.revision)
            return self.revision
