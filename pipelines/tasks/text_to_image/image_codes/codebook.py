"""Places a codebook by k-means.

Axis names: position (= batch * grid_size * grid_size), embedding.
"""

import torch

POSITIONS_PER_PRODUCT = 8192  # keeps the (position, code) distances of a large codebook within some hundred MB
NUM_SEEDING_ROUNDS = 8
NUM_LLOYD_ROUNDS = 10


@torch.no_grad()
def place_by_k_means(codebook: torch.Tensor, latents: torch.Tensor, generator: torch.Generator) -> None:
    """Spread the vectors over the latents, in place; rare far latents get vectors of their own.

    codebook: (codebook_size, embedding); latents: (position, embedding).
    """
    vectors = _spread_seeds(latents, len(codebook), generator)
    for _ in range(NUM_LLOYD_ROUNDS):
        codes = nearest(vectors, latents)
        counts = torch.bincount(codes, minlength=len(vectors))
        sums = torch.zeros_like(vectors).index_add_(0, codes, latents)
        used = counts > 0
        vectors[used] = sums[used] / counts[used, None]
    codebook.copy_(vectors)


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
