"""Trains a small VQGAN codec on your own pictures, without a discriminator or a downloaded perceptual network.

A codebook learned from scratch wastes most of its codes on what is frequent (flat areas). So training starts from the
patches' principal components as the codec's linear shortcut, with a codebook that k-means places over them; encoder and
decoder start at zero next to it and learn what neighbouring patches say about each other.

Axis names: batch, height, width, embedding, grid, position (= batch * grid * grid).
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from pipelines.image_codes.codebook import Codebook
from pipelines.image_codes.vqgan_codec import VQGANCodec


@dataclass(frozen=True, kw_only=True)
class CodecTrainingOptions:
    """How a codec is trained."""

    num_steps: int = 1500
    """Steps of one batch each."""
    batch_size: int = 16
    """Pictures per step."""
    learning_rate: float = 1e-3
    """Peak of the schedule: 2 % warm-up, then a half cosine down to zero."""
    encoder_rate: float = 0.1
    """The encoder's learning rate as a share of the decoder's. The codebook must follow the encoder, and at
    the full rate the initial codes are lost faster than better ones are found."""
    commitment_weight: float = 0.25
    """Pull of the encoder towards its codes. Increase if the loss rises late in training."""
    locality_weight: float = 0.25
    """Cost of what the encoder adds to the linear map of a code's own patch. Increase if equal areas have different
    codes in different pictures, which a transformer finds hard to learn."""
    edge_weight: float = 1.0
    """Weight of the differences between neighbouring pixels. Increase if edges come out soft."""
    codebook_decay: float = 0.99
    """A codebook vector is the moving average of the latents it stands for, with this decay per step."""
    restart_interval_steps: int = 50
    """Steps between moves of unused codes to badly served latents, in the first two thirds of the steps."""
    num_placing_codes: int = 120_000
    """Codes of the first batches, used by k-means to place the codebook."""
    seed: int = 0
    """Seed of the codebook's placing and restarts."""

    def __post_init__(self) -> None:
        for name in ("num_steps", "batch_size", "restart_interval_steps", "num_placing_codes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, expected at least 1.")
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate is {self.learning_rate}, expected a positive number.")
        for name in ("encoder_rate", "commitment_weight", "locality_weight", "edge_weight"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)}, expected 0 or more.")
        if not 0 <= self.codebook_decay < 1:
            raise ValueError(f"codebook_decay is {self.codebook_decay}, expected at least 0 and less than 1.")


@dataclass(frozen=True, kw_only=True)
class CodecTrainingProgress:
    """Progress after a step."""

    step: int
    """Steps done."""
    loss: float
    """The last step's loss."""
    mean_absolute_error: float
    """Mean absolute difference between pictures and reconstructions, of the range [0, 1]."""
    codes_in_use: int
    """Codes used by recent batches."""


def train_codec(
    codec: VQGANCodec,
    batches: Iterator[torch.Tensor],
    options: CodecTrainingOptions,
    on_step: Callable[[CodecTrainingProgress], None] = lambda progress: None,
    *,
    start_anew: bool = True,
) -> CodecTrainingProgress:
    """Train the codec in place on batches of (batch, 3, height, width) floats in [0, 1]; returns the last progress.

    start_anew: train from scratch; False continues training a codec. The first batches place the codebook. An
    interrupted call leaves the codec in evaluation mode with its progress so far. ValueError for a codec without
    linear shortcut and for a loss that is not finite.
    """
    if codec.config.quantizer != "nearest" or not codec.config.linear_shortcut:
        raise ValueError(
            f"Training needs the quantizer `nearest` and a linear shortcut, this codec has `{codec.config.quantizer}` "
            f"and linear_shortcut={codec.config.linear_shortcut}. Start from a new codec."
        )
    training = _CodecTraining(codec, batches, options, start_anew)
    try:
        for step in range(1, options.num_steps + 1):
            progress = training.run_step(step, next(batches))
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


