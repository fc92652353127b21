"""`pipeline("text-to-image", model=REPOSITORY, trust_remote_code=True)`: from captions to pictures.

Axes: prompt, candidate, image (the codes of one picture), height, width.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor
from transformers import BatchFeature, Pipeline
from transformers.dynamic_module_utils import get_class_from_dynamic_module
from transformers.utils import is_vision_available

if TYPE_CHECKING:
    from .modeling_dalle_collab import DalleCollabForConditionalGeneration

OUTPUT_TYPES = ("pil", "pt", "codes")
CODEC_CLASS = "vqgan_codec.VQGANCodec"
NUM_DECODED_TOGETHER = 16
CODES_ALONE = 'Or request only image codes, which need no codec: output_type="codes".'


class CodecConfig(Protocol):
    """Sizes of a codec's codes."""

    num_codes: int
    codebook_size: int


class Codec(Protocol):
    """What turns image codes into pictures; its class comes from the model's repository."""

    config: CodecConfig
    fingerprint: str

    @classmethod
    def from_pretrained(cls, source: str | os.PathLike, *, revision: str | None, device: torch.device) -> "Codec":
        """Load a codec."""

    def decode(self, image_codes: Tensor) -> Tensor:
        """(picture, image) codes to (picture, 3, height, width) in [0, 1]."""


