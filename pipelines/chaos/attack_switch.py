"""Attacks as code: what a hostile or broken peer does to the gradients that it hands to the others."""

from collections.abc import Callable
from typing import Any

import torch

LIE_FACTOR = -1000.0


def hostile_averager(optimizer: Any) -> Callable[[str], None]:
    """Make a swarm optimizer's averager hostile on demand; return the switch, which takes `nan`, `liar` or ``.

    The attack is made on the tensors that go to the others, after all checks of one's own gradients.
    """
    averager, attack = optimizer.grad_averager, ""
    load, step = averager.load_accumulators_into_averager_, averager.step

    @torch.no_grad()
    def load_and_attack() -> None:
        load()
        with averager.get_tensors() as tensors:
            for tensor in tensors:
                tensor.mul_(LIE_FACTOR) if attack == "liar" else tensor.fill_(float("nan"))

    def step_and_attack(*args: Any, **kwargs: Any) -> Any:
        averager.load_accumulators_into_averager_ = load_and_attack if attack else load
        try:
            return step(*args, **kwargs)
        finally:
            averager.load_accumulators_into_averager_ = load

    def switch(name: str) -> None:
        nonlocal attack
        attack = name

    averager.step = step_and_attack
    return switch