def start_at_principal_components(codec: VQGANCodec, images: torch.Tensor, codebook: Codebook) -> None:
    """Make the codec a k-means codec of the images' patches: encoder and decoder add nothing yet.

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
    scale = (values[-num_components:].sum() / size).clamp_min(1e-8).sqrt()
    projection = components.view(size, 3, factor, factor)
    with torch.no_grad():
        codec.shortcut_in.weight.copy_(projection / scale)
        codec.shortcut_in.bias.copy_(-(projection.sum((2, 3)) @ mean) / scale)
        codec.shortcut_out.weight.copy_(projection * scale)
        codec.shortcut_out.bias.copy_(mean)
        for layer in (codec.quant_conv, codec.decoder.conv_out):
            layer.weight.zero_()
            layer.bias.zero_()
        # Flat patches are frequent and similar: sampled evenly, they would take most of the codes.
        chances = 0.01 + patches.std(dim=1).cpu()
        picked = torch.multinomial(chances, len(patches), replacement=True, generator=codebook.generator)
        codebook.place_by_k_means(_by_position(codec.latents(images))[picked.to(images.device)])


class _CodecTraining:
    def __init__(
        self, codec: VQGANCodec, batches: Iterator[torch.Tensor], options: CodecTrainingOptions, start_anew: bool
    ):
        self.codec, self.options = codec, options
        # The linear shortcut is frozen: at these rates a few steps would scramble its small weights.
        decoder = [*codec.decoder.parameters(), *codec.post_quant_conv.parameters()]
        encoder = [*codec.encoder.parameters(), *codec.quant_conv.parameters()]
        self.optimizer = torch.optim.AdamW(
            [{"params": decoder, "rate": 1.0}, {"params": encoder, "rate": options.encoder_rate}],
            lr=options.learning_rate,
            betas=(0.9, 0.99),
            weight_decay=1e-4,
        )
        self.trained = [*decoder, *encoder]
        generator = torch.Generator().manual_seed(options.seed)
        self.codebook = Codebook(codec.codebook, decay=options.codebook_decay, generator=generator)
        num_placing = -(-options.num_placing_codes // (options.batch_size * codec.config.num_codes))
        images = torch.cat([next(batches) for _ in range(num_placing)])
        if start_anew:
            start_at_principal_components(codec, images, self.codebook)
        else:
            with torch.no_grad():
                self.codebook.adopt(_by_position(codec.latents(images)))
        codec.train().requires_grad_(False)
        for parameter in self.trained:
            parameter.requires_grad_(True)

    def run_step(self, step: int, images: torch.Tensor) -> CodecTrainingProgress:
        options = self.options
        for group in self.optimizer.param_groups:
            group["lr"] = group["rate"] * options.learning_rate * learning_rate_factor(step, options.num_steps)
        learned = self.codec.encoder_latents(images)  # (batch, embedding, grid, grid)
        latents = learned + self.codec.shortcut_in(2 * images - 1)
        codes = self.codec.nearest_codes(latents.detach())
        quantized = F.embedding(codes, self.codec.codebook.detach()).permute(0, 3, 1, 2)
        # Straight through: the decoder sees the codebook's vectors, the encoder gets the decoder's gradient.
        reconstructions = self.codec.reconstruct(latents + (quantized - latents).detach())
        loss = reconstruction_loss(images, reconstructions, options.edge_weight)
        loss = loss + options.commitment_weight * F.mse_loss(latents, quantized)
        loss = loss + options.locality_weight * learned.pow(2).mean()
        self._descend(loss, step)
        self._move_codebook(_by_position(latents.detach()), codes.flatten(), step)
        return CodecTrainingProgress(
            step=step,
            loss=loss.item(),
            mean_absolute_error=(reconstructions.detach() - images).abs().mean().item(),
            codes_in_use=len(self.codebook.vectors) - len(self.codebook.unused()),
        )

    def _descend(self, loss: torch.Tensor, step: int) -> None:
        if not torch.isfinite(loss):
            raise ValueError(f"The loss is {loss.item()} at step {step}. Use a smaller --learning-rate.")
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.trained, 1.0)
        self.optimizer.step()

    def _move_codebook(self, latents: torch.Tensor, codes: torch.Tensor, step: int) -> None:
        self.codebook.follow(latents, codes)
        if step % self.options.restart_interval_steps == 0 and 3 * step <= 2 * self.options.num_steps:
            self.codebook.restart_unused(latents, codes)


def _by_position(latents: torch.Tensor) -> torch.Tensor:
    return latents.permute(0, 2, 3, 1).flatten(0, 2)  # (position, embedding)
