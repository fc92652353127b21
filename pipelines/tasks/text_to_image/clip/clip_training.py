"""Train a small CLIP on captioned pictures, for runs without a published CLIP that fits their pictures.

Axis names: `batch` pairs of a picture and its caption, `embedding`.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from hub_tools.printing.stage_progress import OnProgress
from pipelines.tasks.text_to_image.clip.clip_folder import (
    EOS_ID,
    MIN_VOCABULARY,
    PAD_ID,
    require_replaceable,
    save_clip_folder,
    train_clip_tokenizer,
)
from pipelines.tasks.text_to_image.clip.clip_pictures import (
    CaptionedPictures,
    collect_pictures,
    through_the_codec,
)
from pipelines.tasks.text_to_image.clip.clip_reranking import new_clip
from pipelines.tasks.text_to_image.clip.contrastive_learning import (
    clip_batches,
    clip_steps,
    has_learnt,
    retrieval_accuracy,
    retrieval_by_chance,
    token_ids,
)
from pipelines.tasks.text_to_image.image_codes.vqgan_codec import VQGANCodec

PREPROCESS = {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5], "interpolation": "bicubic", "resize_mode": "shortest"}
COUNTS = ("image_size", "vision_width", "text_width", "text_layers", "embed_dim", "num_steps", "group_size")
POSITION_SCALE = 25.0


@dataclass(frozen=True, kw_only=True)
class ClipTrainingConfig:
    """Sizes of a small CLIP and how it is trained."""

    image_size: int = 64
    """Pixels of a side, a multiple of 32; pictures are cropped to squares."""
    vision_width: int = 16
    """Channels of the first of the four stages of the residual network; each stage has twice as many. An even number.
    Increase if the held-out retrieval stays low."""
    vision_layers: tuple[int, int, int, int] = (1, 1, 1, 1)
    """Residual blocks of each stage."""
    text_width: int = 64
    """Channels of the text transformer, a multiple of 32."""
    text_layers: int = 2
    """Layers of the text transformer."""
    context_length: int = 24
    """Tokens of a caption with its end token; longer captions are truncated."""
    vocab_size: int = 512
    """Largest size of the tokenizer that is trained on the captions; at least 258."""
    embed_dim: int = 64
    """Size of the joint embedding of pictures and captions."""
    num_steps: int = 1500
    """Optimizer steps."""
    batch_size: int = 128
    """Pairs per step; the other captions of a batch are the negatives."""
    group_size: int = 16
    """Pairs of a batch that are chosen for their similar captions, which makes the negatives hard; 1: chosen at random.
    Increase if ranked pictures are right but for one word; decrease if captions repeat and pictures of them differ."""
    peak_learning_rate: float = 2e-3
    """Learning rate after the warm-up of 10 % of the steps; from there it falls as a cosine to zero."""
    weight_decay: float = 0.05
    """AdamW's weight decay of matrices."""
    redrawn_share: float = 0.5
    """Share of pictures replaced by the codec's reconstructions, if a codec is given."""
    code_corruption: float = 0.03
    """Mean share of image codes replaced by random ones before the codec reconstructs a picture."""
    held_out_share: float = 0.05
    """Share of the pictures held out for evaluation, at most 512 pictures."""
    seed: int = 0
    """Seed of initialisation, batches and corruption."""

    def __post_init__(self) -> None:
        for name in COUNTS:
            _require(getattr(self, name) >= 1, f"{name} is {getattr(self, name)}: expected at least 1.")
        _require(self.image_size % 32 == 0, f"image_size is {self.image_size}: expected a multiple of 32.")
        _require(self.vision_width % 2 == 0, f"vision_width is {self.vision_width}: expected an even number.")
        _require(
            len(self.vision_layers) == 4 and min(self.vision_layers) >= 1,
            f"vision_layers is {self.vision_layers}: expected four counts of at least 1.",
        )
        _require(self.text_width % 32 == 0, f"text_width is {self.text_width}: expected a multiple of 32.")
        _require(self.vocab_size >= MIN_VOCABULARY, f"vocab_size is {self.vocab_size}: expected {MIN_VOCABULARY}+.")
        _require(self.context_length >= 2, f"context_length is {self.context_length}: expected at least 2.")
        _require(self.batch_size >= 2, f"batch_size is {self.batch_size}: a contrast needs at least 2 pairs.")
        for name in ("redrawn_share", "code_corruption", "held_out_share"):
            share = getattr(self, name)
            _require(0 <= share <= 1, f"{name} is {share}: expected a share from 0 to 1.")

    def model_config(self, vocab_size: int) -> dict:
        """Return open_clip's `model_cfg` for a tokenizer of this size."""
        return {
            "embed_dim": self.embed_dim,
            "vision_cfg": {
                "image_size": self.image_size,
                "width": self.vision_width,
                "layers": list(self.vision_layers),
                "head_width": 64,
            },
            "text_cfg": {
                "context_length": self.context_length,
                "vocab_size": vocab_size,
                # Any name means "the tokenizer is in this folder"; open_clip then reads it from there.
                "hf_tokenizer_name": "tokenizer.json",
                "width": self.text_width,
                "heads": self.text_width // 32,
                "layers": self.text_layers,
                "pool_type": "eos",
                "eos_id": EOS_ID,
                "pad_id": PAD_ID,
            },
        }


