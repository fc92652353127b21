"""Sparse rounds in which few of all contributions count, drawn anew each round: the loss beside that of counting all.

    python tests/benchmarks/drawn_contributions.py [--quick] [--group NAME]

Each peer makes five local steps (Adam) of one sample each, adds its progress to what it has not sent, and contributes
64 of every 4,096 values; 60 rounds, error decay 0.95. Selection, levels and norms are as in `SparseCodec` and `mean`,
for all peers at once (`test_drawn_contributions.py` compares them). Samples are few and labels drawn, so more peers
lose less. A peer that is not drawn does with its contribution what the design says: takes it back, or not.

Rates are tuned for each arm with one seed, and the arm is measured with others. Everything is compared with counting
all contributions, at its own best rate. Finished runs are kept in `results/drawn_contributions_cells.json`.
"""

import argparse
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from measurement import RESULTS, Row, write_results
from swarm_simulator import Cells

from pipelines.core.optimizers.schedule import linear_factor
from pipelines.features.sparse.layout import ChunkLayout
from pipelines.features.sparse.mean import norm_scales, share_to_send_again

NUM_INPUTS, NUM_HIDDEN, NUM_CLASSES = 64, 256, 16
LAYOUT = ChunkLayout(((NUM_INPUTS, NUM_HIDDEN), (NUM_HIDDEN,), (NUM_HIDDEN, NUM_CLASSES)), chunk=4096, k=64)
TEACHER_HIDDEN, TEACHER_SCALES = 64, (1, 1, 6)
ROUNDS, WARMUP_ROUNDS, LOCAL_STEPS, BATCH_SIZE = 60, 3, 5, 1
BETAS, EPSILON = (0.9, 0.96), 1e-6
RATES = (0.015, 0.03, 0.06)
TUNING_SEED, SEEDS = 0, (1, 2, 3)
PEERS_AT_ONCE = 16
"""Of which the local steps are computed together: as many as the processor's cache holds."""


@dataclass(frozen=True, kw_only=True)
class Design:
    """How many peers there are, how many contributions count, and what becomes of the others."""

    peers: int
    drawn: int
    left_out: str = "takes back"
    """What a peer that is not drawn does: `takes back` its contribution, or `half` of it, `discards` it, `forgets` all
    that it has not sent, or takes the contribution back less what the round has applied (`less mean`)."""

    by_waiting: bool = False
    """Contributions are divided by the rounds since their peers were drawn last."""

    decay: float = 0.95
    outer_rate: float = 1.0
    rate: float = 0.0

    def __str__(self) -> str:
        """Return the arm's name."""
        if self.drawn == self.peers:
            return f"{self.peers} peers, all count"
        others = f"{', by waiting' * self.by_waiting}, decay {self.decay}, outer rate {self.outer_rate}"
        return f"{self.drawn} of {self.peers}, {self.left_out}{others}"


def _arms(peers: int, drawn: int, *left_out: str) -> tuple[Design, ...]:
    return tuple(Design(peers=peers, drawn=drawn, left_out=own) for own in left_out)


def _all(peers: int) -> Design:
    return Design(peers=peers, drawn=peers)


_FEW = Design(peers=256, drawn=8)
GROUPS: Mapping[str, Sequence[Design]] = {
    "64": (
        _all(64), *_arms(64, 32, "takes back", "half", "discards", "less mean"), _all(32),
        *_arms(32, 16, "takes back", "discards"), _all(8),
    ),
    "1000": (_all(1000), *_arms(1000, 32, "discards", "takes back", "less mean"), _all(32)),
    "256": (
        _all(256), *_arms(256, 8, "discards", "less mean", "half", "takes back", "forgets"), replace(_FEW, decay=0.5),
        replace(_FEW, outer_rate=0.3), replace(_FEW, by_waiting=True), _all(8),
    ),
}  # fmt: skip
"""Arms by a name; the first one is what the others are compared with."""

