"""Load everything that turns a prompt into pictures: the model, its processor, the codec and the CLIP of a run."""

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError

from hub_tools.checks import check_loaded
from hub_tools.foreign.json_texts import read_json
from hub_tools.places import local_folder
from hub_tools.run_files import MODEL_FILES, PROCESSOR_FILES, RUN_STATE_FILE, TRAINING_RUN_FILE
from modeling_dalle_collab import DalleCollabForConditionalGeneration, DalleCollabProcessor
from pipelines.features.memory_estimate.hub_config import fetch_model
from pipelines.tasks.text_to_image.clip.clip_reranking import DEFAULT_CLIP, ClipReranker
from pipelines.tasks.text_to_image.image_codes.codec_code import open_codec
from pipelines.tasks.text_to_image.image_codes.vqgan_codec import VQGANCodec

WEIGHTS = ("published", "int8")


class NoCheckpointError(ValueError):
    """The run exists but has published no weights yet."""


@dataclass(frozen=True, kw_only=True)
class DrawingContext:
    """The parts that together turn a prompt into pictures; all on one device."""

    name: str
    """Repository or folder it was loaded from."""
    model: DalleCollabForConditionalGeneration
    """Draws image codes for a prompt."""
    processor: DalleCollabProcessor
    """Turns prompts into text ids."""
    codec: VQGANCodec
    """Turns image codes into pictures."""
    epoch: int | None = None
    """Epoch at which the run published it; None if unknown."""

    def __post_init__(self) -> None:
        sizes, codec_sizes = self.model.config, self.codec.config
        seen = (codec_sizes.num_codes, codec_sizes.codebook_size)
        expected = (sizes.image_grid_size**2, sizes.codebook_size)
        if seen != expected:
            raise ValueError(
                f"The codec makes pictures of {seen[0]} codes out of {seen[1]}, but {self.name} was trained on "
                f"{expected[0]} codes out of {expected[1]}. Leave out --codec, or pass the codec of the run's dataset."
            )


@dataclass(frozen=True, kw_only=True)
class TextToImage(DrawingContext):
    """The parts that together turn a prompt into ranked pictures; all on one device."""

    reranker: ClipReranker
    """Ranks pictures by how well they fit the prompt."""


@dataclass(frozen=True, kw_only=True)
class RankingContext:
    """What turns a prompt's image codes into ranked pictures, wherever they were drawn; all on one device."""

    name: str
    """Repository or folder it was loaded from."""
    processor: DalleCollabProcessor
    """Turns prompts into text ids."""
    codec: VQGANCodec
    """Turns image codes into pictures."""
    reranker: ClipReranker
    """Ranks pictures by how well they fit the prompt."""
    epoch: int | None = None
    """Epoch at which the run published it; None if unknown."""


def load_drawing_parts(
    repository_or_folder: str | Path,
    *,
    revision: str | None = None,
    codec: str | Path | None = None,
    device: torch.device | str = "cpu",
    weights: str = "published",
) -> DrawingContext:
    """Load a run's newest published checkpoint, or that of `revision`, with the codec that it names.

    `weights` may be `int8`, which draws faster on a CPU and changes the codes a little.
    `codec` replaces the one in the run's `processor_config.json`; it must have the fingerprint noted there. Files
    already in the Hub's cache are reused.

    Raises:
        NoCheckpointError: the run has published no weights yet.
        ValueError: the parts do not fit together or are damaged.
        OSError: a file or the Hub cannot be read.
    """
    if weights not in WEIGHTS:
        raise ValueError(f"weights is {weights!r}, expected one of {', '.join(WEIGHTS)}.")
    name = str(repository_or_folder)
    folder = model_folder(name, revision, MODEL_FILES)
    _require_checkpoint(folder, name)
    processor = DalleCollabProcessor.from_pretrained(folder, trust_remote_code=False)
    model = _load_model(folder, name).to(device).eval()
    if weights == "int8":
        model.use_int8_weights()
    return DrawingContext(
        name=name,
        processor=processor,
        model=model,
        codec=load_codec(processor, name, codec, device),
        epoch=_epoch_of(folder),
    )


def load_text_to_image(
    repository_or_folder: str | Path,
    *,
    revision: str | None = None,
    codec: str | Path | None = None,
    clip: str | Path | None = None,
    device: torch.device | str = "cpu",
    weights: str = "published",
) -> TextToImage:
    """Do the same as `load_drawing_parts`, with the CLIP that the run names, or `clip`; the same errors."""
    parts = load_drawing_parts(repository_or_folder, revision=revision, codec=codec, device=device, weights=weights)
    return TextToImage(**vars(parts), reranker=load_reranker(parts.processor, clip, device))


