"""Sixteen peers, seven of them hostile, train a small network: the loss with each aggregation rule under each attack.

    python tests/benchmarks/robust_aggregation.py [--quick]

Peers draw their own batches without end and send momentum, not raw gradients, as Karimireddy et al. (2021) show to be
needed against attackers who hide in sampling noise: momentum 0.95 makes that noise 6.2 times smaller. The attackers
know all honest vectors and send what `pipelines/chaos/colluding_attacks.py` makes of them. Against so many of them
CenteredClip's radius is the median distance itself (`tau_ratio` 1).
"""

import argparse

import torch
from measurement import Row, write_results

from pipelines.chaos.colluding_attacks import Attack, a_little_is_enough, inner_product_manipulation, sign_flip
from pipelines.training.robust_aggregation import AggregationRule, aggregate

NUM_PEERS, NUM_ATTACKERS = 16, 7
NUM_INPUTS, NUM_HIDDEN, NUM_CLASSES = 16, 32, 8
SHAPES = ((NUM_INPUTS, NUM_HIDDEN), (1, NUM_HIDDEN), (NUM_HIDDEN, NUM_CLASSES))
MOMENTUM = 0.95
LEARNING_RATE = 0.3
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


class Problem:
    """A network of one hidden layer learns the classes that a fixed random network of the same shape gives.

    Parameters are one vector: (element,), or (peer, element) for as many networks at once.
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
        return inputs, _logits(self._teacher.expand(num_peers, -1), inputs).argmax(-1)

    def loss(self, parameters: torch.Tensor) -> float:
        """Return the held-out cross-entropy of one parameter vector."""
        return float(_losses(parameters[None], *self.held_out))

    def gradients(self, parameters: torch.Tensor, num_peers: int) -> torch.Tensor:
        """Return one gradient a peer, each on a new batch of its own: (peer, element)."""
        copies = parameters.repeat(num_peers, 1).requires_grad_()
        return torch.autograd.grad(_losses(copies, *self._batch(num_peers, self._batch_size)).sum(), copies)[0]


def _logits(parameters: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    pieces = parameters.split([torch.Size(shape).numel() for shape in SHAPES], dim=1)
    first, bias, second = (p.view(len(p), *shape) for p, shape in zip(pieces, SHAPES, strict=True))
    return torch.tanh(inputs @ first + bias) @ second  # (peer, batch, class)


def _losses(parameters: torch.Tensor, inputs: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
    logits = _logits(parameters, inputs)
    return torch.nn.functional.cross_entropy(logits.movedim(-1, 1), classes, reduction="none").mean(1)


def final_loss(rule: AggregationRule | None, attack: Attack | None, num_steps: int, batch_size: int) -> float:
    """Train and return the held-out loss; the learning rate falls linearly to zero."""
    problem = Problem(batch_size)
    parameters = problem.start
    num_honest = NUM_PEERS - (NUM_ATTACKERS if attack else 0)
    momentum = torch.zeros(num_honest, len(parameters))
    for step in range(num_steps):
        momentum = MOMENTUM * momentum + (1 - MOMENTUM) * problem.gradients(parameters, num_honest)
        sent = momentum if attack is None else torch.cat([momentum, attack(momentum).repeat(NUM_ATTACKERS, 1)])
        together = sent.mean(0) if rule is None else aggregate(sent, [1.0] * NUM_PEERS, rule).values
        parameters = parameters - LEARNING_RATE * (1 - step / num_steps) * together
    loss = problem.loss(parameters)
    return loss if loss < DIVERGED else DIVERGED  # nan too


def run(num_steps: int, batch_size: int) -> list[Row]:
    """Train with every rule under every attack: final losses beside the undefended mean's and that of a clean run."""
    clean = final_loss(None, None, num_steps, batch_size)
    rows = []
    for attack_name, attack in ATTACKS.items():
        losses = {name: final_loss(rule, attack, num_steps, batch_size) for name, rule in RULES.items()}
        undefended = losses.pop("undefended mean")
        rows += [
            Row(case=attack_name, metric=f"final loss, {name}", unit="nat", ours=loss, peer=undefended, floor=clean)
            for name, loss in losses.items()
        ]
    return rows


def main() -> None:
    """Train, print the table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer steps, as in the test")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = run(*((150, 256) if arguments.quick else (1500, 256)))
    print(f"written to {write_results('robust_aggregation', rows)}")


if __name__ == "__main__":
    main()
