"""Sixteen peers, seven of them hostile, train a small network: the loss with each aggregation rule under each attack.

    python tests/benchmarks/robust_aggregation.py [--quick]

Peers draw their own batches without end, and LAMB takes what their vectors come to. These are exponential means of
gradients (`momentum_before_averaging`), as Karimireddy et al. (2021) show to be needed against attackers who hide in
sampling noise: momentum 0.98 makes that noise 10 times smaller. The same with single gradients, whose momentum is added
after averaging, stands below, and the progress of local steps, which outer steps follow. The attackers know all honest
vectors and send what `colluding_attacks.py` makes of them. Against so many of them
CenteredClip's radius is the median distance itself (`tau_ratio` 1).
"""

import argparse
from collections.abc import Callable, Mapping
from functools import partial

import torch
from colluding_attacks import (
    Attack,
    a_little_is_enough,
    copycat,
    inner_product_manipulation,
    sign_flip,
    spikes,
)
from measurement import Row, write_results

from pipelines.core.averaging.reduce.robust_aggregation import AggregationRule, aggregate
from pipelines.core.optimizers.choice import linear_schedule
from pipelines.core.optimizers.lamb import Lamb
from pipelines.features.local_steps.nesterov import Nesterov
from pipelines.features.sparse.codec import SparseCodec
from pipelines.features.sparse.error_feedback import ErrorFeedback
from pipelines.features.sparse.mean import mean

NUM_PEERS, NUM_ATTACKERS = 16, 7
NUM_INPUTS, NUM_HIDDEN, NUM_CLASSES = 16, 32, 8
SHAPES = ((NUM_INPUTS, NUM_HIDDEN), (1, NUM_HIDDEN), (NUM_HIDDEN, NUM_CLASSES))
BETAS = (0.98, 0.96)
LEARNING_RATE = 0.01
SPARSE = "sparse progress of 15 local steps"
VALUES_PER_CHUNK, ERROR_DECAY = 64, 0.9
OUTER = (1.0, 0.0)
"""Rate and momentum of the outer steps along the progress of local steps."""

DIVERGED = 1e3
"""A loss beyond this is given as this: parameters are on their way to infinity."""

ATTACKS: dict[str, Attack] = {
    "sign flip x10": sign_flip(10.0),
    "ALIE, z of the paper": a_little_is_enough(NUM_PEERS, NUM_ATTACKERS),
    "ALIE, z = 10": a_little_is_enough(NUM_PEERS, NUM_ATTACKERS, z=10.0),
    "IPM, epsilon 0.1": inner_product_manipulation(0.1),
    "IPM, epsilon 10": inner_product_manipulation(10.0),
    "copies of one peer": copycat(),
    "spikes where nobody sends": spikes(),
}
RULES: dict[str, AggregationRule | None] = {
    "undefended mean": None,
    "mean, norms clipped": AggregationRule(name="mean"),
    "coordinate median": AggregationRule(name="coordinate_median"),
    "CenteredClip": AggregationRule(name="centered_clip", tau_ratio=1.0),
}
QUICK_STEPS = 300