def load_ranking_parts(
    repository_or_folder: str | Path,
    *,
    revision: str | None = None,
    codec: str | Path | None = None,
    clip: str | Path | None = None,
    device: torch.device | str = "cpu",
) -> RankingContext:
    """Load all but the model of what `load_text_to_image` loads, without its weights; the same errors."""
    name = str(repository_or_folder)
    folder = model_folder(name, revision, PROCESSOR_FILES)
    processor = DalleCollabProcessor.from_pretrained(folder, trust_remote_code=False)
    return with_clip(name, processor, load_codec(processor, name, codec, device), clip, epoch=_epoch_of(folder))


def with_clip(
    name: str,
    processor: DalleCollabProcessor,
    codec: VQGANCodec,
    clip: str | Path | None = None,
    *,
    epoch: int | None = None,
) -> RankingContext:
    """Load the CLIP that a run's processor names, or `clip`, to a codec, on its device; raises as `load_reranker`."""
    reranker = load_reranker(processor, clip, next(codec.parameters()).device)
    return RankingContext(name=name, processor=processor, codec=codec, reranker=reranker, epoch=epoch)


def model_folder(name: str, revision: str | None, files: tuple[str, ...]) -> Path:
    """Return a folder with these files of a repository, at a commit, or the folder that was named.

    Raises:
        ValueError: the name is neither.
        OSError: the Hub cannot be reached, or has no such repository.
    """
    folder = local_folder(name, revision=revision, expected="a folder or a Hub repository ORG/RUN")
    if folder is not None:
        return folder
    # One snapshot, so that all files are of one commit even while the run publishes the next one.
    return fetch_model(name, revision=revision, patterns=files)


def _require_checkpoint(folder: Path, name: str) -> None:
    if (folder / "config.json").is_file() and any(folder.glob("model*.safetensors")):
        return
    if (folder / TRAINING_RUN_FILE).is_file():
        raise NoCheckpointError(
            f"{name} has published no checkpoint yet: wait for the auxiliary peer's first one. "
            f"If none is running, start it with: dalle-collab run assist {name}"
        )
    raise ValueError(
        f"{name} has no text-to-image model: expected config.json and model.safetensors as published by a run. "
        "Check the name."
    )


def _load_model(folder: Path, name: str) -> DalleCollabForConditionalGeneration:
    try:
        model, found = DalleCollabForConditionalGeneration.from_pretrained(folder, output_loading_info=True)
    except (SafetensorError, RuntimeError) as error:
        raise ValueError(
            f"The weights of {name} do not fit its config.json or are damaged ({str(error).splitlines()[0]}). "
            "Download them again, or load an earlier checkpoint: --revision COMMIT"
        ) from error
    check_loaded(model, found, name, may_have_others=False)
    return model


def load_reranker(
    processor: DalleCollabProcessor, replacement: str | Path | None, device: torch.device | str
) -> ClipReranker:
    """Load the CLIP that a run's processor names, or its replacement; ValueError or OSError as `from_pretrained`."""
    return ClipReranker.from_pretrained(replacement or clip_name(processor), device=device)


def clip_name(processor: DalleCollabProcessor) -> str:
    """Return which CLIP ranks a run's pictures, as `ClipReranker.from_pretrained` takes it."""
    return processor.clip_repository or DEFAULT_CLIP


def _epoch_of(folder: Path) -> int | None:
    try:
        epoch = read_json(folder / RUN_STATE_FILE)["epoch"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return epoch if isinstance(epoch, int) else None


def load_codec(
    processor: DalleCollabProcessor, name: str, replacement: str | Path | None, device: torch.device | str
) -> VQGANCodec:
    """Load the codec that a run's processor names, or its replacement; the errors of `load_drawing_parts`."""
    source = replacement or processor.image_codec_repository
    if source is None:
        raise ValueError(f"{name} does not say which codec made its image codes. Name it: --codec FOLDER_OR_REPOSITORY")
    revision = None if replacement else processor.image_codec_revision
    codec = open_codec(source, revision=revision, device=device)
    expected = processor.image_codec_fingerprint
    if expected is not None and codec.fingerprint != expected:
        home = processor.image_codec_repository or "the run's dataset"
        raise ValueError(
            f"Codec {source} has fingerprint {codec.fingerprint}, but {name} was trained on codes of {expected}: its "
            f"pictures would be noise. Use the codec of {home}."
        )
    return codec
