"""A codebook during training: initialised by k-means, then following the latents that choose its vectors.

Axis names: position (= batch * grid_size * grid_size), embedding.
"""

import torch

POSITIONS_PER_PRODUCT = 8192  # keeps the (position, code) distances of a large codebook within some hundred MB
NUM_SEEDING_ROUNDS = 8
NUM_LLOYD_ROUNDS = 10


class Codebook:
    """Moves the vectors of `vectors` in place: each is the moving average of the latents that chose it."""

    def __init__(self, vectors: torch.Tensor, *, decay: float, generator: torch.Generator):
        """vectors: (codebook_size, embedding) float32, changed in place; decay: share kept per step."""
        self.vectors = vectors
        self.decay = decay
        self.generator = generator
        self.usage = torch.ones(len(vectors), device=vectors.device)
        self.sums = vectors.detach().clone()

    def place_by_k_means(self, latents: torch.Tensor) -> None:
        """Spread the vectors over the latents, (position, embedding); rare far ones get their own."""
        vectors = _spread_seeds(latents, len(self.vectors), self.generator)
        for _ in range(NUM_LLOYD_ROUNDS):
            codes = nearest(vectors, latents)
            counts = torch.bincount(codes, minlength=len(vectors))
            sums = torch.zeros_like(vectors).index_add_(0, codes, latents)
            used = counts > 0
            vectors[used] = sums[used] / counts[used, None]
        with torch.no_grad():
            self.vectors.copy_(vectors)
        self.adopt(latents)

    def adopt(self, latents: torch.Tensor) -> None:
        """Learn from latents, (position, embedding), how much each vector is used, without changing them."""
        codes = nearest(self.vectors.detach(), latents)
        self.usage = torch.bincount(codes, minlength=len(self.vectors)).float().clamp_min(1)
        self.sums = self.vectors.detach() * self.usage[:, None]

    def follow(self, latents: torch.Tensor, codes: torch.Tensor) -> None:
        """Move each vector towards the latents that chose it. latents: (position, embedding), codes: (position,)."""
        counts = torch.bincount(codes, minlength=len(self.vectors)).float()
        sums = torch.zeros_like(self.sums).index_add_(0, codes, latents)
        self.usage.mul_(self.decay).add_(counts, alpha=1 - self.decay)
        self.sums.mul_(self.decay).add_(sums, alpha=1 - self.decay)
        followed = self.usage > 1e-4  # below this, rounding errors of the two sums would move the vector, not latents
        with torch.no_grad():
            self.vectors[followed] = self.sums[followed] / self.usage[followed, None]

    def unused(self) -> torch.Tensor:
        """Codes chosen by less than a hundredth of the even share of recent positions."""
        return torch.nonzero(self.usage < self.usage.mean() / 100).flatten()

    def restart_unused(self, latents: torch.Tensor, codes: torch.Tensor) -> None:
        """Move unused codes to latents of this batch, the more likely the worse these are served now."""
        unused = self.unused()
        if len(unused) == 0:
            return
        error = (latents - self.vectors[codes]).pow(2).sum(1).cpu() + 1e-9
        picked = torch.multinomial(error, len(unused), replacement=True, generator=self.generator).to(latents.device)
        with torch.no_grad():
            self.vectors[unused] = latents[picked]
        self.usage[unused] = self.usage.mean() / 10
        self.sums[unused] = latents[picked] * self.usage[unused, None]


def nearest(vectors: torch.Tensor, latents: torch.Tensor) -> torch.Tensor:
    """(position,) int64: the index of the nearest vector for each latent."""
    lengths = vectors.pow(2).sum(1)
    return torch.cat([(lengths - 2 * part @ vectors.T).argmin(1) for part in latents.split(POSITIONS_PER_PRODUCT)])


def _spread_seeds(latents: torch.Tensor, num_vectors: int, generator: torch.Generator) -> torch.Tensor:
    """Latents drawn in a few rounds with a probability that grows with the distance from those drawn before."""
    distances = (latents - latents.mean(0)).pow(2).sum(1) + 1e-9
    seeds = latents[:0]
    for number in range(NUM_SEEDING_ROUNDS):
        num_drawn = (num_vectors - len(seeds)) // (NUM_SEEDING_ROUNDS - number)
        if num_drawn == 0:
            continue
        picked = torch.multinomial(distances.cpu(), num_drawn, replacement=True, generator=generator)
        drawn = latents[picked.to(latents.device)]
        seeds = torch.cat([seeds, drawn])
        to_drawn = (latents - drawn[nearest(drawn, latents)]).pow(2).sum(1)
        distances = torch.minimum(distances, to_drawn + 1e-9)
    return seeds.clone()
