"""Peers of sparse rounds that learn a small problem, all of them at once: many can be simulated.

Selection, levels and norms are those of `SparseCodec` and `mean`; `test_drawn_contributions.py` compares them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pipelines.features.sparse.layout import ChunkLayout
from pipelines.features.sparse.mean import norm_scales, share_to_send_again

NUM_INPUTS, NUM_HIDDEN, NUM_CLASSES = 64, 256, 16
LAYOUT = ChunkLayout(((NUM_INPUTS, NUM_HIDDEN), (NUM_HIDDEN,), (NUM_HIDDEN, NUM_CLASSES)), chunk=4096, k=64)
TEACHER_HIDDEN, TEACHER_SCALES = 64, (1, 1, 6)
LOCAL_STEPS, BATCH_SIZE, DECAY = 5, 1, 0.95
BETAS, EPSILON = (0.9, 0.96), 1e-6
PEERS_AT_ONCE = 16
"""Of which the local steps are computed together: as many as the processor's cache holds."""


@dataclass(frozen=True, kw_only=True)
class Design:
    """How many peers there are, how many contributions count, and what becomes of the others."""

    peers: int
    drawn: int
    left_out: str = "takes back"
    """What a peer that is not drawn does with its contribution: see `SHARES`; `less mean`: takes it back, less what
    the round has applied."""

    rate: float

    def __str__(self) -> str:
        """Return the arm's name."""
        is_all = self.drawn == self.peers
        return f"{self.peers} peers, all count" if is_all else f"{self.drawn} of {self.peers}, {self.left_out}"


SHARES = {"takes back": 0.0, "half": 0.5, "discards": 1.0, "less mean": 0.0}
"""The share of a contribution that its peer forgets when it is not drawn."""


class Problem:
    """A network learns the classes that a fixed random one makes likely; the classes are drawn."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        layers = self._layers(TEACHER_HIDDEN)
        self._teacher = [scale * layer for scale, layer in zip(TEACHER_SCALES, layers, strict=True)]
        self.start = torch.cat([layer.flatten() for layer in self._layers(NUM_HIDDEN)])
        inputs, classes = self._held_out = self.batch(1, 8192)
        self.floor = float(torch.nn.functional.cross_entropy(self._logits(inputs)[0], classes[0]))
        """The loss of the network that draws the classes: nobody loses less."""

    def _layers(self, hidden: int) -> list[torch.Tensor]:
        shapes, roots = ((NUM_INPUTS, hidden), (hidden,), (hidden, NUM_CLASSES)), (NUM_INPUTS**0.5, 4, hidden**0.5)
        pairs = zip(shapes, roots, strict=True)
        return [torch.randn(shape, generator=self.generator) / root for shape, root in pairs]

    def _logits(self, inputs: torch.Tensor) -> torch.Tensor:
        first, bias, second = self._teacher
        return torch.tanh(inputs @ first + bias) @ second

    def batch(self, num_peers: int, batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return each peer's inputs and classes: (peer, sample, input), (peer, sample)."""
        inputs = torch.randn(num_peers, batch_size, NUM_INPUTS, generator=self.generator)
        likely = self._logits(inputs).softmax(-1).flatten(0, 1)
        return inputs, torch.multinomial(likely, 1, generator=self.generator).view(num_peers, batch_size)

    def loss(self, parameters: torch.Tensor) -> float:
        """Return the held-out cross-entropy of one parameter vector, in nat."""
        return float(_losses(_as_layers(parameters[None]), *self._held_out))


def _as_layers(vectors: torch.Tensor) -> list[torch.Tensor]:
    """Return views of (peer, element) as one tensor a layer: (peer, ...)."""
    pieces = vectors.split(LAYOUT.tensor_sizes, dim=1)
    return [piece.view(len(piece), *shape) for piece, shape in zip(pieces, LAYOUT.shapes, strict=True)]


