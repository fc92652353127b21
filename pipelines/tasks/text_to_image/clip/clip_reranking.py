"""Score pictures against a caption with a CLIP and keep the best. The only module that imports open_clip.

Axis names: `n` pictures of one caption, `channel`, `height`, `width`, `embedding`.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import open_clip
import torch
import torchvision.transforms.functional as vision
from open_clip.tokenizer import HFTokenizer, SimpleTokenizer
from open_clip.transform import center_crop_or_pad
from safetensors import SafetensorError

from hub_tools.counted import counted
from hub_tools.foreign.downloads import fetch_files
from hub_tools.foreign.json_texts import read_json
from hub_tools.places import local_folder

DEFAULT_CLIP = "ViT-B-32/openai"
"""The CLIP of the paper; its weights are read from the Hub."""

CLIP_CONFIG_FILE = "open_clip_config.json"
CLIP_WEIGHTS_FILE = "open_clip_model.safetensors"

MOST_CLIP_BYTES = 2**34
"""Of a CLIP's weights: the largest published ones have two thirds of it."""

Tokenize = Callable[[Sequence[str]], torch.Tensor]


class ClipReranker:
    """Scores pictures of any size against a caption: `logit_scale * cosine(image embedding, text embedding)`."""

    def __init__(self, model: torch.nn.Module, tokenize: Tokenize, *, device: torch.device | str = "cpu") -> None:
        if damaged := [name for name, value in model.named_parameters() if not value.isfinite().all()]:
            raise ValueError(
                f"The CLIP has values that are not finite in {damaged[0]}, so that its ranking would mean nothing. "
                "Copy or train it again: dalle-collab clip train PICTURES --output DIR"
            )
        self.model = model.to(device).eval().requires_grad_(False)
        self.tokenize = tokenize
        self.device = torch.device(device)

    @classmethod
    def from_pretrained(
        cls,
        name_or_path_or_repo: str | Path = DEFAULT_CLIP,
        *,
        revision: str | None = None,
        device: torch.device | str = "cpu",
    ) -> "ClipReranker":
        """Load a CLIP by `MODEL/TAG` of open_clip, from an open_clip folder, or from a Hub repository laid out as one.

        Raises OSError if nothing can be read and ValueError if it is not an open_clip model.
        """
        name = str(name_or_path_or_repo)
        architecture, _, tag = name.partition("/")
        if not Path(name).exists() and tag and architecture in open_clip.list_models():
            return cls(*_load_by_tag(architecture, tag), device=device)
        return cls(*_load_folder(_local_folder(name, revision), name), device=device)

    def scores(self, caption: str, images: torch.Tensor, *, batch_size: int = 64) -> torch.Tensor:
        """Return how well each picture fits the caption; more is better, comparable within one caption.

        `images: (n, 3, height, width)` float in [0, 1] -> `(n,)` float32 on the CPU. `batch_size` bounds the memory.
        """
        _require_pictures(images)
        text = self.text_embeddings([caption])[0]  # (embedding)
        batches = [self.image_embeddings(batch) @ text for batch in images.split(batch_size)]
        scores = torch.cat(batches) * self.model.logit_scale.exp()
        if self.model.logit_bias is not None:
            scores = scores + self.model.logit_bias
        return scores.float().cpu()

    def best(self, caption: str, images: torch.Tensor, keep: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return `(indices, scores)` of the `keep` best pictures, best first; equal scores keep their order.

        `images: (n, 3, height, width)` float in [0, 1] -> `(keep,)` int64, `(keep,)` float32.
        """
        _require_pictures(images)
        if not 1 <= keep <= len(images):
            raise ValueError(
                f"Cannot keep {keep} of {counted(len(images), 'picture')}: choose a number from 1 to {len(images)}."
            )
        return highest(self.scores(caption, images), keep)

    @torch.inference_mode()
    def text_embeddings(self, captions: Sequence[str]) -> torch.Tensor:
        """Return the unit embeddings of the captions, `(n, embedding)`."""
        return self.model.encode_text(self.tokenize(list(captions)).to(self.device), normalize=True)

    @torch.inference_mode()
    def image_embeddings(self, images: torch.Tensor) -> torch.Tensor:
        """Return the unit embeddings of `images: (n, 3, height, width)` float in [0, 1], `(n, embedding)`."""
        prepared = prepare_pictures(images.to(self.device), self.model.visual.preprocess_cfg)
        return self.model.encode_image(prepared, normalize=True)


def highest(scores: torch.Tensor, keep: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `(indices, scores)` of the `keep` highest of `(n,)` scores, highest first; equal ones keep their order."""
    ranked = scores.sort(descending=True, stable=True)
    return ranked.indices[:keep], ranked.values[:keep]


def prepare_pictures(images: torch.Tensor, preprocess: dict) -> torch.Tensor:
    """Resize, crop or pad, and normalise pictures as the CLIP's preprocess settings say; works on whole batches.

    `images: (n, 3, height, width)` float in [0, 1] -> `(n, 3, clip height, clip width)` float32.
    """
    size = preprocess["size"]
    target = (size, size) if isinstance(size, int) else tuple(size)
    images = images.float()
    if tuple(images.shape[-2:]) != target:
        resized = _resized_shape(tuple(images.shape[-2:]), target, preprocess.get("resize_mode") or "shortest")
        mode = vision.InterpolationMode(preprocess.get("interpolation") or "bicubic")
        # Bicubic resizing overshoots at edges; pictures read from files never leave [0, 1].
        images = vision.resize(images, list(resized), interpolation=mode, antialias=True).clamp(0, 1)
        images = center_crop_or_pad(images, list(target), fill=preprocess.get("fill_color") or 0)
    return vision.normalize(images, list(preprocess["mean"]), list(preprocess["std"]))


def new_clip(model_config: dict, preprocess: dict) -> torch.nn.Module:
    """Return an untrained CLIP of open_clip with these `model_cfg` and `preprocess_cfg` settings."""
    model = open_clip.CLIP(**model_config)
    model.visual.preprocess_cfg = {"size": model.visual.image_size, **preprocess}
    return model


def folder_tokenizer(folder: Path, text_config: dict) -> Tokenize:
    """Return the tokenizer that an open_clip folder's `text_cfg` asks for: the one in the folder or CLIP's own."""
    context_length = text_config.get("context_length", 77)
    options = dict(text_config.get("tokenizer_kwargs") or {})
    if not text_config.get("hf_tokenizer_name"):
        return SimpleTokenizer(context_length=context_length, **options)
    # Untrusted configuration must not be able to run untrusted code.
    options["trust_remote_code"] = False
    mode = text_config.get("tokenizer_mode")
    return HFTokenizer(str(folder), context_length=context_length, tokenizer_mode=mode, **options)


def _resized_shape(shape: tuple[int, int], target: tuple[int, int], resize_mode: str) -> tuple[int, int]:
    if resize_mode == "squash":
        return target
    factors = [wanted / seen for wanted, seen in zip(target, shape, strict=True)]
    factor = min(factors) if resize_mode == "longest" else max(factors)
    return max(1, round(shape[0] * factor)), max(1, round(shape[1] * factor))


def _load_by_tag(architecture: str, tag: str) -> tuple[torch.nn.Module, Tokenize]:
    settings = open_clip.get_pretrained_cfg(architecture, tag)
    if not settings:
        known = ", ".join(open_clip.list_pretrained_tags_by_model(architecture)) or "none"
        raise ValueError(f"open_clip has no weights {tag!r} for {architecture}. It knows: {known}.")
    try:
        model = open_clip.create_model(
            architecture, tag, force_quick_gelu=bool(settings.get("quick_gelu")), require_pretrained=True
        )
    except RuntimeError as error:
        raise OSError(
            f"The weights of CLIP {architecture}/{tag} cannot be read ({_last_line(error)}). Check the connection to "
            f"the Hub, or name a local open_clip folder: --clip FOLDER."
        ) from error
    return model, open_clip.get_tokenizer(architecture)


def _local_folder(name: str, revision: str | None) -> Path:
    known = f"a CLIP's folder with {CLIP_CONFIG_FILE}, a Hub repository ORG/NAME, or MODEL/TAG as {DEFAULT_CLIP}"
    folder = local_folder(name, expected=known)
    if folder is not None:
        return folder
    # Weights in other formats are pickles and are not downloaded.
    patterns = ["*.json", "*.txt", CLIP_WEIGHTS_FILE]
    return fetch_files(name, revision=revision, patterns=patterns, most_weights_bytes=MOST_CLIP_BYTES)


def _load_folder(folder: Path, name: str) -> tuple[torch.nn.Module, Tokenize]:
    for file in (CLIP_CONFIG_FILE, CLIP_WEIGHTS_FILE):
        if not (folder / file).is_file():
            raise FileNotFoundError(
                f"CLIP {name} has no {file}: expected an open_clip folder with {CLIP_CONFIG_FILE} and "
                f"{CLIP_WEIGHTS_FILE}. Train one with: dalle-collab clip train PICTURES --output DIR"
            )
    try:
        config = read_json(folder / CLIP_CONFIG_FILE)
        tokenize = folder_tokenizer(folder, config["model_cfg"]["text_cfg"])
        model = open_clip.create_model(f"local-dir:{folder}", require_pretrained=True)
    except (SafetensorError, ValueError, RuntimeError, KeyError, TypeError, OSError) as error:
        raise ValueError(
            f"CLIP {name} cannot be loaded ({_last_line(error)}): expected an open_clip model whose weights fit its "
            f"{CLIP_CONFIG_FILE}. Copy or train it again: dalle-collab clip train PICTURES --output DIR"
        ) from error
    return model, tokenize


def _last_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1].strip().rstrip(".")[:200]


def _require_pictures(images: torch.Tensor) -> None:
    if images.ndim != 4 or images.shape[1] != 3 or len(images) == 0 or not images.is_floating_point():
        raise ValueError(
            f"Expected pictures of shape (n, 3, height, width), n >= 1, float in [0, 1]; "
            f"got {tuple(images.shape)} {images.dtype}."
        )
