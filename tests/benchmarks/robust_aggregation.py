"""Sixteen peers, seven of them hostile, train a small network: the loss with each aggregation rule under each attack.

    python tests/benchmarks/robust_aggregation.py [--quick]

Peers draw their own batches without end, and LAMB takes what their vectors come to. These are exponential means of
gradients (`momentum_before_averaging`), as Karimireddy et al. (2021) show to be needed against attackers who hide in
sampling noise: momentum 0.98 makes that noise 10 times smaller. The same with single gradients, whose momentum is added
after averaging, stands below. The attackers know all honest vectors and send what
`pipelines/chaos/faults/colluding_attacks.py` makes of them. Against so many of them CenteredClip's radius is the median
distance itself (`tau_ratio` 1).
"""

import argparse

import torch
from measurement import Row, write_results

from pipelines.chaos.faults.colluding_attacks import Attack, a_little_is_enough, inner_product_manipulation, sign_flip
from pipelines.training.averaging.reduce.robust_aggregation import AggregationRule, aggregate
from pipelines.training.optimizers.choice import linear_schedule
from pipelines.training.optimizers.lamb import Lamb

NUM_PEERS, NUM_ATTACKERS = 16, 7
NUM_INPUTS, NUM_HIDDEN, NUM_CLASSES = 16, 32, 8
SHAPES = ((NUM_INPUTS, NUM_HIDDEN), (1, NUM_HIDDEN), (NUM_HIDDEN, NUM_CLASSES))
BETAS = (0.98, 0.96)
LEARNING_RATE = 0.01
DIVERGED = 1e3
"""A loss beyond this is given as this: parameters are on their way to infinity."""

ATTACKS: dict[str, Attack] = {
    "sign flip x10": sign_flip(10.0),
    "ALIE, z of the paper": a_little_is_enough(NUM_PEERS, NUM_ATTACKERS),
    "ALIE, z = 10": a_little_is_enough(NUM_PEERS, NUM_ATTACKERS, z=10.0),
    "IPM, epsilon 0.1": inner_product_manipulation(0.1),
    "IPM, epsilon 10": inner_product_manipulation(10.0),
}
RULES: dict[str, AggregationRule | None] = {
    "undefended mean": None,
    "mean, norms clipped": AggregationRule(name="mean"),
    "coordinate median": AggregationRule(name="coordinate_median"),
    "CenteredClip": AggregationRule(name="centered_clip", tau_ratio=1.0),
}
SENT = {"means of gradients": {}, "single gradients": dict(momentum_before_averaging=False)}
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

    def gradients(self, parameters: torch.Tensor, num_peers: int) -> torch.Tensor:
        """Return one gradient a peer, each on a new batch of its own: (peer, element)."""
        copies = parameters.repeat(num_peers, 1).requires_grad_()
        return torch.autograd.grad(_losses(copies, *self._batch(num_peers, self._batch_size)).sum(), copies)[0]


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


def final_loss(
    rule: AggregationRule | None,
    attack: Attack | None,
    num_steps: int,
    *,
    momentum_before_averaging: bool = True,
    batch_size: int = 256,
) -> float:
    """Train and return the held-out loss; the learning rate falls linearly to zero."""
    problem = Problem(batch_size)
    parameters = problem.start.clone()[None]
    layers = [torch.nn.Parameter(layer[0]) for layer in _as_layers(parameters)]  # views: LAMB changes `parameters`
    before, after = (BETAS[0], 0.0) if momentum_before_averaging else (0.0, BETAS[0])
    optimizer = Lamb(layers, lr=LEARNING_RATE, betas=(after, BETAS[1]), bits=32)
    schedule = linear_schedule(optimizer, 0, num_steps)
    num_honest = NUM_PEERS - (NUM_ATTACKERS if attack else 0)
    sums, num_steps_in_sums = torch.zeros(num_honest, parameters.shape[1]), 0.0
    for _ in range(num_steps):
        sums = before * sums + problem.gradients(parameters[0], num_honest)
        num_steps_in_sums = before * num_steps_in_sums + 1
        honest = sums / num_steps_in_sums
        sent = honest if attack is None else torch.cat([honest, attack(honest).repeat(NUM_ATTACKERS, 1)])
        together = sent.mean(0) if rule is None else aggregate(sent, [1.0] * NUM_PEERS, rule).values
        for layer, gradient in zip(layers, _as_layers(together[None]), strict=True):
            layer.grad = gradient[0]
        optimizer.step()
        schedule.step()
    loss = problem.loss(parameters[0])
    return loss if loss < DIVERGED else DIVERGED  # nan too


def run(num_steps: int) -> list[Row]:
    """Train with every rule under every attack: final losses beside the undefended mean's and that of a clean run."""
    rows = []
    for sent, options in SENT.items():
        clean = final_loss(None, None, num_steps, **options)
        for attack_name, attack in ATTACKS.items():
            losses = {name: final_loss(rule, attack, num_steps, **options) for name, rule in RULES.items()}
            undefended = losses.pop("undefended mean")
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
