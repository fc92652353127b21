"""Draft."""

import argparse
import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import torch
from measurement import RESULTS, Row, write_results
from swarm_simulator import Cells

from pipelines.core.optimizers.schedule import linear_factor
from pipelines.features.sparse.layout import ChunkLayout
from pipelines.features.sparse.mean import norm_scales, share_to_send_again

NUM_INPUTS, NUM_HIDDEN, NUM_CLASSES = 64, 256, 16
SHAPES = ((NUM_INPUTS, NUM_HIDDEN), (NUM_HIDDEN,), (NUM_HIDDEN, NUM_CLASSES))
CHUNK, VALUES_PER_CHUNK = 4096, 64
LAYOUT = ChunkLayout(SHAPES, CHUNK, VALUES_PER_CHUNK)
BATCH_SIZE = 4
BETAS = (0.9, 0.96)
PEERS_AT_ONCE = 16
"""Of which the local steps are computed together: as many as the processor's cache holds."""


class Problem:
    """A network learns the classes that a fixed random one makes likely; classes are drawn."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self._teacher = [factor * layer for factor, layer in zip((1, 1, 6), self._layers(64), strict=True)]
        self.start = torch.cat([layer.flatten() for layer in self._layers(NUM_HIDDEN)])
        self.held_out = self.batch(1, 8192)
        inputs, classes = self.held_out
        self.floor = float(torch.nn.functional.cross_entropy(self._likely(inputs)[0], classes[0]))

    def _layers(self, hidden: int) -> list[torch.Tensor]:
        shapes = ((NUM_INPUTS, hidden), (hidden,), (hidden, NUM_CLASSES))
        return [torch.randn(s, generator=self.generator) / (s[0] ** 0.5 if len(s) > 1 else 4) for s in shapes]

    def _likely(self, inputs: torch.Tensor) -> torch.Tensor:
        first, bias, second = self._teacher
        return torch.tanh(inputs @ first + bias) @ second

    def batch(self, num_peers: int, batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = torch.randn(num_peers, batch_size, NUM_INPUTS, generator=self.generator)
        likely = self._likely(inputs).softmax(-1).flatten(0, 1)
        return inputs, torch.multinomial(likely, 1, generator=self.generator).view(num_peers, batch_size)

    @torch.no_grad()
    def loss(self, parameters: torch.Tensor) -> float:
        return float(losses(as_layers(parameters[None]), *self.held_out))


def as_layers(vectors: torch.Tensor) -> list[torch.Tensor]:
    """Return views of (peer, element) as one tensor a layer: (peer, ...)."""
    pieces = vectors.split(LAYOUT.tensor_sizes, dim=1)
    return [piece.view(len(piece), *shape) for piece, shape in zip(pieces, SHAPES, strict=True)]


def losses(layers: list[torch.Tensor], inputs: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
    """Return the sum over peers of each one's mean loss."""
    first, bias, second = layers
    logits = torch.tanh(inputs @ first + bias[:, None]) @ second  # (peer, batch, class)
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), classes.flatten(), reduction="sum") / inputs.shape[1]