class TextToImagePipeline(Pipeline):
    """Draws pictures for captions with a model, its processor and the codec that the processor names.

    Example:
        draw = pipeline("text-to-image", model="ORG/RUN", trust_remote_code=True)
        pictures = draw("a red circle", num_images_per_prompt=4, top_k=64, seed=1)

    Its methods take only what this pipeline needs, unlike transformers' generic pipelines.
    """

    model: "DalleCollabForConditionalGeneration"
    processor: Any  # a DalleCollabProcessor; importing it would add its file to every model
    # transformers declares these only as None.
    _load_processor = True  # type: ignore[assignment]
    _load_tokenizer = False  # type: ignore[assignment]
    _load_image_processor = False  # type: ignore[assignment]
    _load_video_processor = False  # type: ignore[assignment]
    _load_feature_extractor = False  # type: ignore[assignment]

    def __init__(self, *args: Any, codec: str | os.PathLike | torch.nn.Module | None = None, **kwargs: Any) -> None:
        """Take the arguments of `Pipeline`; `codec` is a folder, a repository or a codec instead of the processor's."""
        self._codec: Any = codec if isinstance(codec, torch.nn.Module) else None
        self._codec_source = None if isinstance(codec, torch.nn.Module) else codec
        super().__init__(*args, **kwargs)

    def __call__(self, prompts: str | Iterable[str], **options: object) -> Any:  # type: ignore[override]
        """Draw for one caption, or for many together.

        One caption gives a list of `num_images_per_prompt` PIL pictures, and several give a list of such lists. With
        `output_type="pt"` it is ([prompt,] candidate, 3, height, width) uint8, with "codes" ([prompt,] candidate,
        image) int64. All other options are those of the model's `generate_image_codes`: `top_k`, `seed`, ...

        Raises:
            ValueError: there is no caption, an option is invalid, or the codec is not the model's.
            ImportError: PIL pictures are requested and Pillow is not installed.
        """
        texts = (prompts,) if isinstance(prompts, str) else tuple(prompts)
        if not texts:
            raise ValueError("There is no prompt: expected a caption or a list of captions.")
        drawn = super().__call__(texts, **options)
        return drawn[0] if isinstance(prompts, str) else drawn

    def _sanitize_parameters(
        self, *, output_type: str | None = None, **generate_kwargs: object
    ) -> tuple[dict, dict, dict]:
        if output_type is not None and output_type not in OUTPUT_TYPES:
            raise ValueError(f"output_type is {output_type!r}, expected one of {', '.join(OUTPUT_TYPES)}.")
        kind = {} if output_type is None else {"output_type": output_type}
        return {}, generate_kwargs | kind, kind

    def preprocess(self, prompts: tuple[str, ...]) -> BatchFeature:  # type: ignore[override]
        """Return the model's `input_ids`: (prompt, text) int64."""
        return self.processor(text=list(prompts))

    def _forward(  # type: ignore[override]
        self,
        model_inputs: BatchFeature,
        *,
        output_type: str = "pil",
        num_images_per_prompt: int = 1,
        **generate_kwargs: Any,
    ) -> dict[str, Tensor]:
        if output_type == "pil" and not is_vision_available():
            raise ImportError('Pillow is not installed: pip install pillow. Or request tensors: output_type="pt".')
        codec = None if output_type == "codes" else self.codec  # a missing codec is reported before the work starts
        image_codes = self.model.generate_image_codes(
            model_inputs["input_ids"], num_candidates=num_images_per_prompt, **generate_kwargs
        )
        return {"image_codes": image_codes} if codec is None else {"pixels": _decode(codec, image_codes)}

    def postprocess(self, model_outputs: dict[str, Tensor], *, output_type: str = "pil") -> Any:  # type: ignore[override]
        """Return tensors as they are, or PIL pictures."""
        if output_type != "pil":
            return next(iter(model_outputs.values()))
        from transformers.image_transforms import to_pil_image

        return [
            [to_pil_image(picture, do_rescale=False, input_data_format="channels_first") for picture in candidates]
            for candidates in model_outputs["pixels"]
        ]

    def save_pretrained(self, save_directory: str | os.PathLike, **kwargs: object) -> None:
        """Save model and processor with their code; the codec's code is copied if the codec was used."""
        super().save_pretrained(save_directory, **kwargs)
        self.processor.save_pretrained(save_directory)
        if self._codec is not None:
            from transformers.dynamic_module_utils import custom_object_save

            custom_object_save(self._codec, save_directory)

    @property
    def codec(self) -> Codec:
        """The codec that turns image codes into pictures; loaded on first use.

        Raises what calling the pipeline raises.
        """
        if self._codec is None:
            self._codec = self._load_codec()
        return self._codec

    def codec_class(self) -> type[Codec]:
        """Return the codec's class, read from the same commit of the model's repository as this file."""
        repository, own_folder = str(self.model.name_or_path), Path(__file__).parent
        if not __name__.startswith("transformers_modules."):
            raise ValueError(
                f"This pipeline is installed code and runs none of {repository}'s, where the codec's class is. "
                "Use pipelines.tasks.text_to_image.generation.installed_pipeline.InstalledTextToImagePipeline, which "
                f"is installed with it, or trust_remote_code=True without pipeline_class. {CODES_ALONE}"
            )
        try:
            return get_class_from_dynamic_module(CODEC_CLASS, repository, revision=own_folder.name)
        except OSError as error:
            raise ValueError(
                f"{repository} has no vqgan_codec.py ({_first_line(error)}); expected the codec's code next to the "
                f"model's, as `dalle-collab` publishes it. {CODES_ALONE}"
            ) from error

    def _load_codec(self) -> Codec:
        source = self._codec_source or self.processor.image_codec_repository
        if source is None:
            raise ValueError(
                f"The processor of {self.model.name_or_path} names no codec, expected image_codec_repository in its "
                f"processor_config.json. Name the codec: pipeline(..., codec=FOLDER_OR_REPOSITORY). {CODES_ALONE}"
            )
        revision = None if self._codec_source else self.processor.image_codec_revision
        codec = self.codec_class().from_pretrained(source, revision=revision, device=self.device)
        self._check_codec(codec, str(source))
        return codec

    def _check_codec(self, codec: Codec, source: str) -> None:
        config, expected = self.model.config, self.processor.image_codec_fingerprint
        if expected is not None and codec.fingerprint != expected:
            raise ValueError(
                f"Codec {source} has fingerprint {codec.fingerprint}, but {self.model.name_or_path} was trained on "
                f"codes of {expected}: its pictures would be noise. Use the codec of "
                f"{self.processor.image_codec_repository or 'its dataset'}."
            )
        seen, sizes = (
            (codec.config.num_codes, codec.config.codebook_size),
            (config.num_image_codes, config.codebook_size),
        )
        if seen != sizes:
            raise ValueError(
                f"Codec {source} makes pictures of {seen[0]} codes out of {seen[1]}, but {self.model.name_or_path} "
                f"draws {sizes[0]} out of {sizes[1]}. Pass the codec of its dataset: codec=FOLDER_OR_REPOSITORY."
            )


def _decode(codec: Codec, image_codes: Tensor) -> Tensor:
    """(prompt, candidate, image) codes to (prompt, candidate, 3, height, width) uint8."""
    parts = image_codes.flatten(0, 1).split(NUM_DECODED_TOGETHER)
    pixels = torch.cat([(codec.decode(part) * 255).round().to(torch.uint8) for part in parts])
    return pixels.unflatten(0, image_codes.shape[:2])


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


__all__ = ["TextToImagePipeline"]
