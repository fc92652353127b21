"""Trains a small VQGAN codec on your own pictures, without a discriminator or a downloaded perceptual network.

Which codes a picture has is decided at once: the encoder is the linear map to the patches' principal components, and
k-means places the codebook over them. So a code tells of its own patch alone, which a transformer learns easily. What
is learned is the decoder, which looks at all codes of a picture. Some of the codes that it learns from are wrong: a
transformer draws wrong codes, too, and a decoder that has seen some mends them.

Axis names: batch, height, width, embedding, grid, position (= batch * grid * grid).
"""

import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from pipelines.tasks.text_to_image.image_codes.codebook import place_by_k_means
from pipelines.tasks.text_to_image.image_codes.vqgan_codec import VQGANCodec

SHARE_FROM_NOWHERE = 0.25
"""Wrong codes drawn from the whole codebook. The others are those of another picture at the same place or next to it,
as a transformer's mistakes are."""
NUM_TIMED_STEPS = 3
"""Steps before the time of a step is believed."""
STEPS_AT_FIRST = 1000
"""How many are expected until then: enough for the learning rate to begin low."""


@dataclass(frozen=True, kw_only=True)
class CodecTrainingOptions:
    """How a codec is trained."""

    num_steps: int | None = None
    """Steps of one batch each; None: as many as fit `minutes`."""
    minutes: float = 15.0
    """How long training takes, with placing the codebook, unless `num_steps` is set."""
    batch_size: int = 16
    """Pictures per step."""
    learning_rate: float = 2e-3
    """Peak of the schedule: 2 % warm-up, then a half cosine down to zero."""
    edge_weight: float = 1.0
    """Weight of the differences between neighbouring pixels. Increase if edges come out soft."""
    code_corruption: float = 0.06
    """Mean share of wrong codes in what the decoder sees. Increase if drawings fall apart, decrease for a more faithful
    reconstruction."""
    num_placing_codes: int = 120_000
    """Codes of the first batches, used by k-means to place the codebook."""
    seed: int = 0
    """Seed of the codebook's placing and of the wrong codes."""

    def __post_init__(self) -> None:
        for name in ("num_steps", "batch_size", "num_placing_codes"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name} is {value}, expected at least 1.")
        if not 0 < self.minutes < math.inf:
            raise ValueError(f"minutes is {self.minutes}, expected a positive number.")
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate is {self.learning_rate}, expected a positive number.")
        if not self.edge_weight >= 0:
            raise ValueError(f"edge_weight is {self.edge_weight}, expected 0 or more.")
        if not 0 <= self.code_corruption <= 0.5:
            raise ValueError(f"code_corruption is {self.code_corruption}, expected 0 to 0.5.")


@dataclass(frozen=True, kw_only=True)
class CodecTrainingProgress:
    """Progress after a step."""

    step: int
    """Steps done."""
    num_steps: int
    """Steps in all; while time decides, as many as are expected after this step."""
    loss: float
    """The last step's loss."""
    mean_absolute_error: float
    """Mean absolute difference between pictures and reconstructions, of the range [0, 1]."""


