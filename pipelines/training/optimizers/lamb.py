"""LAMB (You et al., 2020, algorithm 2) with statistics in 8 or 32 bits.

`bitsandbytes.optim.LAMB8bit` of 0.50 computes Adam (no trust ratio), so this is our own formula.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

import torch
from torch.optim.optimizer import ParamsT, StateDict

from pipelines.training.optimizers.block_statistics import Statistic, initial_state, read_statistic, write_statistic
from pipelines.training.optimizers.gradient_norm import global_norm
from pipelines.training.optimizers.square_root import root_

CHUNK_ELEMENTS, CHUNK_ELEMENTS_ON_GPU = 2**18, 2**22
"""Elements whose statistics are float32 at the same time, multiples of a block: as few as stay in a processor's cache,
or as many as keep a GPU busy."""

MAX_WEIGHT_NORM = 10_000.0
"""Upper bound of the weight norm in the trust ratio (function phi of LAMB, section 3); the run's own value."""

MEAN = Statistic(name="exp_avg", is_signed=True)
SQUARE = Statistic(name="exp_avg_sq", is_signed=False)
"""Means of the gradients and of their squares."""


class Lamb(torch.optim.Optimizer):
    """LAMB with decoupled weight decay, bias correction and clipping of the global gradient norm.

    Statistics take 2.03 bytes per parameter with `bits=8` and 8 bytes with `bits=32`. All state exists from the
    start, so that it can be received from another peer before the first step. Parameters are float32, on any device.

    Raises:
        ValueError: a parameter is not float32.
    """

    statistics: ClassVar[tuple[Statistic, ...]] = (MEAN, SQUARE)
    """What is kept for each parameter."""

    def __init__(
        self,
        params: ParamsT,
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.96),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        max_gradient_norm: float | None = None,
        bits: int = 8,
    ) -> None:
        self.bits, self.max_gradient_norm = bits, max_gradient_norm
        super().__init__(params, dict(lr=lr, betas=tuple(betas), eps=eps, weight_decay=weight_decay))
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.dtype != torch.float32:
                    raise ValueError(f"A parameter is {parameter.dtype}; expected float32: model.float().")
                self.state[parameter] = initial_state(parameter, bits, self.statistics)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # torch's takes closures; unused here
        """Update all parameters that have a gradient; a gradient that is not finite is refused.

        Raises:
            ValueError: the global gradient norm is not finite; nothing has changed then.
        """
        scale = self._gradient_scale()
        with _workers() as workers:
            for group in self.param_groups:
                for parameter in group["params"]:
                    if (gradient := parameter.grad) is not None:
                        self._update(parameter, gradient.reshape(-1), group, scale, workers)

    def _gradient_scale(self) -> float:
        norm = global_norm(self)
        return min(1.0, self.max_gradient_norm / (norm + 1e-6)) if self.max_gradient_norm else 1.0

    def _update(
        self,
        parameter: torch.Tensor,
        gradient: torch.Tensor,
        group: dict[str, Any],
        scale: float,
        workers: ThreadPoolExecutor,
    ) -> None:
        state = self.state[parameter]
        state["step"] += 1
        direction = torch.empty_like(parameter).view(-1)
        work = partial(self._update_span, state, group, scale, gradient, parameter.view(-1), direction)
        is_on_cpu = gradient.device.type == "cpu"
        chunk = CHUNK_ELEMENTS if is_on_cpu else CHUNK_ELEMENTS_ON_GPU
        spans = [slice(start, start + chunk) for start in range(0, gradient.numel(), chunk)]
        list((workers.map if is_on_cpu and len(spans) > 1 else map)(work, spans))
        parameter.view(-1).add_(direction, alpha=-group["lr"] * self.trust_ratio(parameter, direction))

    @torch.no_grad()  # which is a thread's own
    def _update_span(
        self,
        state: dict[str, torch.Tensor],
        group: dict[str, Any],
        scale: float,
        gradient: torch.Tensor,
        parameter: torch.Tensor,
        direction: torch.Tensor,
        span: slice,
    ) -> None:
        """Update the statistics of a span, and write the direction of its step."""
        (beta1, beta2), step = group["betas"], int(state["step"])
        part = gradient[span] * scale
        mean = read_statistic(state, MEAN, span).lerp_(part, 1 - beta1)
        square = read_statistic(state, SQUARE, span).mul_(beta2).addcmul_(part, part, value=1 - beta2)
        write_statistic(state, MEAN, span, mean)
        write_statistic(state, SQUARE, span, square)
        own = torch.div(mean, 1 - beta1**step, out=direction[span])
        own.div_(root_(square / (1 - beta2**step)).add_(group["eps"]))
        if group["weight_decay"]:
            own.add_(parameter[span], alpha=group["weight_decay"])

    def trust_ratio(self, parameter: torch.Tensor, direction: torch.Tensor) -> float:
        """Return the norm of the weights over that of the step's direction; 1 where either is 0."""
        weight_norm = min(torch.linalg.vector_norm(parameter).item(), MAX_WEIGHT_NORM)
        direction_norm = torch.linalg.vector_norm(direction).item()
        return weight_norm / direction_norm if weight_norm > 0 and direction_norm > 0 else 1.0

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Load a state exactly: torch's own loader would turn the 8-bit statistics into float32.

        Raises:
            ValueError: the state belongs to other parameters.
        """
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        indices = [index for group in state_dict["param_groups"] for index in group["params"]]
        if len(indices) != len(parameters):
            raise ValueError(f"The optimizer state has {len(indices)} parameters, this model has {len(parameters)}.")
        for index, parameter in zip(indices, parameters, strict=True):
            _copy_state(self.state[parameter], state_dict["state"][index], index)
        for group, loaded in zip(self.param_groups, state_dict["param_groups"], strict=True):
            group.update({key: value for key, value in loaded.items() if key != "params"})
            group["betas"] = tuple(group["betas"])


@contextmanager
def _workers() -> Iterator[ThreadPoolExecutor]:
    """Yield as many threads as torch would use, each of which computes alone.

    Torch's own threads wait for each other after every operation; if another program runs on one of their cores, each
    of these waits may take a time slice.
    """
    number = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(number, initializer=torch.set_num_threads, initargs=(1,)) as workers:
            yield workers
    finally:
        torch.set_num_threads(number)  # the default of threads that have yet to start


def _copy_state(own: dict[str, torch.Tensor], loaded: dict[str, torch.Tensor], index: int) -> None:
    for name, tensor in own.items():
        other = loaded.get(name)
        if other is None or other.shape != tensor.shape or other.dtype != tensor.dtype:
            seen = None if other is None else f"{other.dtype} {tuple(other.shape)}"
            raise ValueError(
                f"State {name} of parameter {index} is {seen}; expected {tensor.dtype} {tuple(tensor.shape)}. "
                "The other peer uses another optimizer_bits or model size."
            )
        tensor.copy_(other)