QUICK = {"12": (_all(12), *_arms(12, 3, "discards", "takes back"))}


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
        self.shared, self._waited = problem.start.clone(), torch.zeros(design.peers)
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
        self._error.mul_(design.decay).add_(self._progress(design.rate * factor))
        self._waited += 1
        drawn = torch.randperm(design.peers, generator=self._problem.generator)[: design.drawn]
        sent = selected(self._error[drawn])
        counted = sent / self._waited[drawn, None] if design.by_waiting else sent
        scales = norm_scales(counted.double().norm(dim=1).tolist(), [1.0] * len(drawn))
        mean = torch.tensor(scales) @ counted / len(drawn)
        again = torch.tensor([share_to_send_again(scale) for scale in scales])
        left = self._error[drawn] - sent * (1 - again[:, None])
        if design.left_out == "forgets":
            self._error.zero_()
        elif design.left_out == "less mean":
            self._error -= mean
        elif design.left_out != "takes back" and design.drawn < design.peers:
            for part in self._error.split(PEERS_AT_ONCE):
                part -= selected(part) * {"discards": 1.0, "half": 0.5}[design.left_out]
        self._error[drawn], self._waited[drawn] = left, 0
        self.shared -= design.outer_rate * mean


def trained(design: Design, seed: int, rounds: int) -> dict[str, float]:
    """Train; return the held-out loss and the least that it could be."""
    problem = Problem(seed)
    swarm = Swarm(problem, design)
    for number in range(rounds):
        swarm.round(linear_factor(number, num_warmup=min(WARMUP_ROUNDS, rounds), num_total=rounds))
    return dict(loss=problem.loss(swarm.shared), floor=problem.floor)


class Measurement:
    """Losses of arms, trained when asked for."""

    def __init__(self, cells: Cells, rounds: int, rates: Sequence[float]) -> None:
        self._cells, self._rounds, self._rates = cells, rounds, rates

    def figures(self, arm: Design, seed: int) -> Mapping[str, float]:
        """Return the arm's loss and floor at its best rate with the seed of the tuning."""
        rate = min(self._rates, key=lambda own: self._trained(replace(arm, rate=own), TUNING_SEED)["loss"])
        return self._trained(replace(arm, rate=rate), seed)

    def _trained(self, design: Design, seed: int) -> Mapping[str, float]:
        name = f"{design}, rate {design.rate}, {self._rounds} rounds, seed {seed}"
        if name not in self._cells.values:
            print(name, self._cells.get(name, lambda: trained(design, seed, self._rounds)), flush=True)
        return self._cells.values[name]

    def rows(self, arms: Sequence[Design], seeds: Sequence[int]) -> list[Row]:
        """Return losses beside those of the first arm, and ratios; of the excess, what is above the floor counts."""
        rows = []
        for arm in arms:
            pairs = [(self.figures(arm, seed), self.figures(arms[0], seed)) for seed in seeds]
            for seed, (own, whole) in zip(seeds, pairs, strict=True):
                metric = f"held-out loss, seed {seed}"
                figures = dict(ours=own["loss"], peer=whole["loss"], floor=own["floor"])
                rows.append(Row(case=f"{arm}; of {arms[0].peers}", metric=metric, unit="nat", **figures))
            excess = [(own["loss"] - own["floor"]) / (whole["loss"] - whole["floor"]) for own, whole in pairs]
            for label, ratios in (("loss", [own["loss"] / whole["loss"] for own, whole in pairs]), ("excess", excess)):
                for way in (statistics.median, min, max):
                    metric = f"ratio of {label}, {way.__name__}"
                    rows.append(Row(case=f"{arm}; of {arms[0].peers}", metric=metric, unit="1", ours=way(ratios)))
        return rows


def main() -> None:
    """Train what has not been trained, print the table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few peers, few rounds")
    parser.add_argument("--group", choices=GROUPS, help="only the arms of so many peers")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    folder = RESULTS / "quick" if arguments.quick else RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    groups, rounds, rates, seeds = (
        (QUICK, 6, RATES[:1], SEEDS[:1]) if arguments.quick else (GROUPS, ROUNDS, RATES, SEEDS)
    )
    measurement = Measurement(Cells(folder / "drawn_contributions_cells.json"), rounds, rates)
    rows = []
    for name in [arguments.group] if arguments.group and not arguments.quick else groups:
        rows += measurement.rows(groups[name], seeds)
    is_whole = arguments.group is None
    print(f"written to {write_results('drawn_contributions', rows, is_whole=is_whole, is_quick=arguments.quick)}")


if __name__ == "__main__":
    main()
