"""Trains a small VQGAN codec on one's own pictures, without a discriminator or a downloaded perceptual network.

Axis names: batch, height, width, embedding, position (= batch * grid_size * grid_size).
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from pipelines.image_codes.vqgan_codec import VQGANCodec


@dataclass(frozen=True, kw_only=True)
class CodecTrainingOptions:
    """How a codec is trained."""

    num_steps: int = 4000
    """Steps of one batch each."""
    batch_size: int = 32
    """Pictures per step."""
    learning_rate: float = 2e-3
    """Peak of the schedule: 2 % warm-up, then a half cosine down to zero."""
    commitment_weight: float = 0.25
    """Pull of the encoder towards its codes. Increase if the loss rises late in training."""
    edge_weight: float = 1.0
    """Weight of the differences between neighbouring pixels. Increase if edges come out soft."""
    codebook_decay: float = 0.98
    """A codebook vector is the moving average of the latents it stands for, with this decay per step."""
    restart_share: float = 0.6
    """Codes that nothing uses move to badly served latents during this first share of the steps."""
    restart_interval_steps: int = 50
    """Steps between two such restarts."""
    seed: int = 0
    """Seed of the weights, the order of pictures and the restarts."""

    def __post_init__(self) -> None:
        for name in ("num_steps", "batch_size", "restart_interval_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, expected at least 1.")
        if self.learning_rate <= 0:
            raise ValueError(f"learning_rate is {self.learning_rate}, expected a positive number.")
        if not 0 < self.codebook_decay < 1:
            raise ValueError(f"codebook_decay is {self.codebook_decay}, expected a number between 0 and 1.")


@dataclass(frozen=True, kw_only=True)
class CodecTrainingProgress:
    """Where a training stands after a step."""

    step: int
    """Steps done."""
    loss: float
    """The last step's loss."""
    mean_absolute_error: float
    """Mean absolute difference between pictures and reconstructions, of the range [0, 1]."""
    codes_in_use: int
    """Codes that recent batches used."""


class Codebook:
    """The moving averages behind a codec's codebook: which codes are used, and where their latents lie."""

    def __init__(self, codec: VQGANCodec, options: CodecTrainingOptions, generator: torch.Generator):
        self.vectors = codec.codebook
        self.decay = options.codebook_decay
        self.generator = generator
        self.usage = torch.ones(len(self.vectors), device=self.vectors.device)
        self.sums = self.vectors.detach().clone()

    def place_on(self, latents: torch.Tensor) -> None:
        """Start from latents picked by chance. latents: (position, embedding)."""
        picked = torch.randint(len(latents), (len(self.vectors),), generator=self.generator)
        self._move(torch.arange(len(self.vectors)), latents[picked])

    def follow(self, latents: torch.Tensor, codes: torch.Tensor) -> None:
        """Move each vector towards the latents that chose it. latents: (position, embedding), codes: (position,)."""
        counts = torch.bincount(codes, minlength=len(self.vectors)).float()
        sums = torch.zeros_like(self.sums).index_add_(0, codes, latents)
        self.usage.mul_(self.decay).add_(counts, alpha=1 - self.decay)
        self.sums.mul_(self.decay).add_(sums, alpha=1 - self.decay)
        with torch.no_grad():
            self.vectors.copy_(self.sums / self.usage.clamp_min(1e-5)[:, None])

    def unused(self) -> torch.Tensor:
        """Codes that fewer than a thirtieth of the even share of recent positions chose."""
        return torch.nonzero(self.usage < self.usage.mean() / 30).flatten()

    def restart_unused(self, latents: torch.Tensor, codes: torch.Tensor) -> None:
        """Move unused codes to latents, the more likely the worse these are served now."""
        unused = self.unused()
        error = (latents - self.vectors[codes]).pow(2).sum(1).cpu() + 1e-9
        if len(unused):
            picked = torch.multinomial(error, len(unused), replacement=True, generator=self.generator)
            self._move(unused, latents[picked])

    def _move(self, codes: torch.Tensor, latents: torch.Tensor) -> None:
        spread = latents.std(0, keepdim=True) if len(latents) > 1 else torch.zeros_like(latents)
        noise = torch.randn(latents.shape, generator=self.generator).to(latents.device)
        with torch.no_grad():
            self.vectors[codes] = latents + 0.01 * spread * noise
        self.usage[codes] = self.usage.mean().clamp_min(1.0)
        self.sums[codes] = self.vectors[codes] * self.usage[codes, None]


def train_codec(
    codec: VQGANCodec,
    batches: Iterator[torch.Tensor],
    options: CodecTrainingOptions,
    on_step: Callable[[CodecTrainingProgress], None] = lambda progress: None,
    *,
    place_codebook: bool = True,
) -> CodecTrainingProgress:
    """Train the codec in place on batches of (batch, 3, height, width) floats in [0, 1]; returns the last progress.

    place_codebook starts the codebook from the first batch's latents; switch it off to continue a trained codec.
    An interrupted call leaves a usable codec behind. ValueError for a gumbel codec and for a loss that is not finite.
    """
    if codec.config.quantizer != "nearest":
        raise ValueError(f"Training needs the quantizer `nearest`, this codec has `{codec.config.quantizer}`.")
    trained = [parameter for name, parameter in codec.named_parameters() if not name.startswith("quantize.")]
    for parameter in trained:
        parameter.requires_grad_(True)
    codec.train()
    optimizer = torch.optim.AdamW(trained, lr=options.learning_rate, betas=(0.9, 0.99), weight_decay=1e-4)
    codebook = Codebook(codec, options, torch.Generator().manual_seed(options.seed))
    try:
        for step in range(1, options.num_steps + 1):
            for group in optimizer.param_groups:
                group["lr"] = options.learning_rate * learning_rate_factor(step, options.num_steps)
            progress = _train_step(codec, codebook, optimizer, next(batches), step, options, place_codebook)
            on_step(progress)
    finally:
        codec.eval().requires_grad_(False)
    return progress


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


def _train_step(
    codec: VQGANCodec,
    codebook: Codebook,
    optimizer: torch.optim.Optimizer,
    images: torch.Tensor,
    step: int,
    options: CodecTrainingOptions,
    place_codebook: bool,
) -> CodecTrainingProgress:
    latents = codec.latents(images)  # (batch, embedding, grid, grid)
    flat = latents.detach().permute(0, 2, 3, 1).flatten(0, 2)  # (position, embedding)
    if step == 1 and place_codebook:
        codebook.place_on(flat)
    with torch.no_grad():
        codes = codec.nearest_codes(latents)
        quantized = F.embedding(codes, codec.codebook).permute(0, 3, 1, 2)
    reconstructions = codec.reconstruct(latents + (quantized - latents).detach())
    loss = reconstruction_loss(images, reconstructions, options.edge_weight)
    loss = loss + options.commitment_weight * F.mse_loss(latents, quantized)
    if not torch.isfinite(loss):
        raise ValueError(f"The loss is {loss.item()} at step {step}. Use a smaller --learning-rate.")
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 1.0)
    optimizer.step()
    codebook.follow(flat, codes.flatten())
    if step % options.restart_interval_steps == 0 and step <= options.restart_share * options.num_steps:
        codebook.restart_unused(flat, codes.flatten())
    return CodecTrainingProgress(
        step=step,
        loss=loss.item(),
        mean_absolute_error=(reconstructions.detach() - images).abs().mean().item(),
        codes_in_use=len(codebook.vectors) - len(codebook.unused()),
    )