@dataclass(frozen=True, kw_only=True)
class ClipTrainingReport:
    """Report of training a CLIP."""

    num_pictures: int
    """Training pictures, without held-out ones."""
    num_held_out: int
    """Held-out pictures."""
    num_steps: int
    """Steps done; fewer than requested after an interruption."""
    losses: tuple[float, ...]
    """Loss of every step, in nats."""
    retrieval_accuracy: float
    """Share of held-out captions that find their own picture first among all held-out pictures."""
    chance: float
    """The same by chance."""
    has_learnt: bool | None
    """Whether that is more than luck; None: the held-out pictures are too few to tell."""
    num_parameters: int
    """Parameters of the CLIP."""
    num_bytes: int
    """Bytes of the weights file; 0: nothing was saved, as nothing was learnt."""
    seconds: float
    """Wall-clock time."""
    was_interrupted: bool
    """Whether Ctrl-C ended it early."""


def train_clip(
    pairs: Iterable[tuple[str, np.ndarray]],
    output: Path,
    config: ClipTrainingConfig,
    *,
    codec: VQGANCodec | None = None,
    on_progress: OnProgress | None = None,
    save_anyway: bool = False,
) -> ClipTrainingReport:
    """Train a CLIP on `(caption, picture (height, width, 3) uint8)` pairs and write it to `output` atomically.

    A CLIP that has learnt nothing is not written, unless `save_anyway`: it would rank at random, and replace another.

    With a codec, a share of the pictures is replaced by reconstructions with some wrong codes, to look like generated
    pictures. Ctrl-C during the steps saves what was learnt; before them it leaves `output` as it was.
    """
    started = time.monotonic()
    require_replaceable(output)
    learnt, held_out = _split(collect_pictures(pairs, config.image_size, on_progress=on_progress), config)
    tokenizer = train_clip_tokenizer(learnt.captions, config.vocab_size)
    model_config = config.model_config(len(tokenizer))
    model = _new_model(model_config, config.seed)
    redrawn = _redrawn(learnt.pictures, codec, config, on_progress)
    losses, was_interrupted = _learn(model, learnt, redrawn, tokenizer, config, on_progress)
    held_out_ids = token_ids(tokenizer, held_out.captions, config.context_length)
    accuracy, chance = retrieval_accuracy(model, held_out, held_out_ids), retrieval_by_chance(held_out_ids)
    learnt_something = has_learnt(round(accuracy * len(held_out)), len(held_out), chance)
    num_bytes = 0
    if learnt_something is not False or save_anyway:
        num_bytes = save_clip_folder(output, model, tokenizer, model_config=model_config, preprocess=PREPROCESS)
    return ClipTrainingReport(
        num_pictures=len(learnt),
        num_held_out=len(held_out),
        num_steps=len(losses),
        losses=tuple(losses),
        retrieval_accuracy=accuracy,
        chance=chance,
        has_learnt=learnt_something,
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        num_bytes=num_bytes,
        seconds=time.monotonic() - started,
        was_interrupted=was_interrupted,
    )


def _new_model(model_config: dict, seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    model = new_clip(model_config, PREPROCESS)
    with torch.no_grad():
        # In captioned scenes, position was learnt last, by vision transformers and by this network with
        # open_clip's small positions: 130 of 200 errors after 200 steps. With these there were none.
        model.visual.attnpool.positional_embedding.mul_(POSITION_SCALE)
    model.visual.to(memory_format=torch.channels_last)  # 1.5 times faster on a CPU
    return model


def _split(data: CaptionedPictures, config: ClipTrainingConfig) -> tuple[CaptionedPictures, CaptionedPictures]:
    num_held_out = min(512, max(1, round(len(data) * config.held_out_share)))
    _require(len(data) - num_held_out >= 2, f"{len(data)} captioned pictures are too few: expected at least 3.")
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(config.seed)).tolist()
    return data.rows(order[num_held_out:]), data.rows(order[:num_held_out])


def _redrawn(
    pictures: torch.Tensor, codec: VQGANCodec | None, config: ClipTrainingConfig, on_progress: OnProgress | None
) -> torch.Tensor | None:
    if codec is None:
        return None
    return through_the_codec(
        pictures, codec, corruption=config.code_corruption, seed=config.seed, on_progress=on_progress
    )


def _learn(
    model: torch.nn.Module,
    learnt: CaptionedPictures,
    redrawn: torch.Tensor | None,
    tokenizer: PreTrainedTokenizerBase,
    config: ClipTrainingConfig,
    on_progress: OnProgress | None,
) -> tuple[list[float], bool]:
    batches = clip_batches(
        learnt,
        token_ids(tokenizer, learnt.captions, config.context_length),
        batch_size=config.batch_size,
        group_size=config.group_size,
        redrawn=redrawn,
        redrawn_share=config.redrawn_share,
        generator=torch.Generator().manual_seed(config.seed),
    )
    return clip_steps(
        model,
        batches,
        num_steps=config.num_steps,
        peak_learning_rate=config.peak_learning_rate,
        weight_decay=config.weight_decay,
        on_progress=on_progress,
    )


def _require(is_met: bool, message: str) -> None:
    if not is_met:
        raise ValueError(message)