def selected(progress: torch.Tensor) -> torch.Tensor:
    """Return what `SparseCodec` would send of each peer's accumulated progress, 0 elsewhere: (peer, element)."""
    sent = torch.zeros_like(progress)
    pairs = zip(progress.split(LAYOUT.tensor_sizes, 1), sent.split(LAYOUT.tensor_sizes, 1), LAYOUT.tensor_k, strict=True)
    for of_tensor, into, k in pairs:
        places = torch.cat([
            part.abs().topk(-(-k * part.shape[1] // CHUNK), sorted=False).indices + CHUNK * number
            for number, part in enumerate(of_tensor.split(CHUNK, 1))
        ], 1)  # fmt: skip
        values = of_tensor.gather(1, places)
        order = values.abs().sort(1)
        sums, n = order.values.double().cumsum(1), values.shape[1]
        counts = torch.arange(1, n, dtype=torch.float64)
        rest = sums[:, -1:] - sums[:, :-1]
        num_low = (sums[:, :-1] ** 2 / counts + rest**2 / (n - counts)).argmax(1, keepdim=True) + 1
        low_sum = sums.gather(1, num_low - 1)
        low, high = low_sum / num_low, (sums[:, -1:] - low_sum) / (n - num_low)
        rank = torch.empty_like(places).scatter_(1, order.indices, torch.arange(n).expand_as(places))
        levels = torch.where(rank < num_low, low, high).float()
        into.scatter_(1, places, levels.copysign(values))
    return sent


@dataclass(frozen=True, kw_only=True)
class Design:
    """How many peers there are, how many contributions count, and what becomes of the others."""

    peers: int
    drawn: int = 0
    """0: all."""

    rate: float = 0.003
    outer: float = 1.0
    decay: float = 0.95
    share: float = 1.0
    """What a peer that is not drawn takes back of its contribution."""

    forgets: bool = False
    """A peer that is not drawn forgets all that it has not sent."""

    shared: bool = False
    """A peer that is not drawn takes its contribution back, less what the round has applied."""

    waits: bool = False
    """Divide a contribution by rounds since the peer was last drawn."""

    k: int = 64
    rounds: int = 60
    steps: int = 5

    def __str__(self) -> str:
        default = Design(peers=0)
        parts = [f"{self.drawn or self.peers} of {self.peers}"]
        parts += [
            f"{name} {value}" for name, value in vars(self).items()
            if name not in ("peers", "drawn") and value != getattr(default, name)
        ]  # fmt: skip
        return ", ".join(parts)


class Swarm:
    def __init__(self, problem: Problem, design: Design) -> None:
        self.problem, self.design = problem, design
        self.shared = problem.start.clone()
        self.own = self.shared.repeat(design.peers, 1)
        self.error = torch.zeros_like(self.own)
        self.waited = torch.zeros(design.peers)
        self.blocks = []
        for block in self.own.split(PEERS_AT_ONCE):
            layers = [torch.nn.Parameter(layer) for layer in as_layers(block)]
            layers = [torch.nn.Parameter(layer.detach().clone()) for layer in layers]
            self.blocks.append((layers, torch.optim.Adam(layers, lr=design.rate, betas=BETAS, eps=1e-6, fused=True)))

    def local_steps(self, factor: float) -> torch.Tensor:
        progress = []
        for layers, optimizer in self.blocks:
            with torch.no_grad():
                for layer, start in zip(layers, as_layers(self.shared[None]), strict=True):
                    layer.copy_(start.expand_as(layer))
            for group in optimizer.param_groups:
                group["lr"] = self.design.rate * factor
            for _ in range(self.design.steps):
                gradients = torch.autograd.grad(
                    losses(layers, *self.problem.batch(len(layers[0]), BATCH_SIZE)), layers
                )
                for layer, gradient in zip(layers, gradients, strict=True):
                    layer.grad = gradient
                optimizer.step()
            progress.append(self.shared - torch.cat([layer.detach().flatten(1) for layer in layers], 1))
        return torch.cat(progress)

    def round(self, factor: float) -> None:
        design = self.design
        self.error.mul_(design.decay).add_(self.local_steps(factor))
        self.waited += 1
        generator = self.problem.generator
        drawn = torch.randperm(design.peers, generator=generator)[: design.drawn or design.peers]
        sent = selected(self.error[drawn])
        applied = sent / self.waited[drawn, None] if design.waits else sent
        norms = applied.double().square().sum(1).sqrt().tolist()
        scales = norm_scales(norms, [1.0] * len(drawn))
        mean = torch.tensor(scales, dtype=torch.float32) @ applied / len(drawn)
        again = torch.tensor([share_to_send_again(scale) for scale in scales])
        left = self.error[drawn] - sent * (1 - again[:, None])
        if design.drawn and design.drawn < design.peers:
            if design.forgets:
                self.error.zero_()
            elif design.shared:
                self.error -= mean
            elif design.share < 1:
                for part in self.error.split(PEERS_AT_ONCE):
                    part -= (1 - design.share) * selected(part)
        self.error[drawn] = left
        self.waited[drawn] = 0
        self.shared -= design.outer * mean


def final(design: Design, seed: int) -> dict[str, float]:
    started = time.process_time()
    torch.manual_seed(seed)
    problem = Problem(seed)
    swarm = Swarm(problem, design)
    curve = []
    for number in range(design.rounds):
        swarm.round(linear_factor(number, num_warmup=3, num_total=design.rounds))
        if (number + 1) % (design.rounds // 3) == 0:
            curve.append(round(problem.loss(swarm.shared), 4))
    return dict(loss=problem.loss(swarm.shared), floor=problem.floor, seconds=round(time.process_time() - started, 1), curve=curve)


if __name__ == "__main__":
    import sys
    torch.set_num_threads(1)
    RESULTS.mkdir(exist_ok=True)
    cells = Cells(__import__("pathlib").Path("/tmp/sim_cells.json"))
    for line in sys.stdin:
        if not line.strip(): continue
        *kw, seeds = line.split()
        design = Design(**{a.split("=")[0]: eval(a.split("=")[1]) for a in kw})
        for seed in map(int, seeds.split(",")):
            print(design, seed, cells.get(f"{design}, seed {seed}", lambda: final(design, seed)), flush=True)