def train_codec(
    codec: VQGANCodec,
    batches: Iterator[torch.Tensor],
    options: CodecTrainingOptions,
    on_step: Callable[[CodecTrainingProgress], None] = lambda progress: None,
    *,
    start_anew: bool = True,
    clock: Callable[[], float] = time.monotonic,
) -> CodecTrainingProgress:
    """Train the codec in place on batches of (batch, 3, height, width) floats in [0, 1]; returns the last progress.

    start_anew: train from scratch, and the first batches place encoder and codebook; False continues with the decoder,
    so that the codes stay the same. An interrupted call leaves the codec in evaluation mode with its progress so far.
    Without `num_steps` the learning rate follows the clock, in seconds: a machine that slows down ends no later.
    ValueError for a codec without a linear encoder and for a loss that is not finite.
    """
    if codec.config.quantizer != "nearest" or not codec.config.linear_encoder:
        raise ValueError(
            f"Training needs the quantizer `nearest` and a linear encoder, this codec has `{codec.config.quantizer}` "
            f"and linear_encoder={codec.config.linear_encoder}. Start from a new codec."
        )
    deadline = clock() + 60 * options.minutes
    generator = torch.Generator().manual_seed(options.seed)
    codec.train().requires_grad_(False)
    if start_anew:
        num_batches = -(-options.num_placing_codes // (options.batch_size * codec.config.num_codes))
        place_codes(codec, torch.cat([next(batches) for _ in range(num_batches)]), generator)
    training = _DecoderTraining(codec, options, generator)
    began = clock()
    try:
        for num_done in itertools.count():
            num_steps = options.num_steps or steps_that_fit(num_done, clock() - began, deadline - clock())
            if num_done and num_done >= num_steps:
                break
            progress = training.run_step(num_done + 1, num_steps, next(batches))
            on_step(progress)
    finally:
        codec.eval().requires_grad_(False)
    return progress


def random_batches(
    images: torch.Tensor, batch_size: int, seed: int, device: torch.device | str = "cpu"
) -> Iterator[torch.Tensor]:
    """Endless random batches. images: (num_pictures, 3, height, width) uint8 -> floats in [0, 1]."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        rows = torch.randint(len(images), (batch_size,), generator=generator)
        yield images[rows].to(device).float() / 255


def steps_that_fit(num_done: int, seconds_taken: float, seconds_left: float) -> int:
    """Return how many steps there will be in all, if the others take as long as those that are done."""
    if seconds_left <= 0:
        return num_done
    if num_done < NUM_TIMED_STEPS:
        return STEPS_AT_FIRST
    return num_done + int(seconds_left * num_done / max(seconds_taken, 1e-9))


def learning_rate_factor(step: int, num_steps: int) -> float:
    """Share of the peak learning rate at a step: 2 % linear warm-up, then half a cosine down to zero."""
    warm_up_steps = max(1, num_steps // 50)
    if step <= warm_up_steps:
        return step / warm_up_steps
    return 0.5 * (1 + math.cos(math.pi * (step - warm_up_steps) / max(1, num_steps - warm_up_steps)))


def reconstruction_loss(images: torch.Tensor, reconstructions: torch.Tensor, edge_weight: float) -> torch.Tensor:
    """Mean absolute and squared error of pixels, and the mean absolute error of differences between neighbours."""
    difference = reconstructions - images
    edges = (difference[..., 1:] - difference[..., :-1]).abs().mean()
    edges = edges + (difference[..., 1:, :] - difference[..., :-1, :]).abs().mean()
    return difference.abs().mean() + 2 * difference.pow(2).mean() + 0.5 * edge_weight * edges


@torch.no_grad()
def place_codes(codec: VQGANCodec, images: torch.Tensor, generator: torch.Generator) -> None:
    """Make the encoder the images' principal components, and put the codebook over them.

    images: (batch, 3, height, width) in [0, 1]. The components are scaled to a mean variance of one.
    """
    factor, size = codec.config.downsampling_factor, codec.config.embedding_dim
    centred = 2 * images - 1
    mean = centred.mean(dim=(0, 2, 3))
    patches = F.pixel_unshuffle(centred - mean[:, None, None], factor).permute(0, 2, 3, 1).flatten(0, 2)
    values, vectors = torch.linalg.eigh(patches.T @ patches / len(patches))
    num_components = min(size, vectors.shape[1])
    components = vectors.new_zeros(size, vectors.shape[0])
    components[:num_components] = vectors[:, -num_components:].T.flip(0)
    components /= (values[-num_components:].sum() / size).clamp_min(1e-8).sqrt()
    projection = components.view(size, 3, factor, factor)
    codec.encoder.weight.copy_(projection)
    codec.encoder.bias.copy_(-(projection.sum((2, 3)) @ mean))
    # Flat patches are frequent and similar: sampled evenly, they would take most of the codes.
    chances = 0.01 + patches.std(dim=1).cpu()
    picked = torch.multinomial(chances, len(patches), replacement=True, generator=generator)
    latents = codec.latents(images).permute(0, 2, 3, 1).flatten(0, 2)  # (position, embedding)
    place_by_k_means(codec.codebook, latents[picked.to(images.device)], generator)
    if codec.config.linear_decoder:  # the decoder's own part begins with nothing
        nn.init.zeros_(codec.decoder.conv_out.weight)
        nn.init.zeros_(codec.decoder.conv_out.bias)


def with_wrong_codes(codes: torch.Tensor, share: float, codebook_size: int, generator: torch.Generator) -> torch.Tensor:
    """Replace codes, (batch, grid, grid) int64: in some pictures none, in others up to twice the share of them."""
    rates = 2 * share * torch.rand(len(codes), 1, 1, generator=generator)
    wrong = torch.rand(codes.shape, generator=generator) < rates
    others = codes.cpu()[torch.randperm(len(codes), generator=generator)]
    is_neighbour = torch.rand(codes.shape, generator=generator) < 0.5
    others = torch.where(is_neighbour, others.roll(1, dims=1), others)
    from_nowhere = torch.rand(codes.shape, generator=generator) < SHARE_FROM_NOWHERE
    anything = torch.randint(codebook_size, codes.shape, generator=generator)
    return torch.where(wrong, torch.where(from_nowhere, anything, others), codes.cpu()).to(codes.device)


class _DecoderTraining:
    def __init__(self, codec: VQGANCodec, options: CodecTrainingOptions, generator: torch.Generator):
        self.codec, self.options, self.generator = codec, options, generator
        self.trained = [*codec.decoder.parameters(), *codec.post_quant_conv.parameters()]
        for parameter in self.trained:
            parameter.requires_grad_(True)
        self.optimizer = torch.optim.AdamW(self.trained, betas=(0.9, 0.99), weight_decay=1e-4)

    def run_step(self, step: int, num_steps: int, images: torch.Tensor) -> CodecTrainingProgress:
        codes = self.codec.nearest_codes(self.codec.latents(images))
        seen = with_wrong_codes(codes, self.options.code_corruption, len(self.codec.codebook), self.generator)
        reconstructions = self.codec.reconstruct(F.embedding(seen, self.codec.codebook).permute(0, 3, 1, 2))
        loss = reconstruction_loss(images, reconstructions, self.options.edge_weight)
        self._descend(loss, step, num_steps)
        return CodecTrainingProgress(
            step=step,
            num_steps=num_steps,
            loss=loss.item(),
            mean_absolute_error=(reconstructions.detach() - images).abs().mean().item(),
        )

    def _descend(self, loss: torch.Tensor, step: int, num_steps: int) -> None:
        if not torch.isfinite(loss):
            raise ValueError(f"The loss is {loss.item()} at step {step}. Use a smaller --learning-rate.")
        for group in self.optimizer.param_groups:
            group["lr"] = self.options.learning_rate * learning_rate_factor(step, num_steps)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.trained, 1.0)
        self.optimizer.step()
