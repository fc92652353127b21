"""The text-to-image pipeline of transformers with this package's own codec, for use where the package is installed.

Example:
    pipeline("text-to-image", model="ORG/RUN", pipeline_class=InstalledTextToImagePipeline)
"""

import os
from typing import Any

from modeling_dalle_collab.pipeline_dalle_collab import TextToImagePipeline
from pipelines.tasks.text_to_image.image_codes.codec_code import open_codec
from pipelines.tasks.text_to_image.image_codes.vqgan_codec import VQGANCodec


class InstalledTextToImagePipeline(TextToImagePipeline):
    """Draws pictures without running code of the model's repository, so it needs no `trust_remote_code`."""

    def codec_class(self) -> type[VQGANCodec]:
        """Return the installed codec's class."""
        return _BoundedCodec


class _BoundedCodec(VQGANCodec):
    @classmethod
    def from_pretrained(cls, path_or_repo: str | os.PathLike, **options: Any) -> VQGANCodec:  # type: ignore[override]
        return open_codec(path_or_repo, **options)