def _losses(layers: Sequence[torch.Tensor], inputs: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
    """Return the sum of all peers' mean losses."""
    first, bias, second = layers
    logits = torch.tanh(inputs @ first + bias[:, None]) @ second  # (peer, sample, class)
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), classes.flatten(), reduction="sum") / inputs.shape[1]


def selected(progress: torch.Tensor) -> torch.Tensor:
    """Return what `SparseCodec` sends of each peer's accumulated progress, 0 elsewhere: both (peer, element)."""
    sent, chunk = torch.zeros_like(progress), LAYOUT.chunk
    tensors = (vectors.split(LAYOUT.tensor_sizes, 1) for vectors in (progress, sent))
    for of_tensor, into, k in zip(*tensors, LAYOUT.tensor_k, strict=True):
        places = torch.cat([
            part.abs().topk(-(-k * part.shape[1] // chunk), sorted=False).indices + chunk * number
            for number, part in enumerate(of_tensor.split(chunk, 1))
        ], 1)  # fmt: skip
        values = of_tensor.gather(1, places)
        order, num_sent = values.abs().sort(1), values.shape[1]
        sums, counts = order.values.double().cumsum(1), torch.arange(1, num_sent)
        explained = sums[:, :-1] ** 2 / counts + (sums[:, -1:] - sums[:, :-1]) ** 2 / (num_sent - counts)
        num_low = explained.argmax(1, keepdim=True) + 1
        low_sums = sums.gather(1, num_low - 1)
        low, high = low_sums / num_low, (sums[:, -1:] - low_sums) / (num_sent - num_low)
        ranks = torch.empty_like(places).scatter_(1, order.indices, torch.arange(num_sent).expand_as(places))
        into.scatter_(1, places, torch.where(ranks < num_low, low, high).float().copysign(values))
    return sent


class Swarm:
    """All peers of a run, which start each round at the parameters that are everybody's."""

    def __init__(self, problem: Problem, design: Design) -> None:
        self._problem, self._design = problem, design
        self.shared = problem.start.clone()
        self._error = torch.zeros(design.peers, len(self.shared))
        self._blocks = []
        for block in self._error.split(PEERS_AT_ONCE):
            layers = [torch.nn.Parameter(layer.clone()) for layer in _as_layers(block)]
            self._blocks.append((layers, torch.optim.Adam(layers, betas=BETAS, eps=EPSILON, fused=True)))

    def _progress(self, rate: float) -> torch.Tensor:
        progress = []
        for layers, optimizer in self._blocks:
            optimizer.param_groups[0]["lr"] = rate
            for layer, start in zip(layers, _as_layers(self.shared[None]), strict=True):
                layer.data.copy_(start.expand_as(layer))
            for _ in range(LOCAL_STEPS):
                optimizer.zero_grad()
                _losses(layers, *self._problem.batch(len(layers[0]), BATCH_SIZE)).backward()
                optimizer.step()
            progress.append(self.shared - torch.cat([layer.detach().flatten(1) for layer in layers], 1))
        return torch.cat(progress)

    def round(self, factor: float) -> None:
        """Make local steps at this share of the rate; let the drawn contributions count."""
        design = self._design
        self._error.mul_(DECAY).add_(self._progress(design.rate * factor))
        drawn = torch.randperm(design.peers, generator=self._problem.generator)[: design.drawn]
        sent = selected(self._error[drawn])
        scales = norm_scales(sent.double().norm(dim=1).tolist(), [1.0] * len(drawn))
        mean = torch.tensor(scales) @ sent / len(drawn)
        again = torch.tensor([share_to_send_again(scale) for scale in scales])
        left = self._error[drawn] - sent * (1 - again[:, None])
        if design.left_out == "less mean":
            self._error -= mean
        if (share := SHARES[design.left_out]) and design.drawn < design.peers:
            for part in self._error.split(PEERS_AT_ONCE):
                part -= selected(part) * share
        self._error[drawn] = left
        self.shared -= mean