class Problem:
    """A network of one hidden layer learns the classes that a fixed random network of the same shape makes likely.

    Classes are drawn, as a caption does not determine an image: what could be learnt exactly would end at a loss near
    zero, whose multiples say how many peers computed and not what the attackers did. Parameters are one vector:
    (element,), or (peer, element) for as many networks at once.
    """

    def __init__(self, batch_size: int, seed: int = 0) -> None:
        self._batch_size = batch_size
        self._generator = torch.Generator().manual_seed(seed)
        self._teacher = 3 * self._draw_parameters()  # classes with clear borders
        self.start = self._draw_parameters()
        self.held_out = self._batch(1, 4096)

    def _draw_parameters(self) -> torch.Tensor:
        pieces = [torch.randn(shape, generator=self._generator) / shape[-1] ** 0.5 for shape in SHAPES]
        return torch.cat([piece.flatten() for piece in pieces])

    def _batch(self, num_peers: int, batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = torch.randn(num_peers, batch_size, NUM_INPUTS, generator=self._generator)
        likely = _logits(self._teacher.expand(num_peers, -1), inputs).softmax(-1).flatten(0, 1)
        return inputs, torch.multinomial(likely, 1, generator=self._generator).view(num_peers, batch_size)

    def loss(self, parameters: torch.Tensor) -> float:
        """Return the held-out cross-entropy of one parameter vector."""
        return float(_losses(parameters[None], *self.held_out))

    def gradients(self, parameters: torch.Tensor) -> torch.Tensor:
        """Return each peer's gradient at its parameters on a new batch of its own: both (peer, element)."""
        copies = parameters.clone().requires_grad_()
        return torch.autograd.grad(_losses(copies, *self._batch(len(copies), self._batch_size)).sum(), copies)[0]


def _as_layers(vectors: torch.Tensor) -> list[torch.Tensor]:
    """Return views of (peer, element) as one tensor a layer: (peer, row, column)."""
    pieces = vectors.split([torch.Size(shape).numel() for shape in SHAPES], dim=1)
    return [piece.view(len(piece), *shape) for piece, shape in zip(pieces, SHAPES, strict=True)]


def _logits(parameters: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    first, bias, second = _as_layers(parameters)
    return torch.tanh(inputs @ first + bias) @ second  # (peer, batch, class)


def _losses(parameters: torch.Tensor, inputs: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
    logits = _logits(parameters, inputs)
    return torch.nn.functional.cross_entropy(logits.movedim(-1, 1), classes, reduction="none").mean(1)


class Round:
    """What a round makes of the honest peers' vectors: the attackers', by the rule."""

    def __init__(self, rule: AggregationRule | None, attack: Attack | None) -> None:
        self.attack, self._rule = attack, rule
        self.num_honest = NUM_PEERS - (NUM_ATTACKERS if attack else 0)

    def __call__(self, honest: torch.Tensor) -> torch.Tensor:
        """(peer, element) -> (element,)."""
        attack = self.attack
        sent = honest if attack is None else torch.cat([honest, attack(honest).repeat(NUM_ATTACKERS, 1)])
        return sent.mean(0) if self._rule is None else aggregate(sent, [1.0] * NUM_PEERS, self._rule).values


class SparseRound:
    """What a sparse round makes of the honest peers' progress and the attackers': no rule but the bound on norms."""

    def __init__(self, together: Round) -> None:
        self._attack, self._codec = together.attack, SparseCodec(SHAPES, k=VALUES_PER_CHUNK)
        self._feedback = [ErrorFeedback(self._codec, ERROR_DECAY) for _ in range(together.num_honest)]

    def __call__(self, honest: torch.Tensor) -> torch.Tensor:
        """(peer, element) -> (element,)."""
        sent = [
            own.compress([layer[peer] for layer in _as_layers(honest)], 1) for peer, own in enumerate(self._feedback)
        ]
        if self._attack is not None:
            false = self._codec.encode([layer[0] for layer in _as_layers(self._attack(honest)[None])], 1)
            sent += [false] * NUM_ATTACKERS
        together = mean(self._codec, [self._codec.decode(payload) for payload in sent], [1.0] * len(sent))
        return torch.cat([layer.flatten() for layer in together])


def along_gradients(
    problem: Problem, together: Round, num_steps: int, *, momentum_before_averaging: bool
) -> torch.Tensor:
    """Train by averaging every gradient; return the parameters. The learning rate falls linearly to zero."""
    parameters = problem.start.clone()[None]
    layers = [torch.nn.Parameter(layer[0]) for layer in _as_layers(parameters)]  # views: LAMB changes `parameters`
    before, after = (BETAS[0], 0.0) if momentum_before_averaging else (0.0, BETAS[0])
    optimizer = Lamb(layers, lr=LEARNING_RATE, betas=(after, BETAS[1]), bits=32)
    schedule = linear_schedule(optimizer, 0, num_steps)
    sums, num_steps_in_sums = torch.zeros(together.num_honest, parameters.shape[1]), 0.0
    for _ in range(num_steps):
        sums = before * sums + problem.gradients(parameters.expand(together.num_honest, -1))
        num_steps_in_sums = before * num_steps_in_sums + 1
        _step_along(optimizer, layers, together(sums / num_steps_in_sums))
        schedule.step()
    return parameters[0]


def along_progress(
    problem: Problem, together: Round, num_steps: int, *, local_steps: int, is_sparse: bool = False
) -> torch.Tensor:
    """Train by averaging the progress of local steps; return the parameters."""
    average = SparseRound(together) if is_sparse else together
    shared = problem.start.clone()[None]
    layers = [torch.nn.Parameter(layer[0]) for layer in _as_layers(shared)]
    outer = Nesterov(layers, lr=OUTER[0], momentum=OUTER[1])
    own = shared.repeat(together.num_honest, 1)
    own_layers = [[torch.nn.Parameter(layer[peer]) for layer in _as_layers(own)] for peer in range(len(own))]
    inner = [Lamb(of_peer, lr=LEARNING_RATE, betas=BETAS, bits=32) for of_peer in own_layers]
    schedules = [linear_schedule(optimizer, 0, num_steps // local_steps) for optimizer in inner]
    for _ in range(num_steps // local_steps):
        for _ in range(local_steps):
            for optimizer, of_peer, gradient in zip(inner, own_layers, problem.gradients(own), strict=True):
                _step_along(optimizer, of_peer, gradient)
        _step_along(outer, layers, average(shared - own))
        own.copy_(shared.expand_as(own))
        for schedule in schedules:
            schedule.step()
    return shared[0]


def _step_along(optimizer: torch.optim.Optimizer, layers: list[torch.nn.Parameter], vector: torch.Tensor) -> None:
    for layer, gradient in zip(layers, _as_layers(vector[None]), strict=True):
        layer.grad = gradient[0]
    optimizer.step()


SENT: Mapping[str, Callable[[Problem, Round, int], torch.Tensor]] = {
    "means of gradients": partial(along_gradients, momentum_before_averaging=True),
    "single gradients": partial(along_gradients, momentum_before_averaging=False),
    "progress of 15 local steps": partial(along_progress, local_steps=15),
    SPARSE: partial(along_progress, local_steps=15, is_sparse=True),
}


def final_loss(
    rule: AggregationRule | None,
    attack: Attack | None,
    num_steps: int,
    sent: str = "means of gradients",
    batch_size: int = 256,
) -> float:
    """Train and return the held-out loss."""
    problem = Problem(batch_size)
    loss = problem.loss(SENT[sent](problem, Round(rule, attack), num_steps))
    return loss if loss < DIVERGED else DIVERGED  # nan too


def run(num_steps: int) -> list[Row]:
    """Train with every rule under every attack: final losses beside the undefended mean's and that of a clean run."""
    rows = []
    for sent in SENT:
        clean = final_loss(None, None, num_steps, sent)
        rules = {"at most the median norm": None} if sent == SPARSE else RULES
        for attack_name, attack in ATTACKS.items():
            losses = {name: final_loss(rule, attack, num_steps, sent) for name, rule in rules.items()}
            undefended = losses.pop("undefended mean", None)
            rows += [
                Row(case=f"{sent}: {attack_name}", metric=name, unit="nat", ours=loss, peer=undefended, floor=clean)
                for name, loss in losses.items()
            ]
    return rows


def main() -> None:
    """Train, print the table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer steps, as in the test")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    rows = run(QUICK_STEPS if quick else 1500)
    print(f"written to {write_results('robust_aggregation', rows, is_quick=quick)}")


if __name__ == "__main__":
    main()
