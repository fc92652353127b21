"""LAMB (You et al., 2020, algorithm 2) with statistics in 8 or 32 bits.

`bitsandbytes.optim.LAMB8bit` of 0.50 computes Adam (no trust ratio), so this is our own formula.
"""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from torch.optim.optimizer import ParamsT, StateDict

from pipelines.core.block_quantisation import Statistic, initial_state, read_statistic, write_statistic
from pipelines.core.equal_arithmetic import SPAN, norm, power, root_, shared_out, spans, workers
from pipelines.core.optimizers.parameter_groups import weight_decay_groups

SPAN_ON_GPU = 2**22
"""Elements whose statistics are float32 at the same time: on a CPU `SPAN`, here as many as keep a GPU busy."""

MAX_WEIGHT_NORM = 10_000.0
"""Upper bound of the weight norm in the trust ratio (function phi of LAMB, section 3); the run's own value."""

MEAN = Statistic(name="exp_avg", is_signed=True)
SQUARE = Statistic(name="exp_avg_sq", is_signed=False)
"""Means of the gradients and of their squares."""

LARGEST_NORM = 2.0**64
"""The square of a gradient of more is infinite in float32."""


class RefusedStepError(ValueError):
    """A step along a gradient that no optimizer can use; nothing has changed."""


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

    @staticmethod
    def groups(model: torch.nn.Module, weight_decay: float) -> list[dict]:
        """Return the model's parameters in groups; ValueError if it has none that this optimizer is for."""
        return weight_decay_groups(model.named_parameters(), weight_decay)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # torch's takes closures; unused here
        """Update all parameters that have a gradient; a gradient that is not finite is refused.

        Raises:
            ValueError: the global gradient norm is not finite; nothing has changed then.
        """
        with workers():
            scale = self._gradient_scale()
            for group in self.param_groups:
                for parameter in group["params"]:
                    if (gradient := parameter.grad) is not None:
                        self._update(parameter, gradient.reshape(-1), group, scale)

    def _gradient_scale(self) -> float:
        length = global_norm(self)
        return min(1.0, self.max_gradient_norm / (length + 1e-6)) if self.max_gradient_norm else 1.0

    def _update(self, parameter: torch.Tensor, gradient: torch.Tensor, group: Mapping[str, Any], scale: float) -> None:
        state = self.state[parameter]
        state["step"] += 1
        flat, direction = parameter.detach().view(-1), torch.empty_like(gradient)
        is_on_cpu = gradient.device.type == "cpu"
        parts = spans(gradient.numel(), SPAN if is_on_cpu else SPAN_ON_GPU)
        each = shared_out if is_on_cpu else map
        list(each(partial(self._update_span, state, group, scale, gradient, flat, direction), parts))
        rate = group["lr"] * self.trust_ratio(parameter, direction)
        list(each(lambda span: flat[span].sub_(direction[span] * rate), parts))

    @torch.no_grad()  # which is a thread's own
    def _update_span(
        self,
        state: dict[str, torch.Tensor],
        group: Mapping[str, Any],
        scale: float,
        gradient: torch.Tensor,
        parameter: torch.Tensor,
        direction: torch.Tensor,
        span: slice,
    ) -> None:
        """Update the statistics of a span, and write the direction of its step."""
        (beta1, beta2), step = group["betas"], int(state["step"])
        part, own = gradient[span] * (scale * math.sqrt(1 - beta2)), direction[span]
        mean = read_statistic(state, MEAN, span, beta1)
        mean.add_(torch.mul(gradient[span], scale * (1 - beta1), out=own))
        square = read_statistic(state, SQUARE, span, beta2).add_(part.mul_(part))
        write_statistic(state, MEAN, span, mean)
        write_statistic(state, SQUARE, span, square)
        # Both means' biases in one factor, and in epsilon: one operation less for each.
        bias, bias_of_square = 1 - power(beta1, step), 1 - power(beta2, step)
        divisor = root_(torch.mul(square, bias * bias / bias_of_square, out=part)).add_(group["eps"] * bias)
        torch.div(mean, divisor, out=own)
        if group["weight_decay"]:
            own.add_(torch.mul(parameter[span], group["weight_decay"], out=part))

    def trust_ratio(self, parameter: torch.Tensor, direction: torch.Tensor) -> float:
        """Return the norm of the weights over that of the step's direction; 1 where either is 0."""
        weight_norm, direction_norm = min(norm(parameter), MAX_WEIGHT_NORM), norm(direction)
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


def global_norm(optimizer: torch.optim.Optimizer) -> float:
    """Return the L2 norm of all gradients of an optimizer's parameters; RefusedStepError if float32 has it not."""
    gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    found = norm(*gradients)
    if not found < LARGEST_NORM:
        raise RefusedStepError(f"The global gradient norm is {found}; the step is refused and nothing has changed.")
    return found
