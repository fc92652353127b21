"""LAMB with 8-bit statistics (the optimizers' one bitsandbytes import), and its schedule.

LAMB: You et al., 2020, algorithm 2. Block-wise 8-bit statistics: Dettmers et al., 2021. `bitsandbytes.optim.LAMB8bit`
of 0.50 computes Adam (no trust ratio), so this is our own formula on top of the library's quantisation.
"""

from functools import cache
from typing import Any, ClassVar

import torch
from bitsandbytes import functional as quantization
from torch.optim.optimizer import ParamsT, StateDict

from pipelines.training.optimizers.gradient_norm import global_norm

BLOCK_SIZE = 256
MIN_8BIT_ELEMENTS = 4096
"""Statistics of smaller tensors stay in float32: they cost little and are the most sensitive."""

CHUNK_ELEMENTS = 2**22
"""Elements whose statistics are float32 at the same time; bounds the temporary memory. A multiple of BLOCK_SIZE."""

MAX_WEIGHT_NORM = 10_000.0
"""Upper bound of the weight norm in the trust ratio (function phi of LAMB, section 3); the run's own value."""


class Lamb(torch.optim.Optimizer):
    """LAMB with decoupled weight decay, bias correction and clipping of the global gradient norm.

    Statistics take 2.03 bytes per parameter with `bits=8` and 8 bytes with `bits=32`. All state exists from the
    start, so that it can be received from another peer before the first step. Parameters are float32, on any device.

    Raises:
        ValueError: a parameter is not float32.
    """

    statistics: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")
    """Names of what is kept for each parameter: a mean of gradients, which has a sign, and a mean of their squares."""

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
                self.state[parameter] = _initial_state(parameter, bits, self.statistics)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # torch's takes closures; unused here
        """Update all parameters that have a gradient; a gradient that is not finite is refused.

        Raises:
            ValueError: the global gradient norm is not finite; nothing has changed then.
        """
        scale = self._gradient_scale()
        for group in self.param_groups:
            for parameter in group["params"]:
                if (gradient := parameter.grad) is not None:
                    self._update(parameter, gradient.reshape(-1), group, scale)

    def _gradient_scale(self) -> float:
        norm = global_norm(self)
        return min(1.0, self.max_gradient_norm / (norm + 1e-6)) if self.max_gradient_norm else 1.0

    def _update(self, parameter: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any], scale: float) -> None:
        state, (beta1, beta2) = self.state[parameter], group["betas"]
        state["step"] += 1
        step = int(state["step"])
        correction1, correction2 = 1 - beta1**step, 1 - beta2**step
        direction = torch.empty_like(parameter).view(-1)
        for start in range(0, gradient.numel(), CHUNK_ELEMENTS):
            span = slice(start, start + CHUNK_ELEMENTS)
            part = gradient[span] * scale
            mean = read_statistic(state, "exp_avg", span).lerp_(part, 1 - beta1)
            square = read_statistic(state, "exp_avg_sq", span).mul_(beta2).addcmul_(part, part, value=1 - beta2)
            write_statistic(state, "exp_avg", span, mean)
            write_statistic(state, "exp_avg_sq", span, square)
            direction[span] = (mean / correction1).div_((square / correction2).sqrt_().add_(group["eps"]))
        if group["weight_decay"]:
            direction.add_(parameter.view(-1), alpha=group["weight_decay"])
        parameter.view(-1).add_(direction, alpha=-group["lr"] * self.trust_ratio(parameter, direction))

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


@cache
def _code(name: str, device: torch.device) -> torch.Tensor:
    """Return the 256 values of the dynamic 8-bit type; the second moment is never negative and needs no sign."""
    return quantization.create_dynamic_map(signed=name == "exp_avg").to(device)


def _initial_state(parameter: torch.Tensor, bits: int, names: tuple[str, ...]) -> dict[str, torch.Tensor]:
    state = {"step": torch.zeros((), dtype=torch.int64)}
    for name in names:
        zeros = torch.zeros(parameter.numel(), device=parameter.device)
        if bits == 32 or parameter.numel() < MIN_8BIT_ELEMENTS:
            state[name] = zeros
        else:
            code = _code(name, parameter.device)
            state[name], quant_state = quantization.quantize_blockwise(zeros, code=code, blocksize=BLOCK_SIZE)
            state[f"{name}_absmax"] = quant_state.absmax
    return state


def _blocks(span: slice) -> slice:
    return slice(span.start // BLOCK_SIZE, -(-span.stop // BLOCK_SIZE))


def read_statistic(state: dict[str, torch.Tensor], name: str, span: slice) -> torch.Tensor:
    """Return float32 values of the span: a view for float32 statistics, a copy for quantised ones."""
    values = state[name][span]
    if values.dtype == torch.float32:
        return values
    absmax = state[f"{name}_absmax"][_blocks(span)]
    code = _code(name, values.device)
    return quantization.dequantize_blockwise(values, absmax=absmax, code=code, blocksize=BLOCK_SIZE)


def write_statistic(state: dict[str, torch.Tensor], name: str, span: slice, values: torch.Tensor) -> None:
    """Keep float32 values of the span."""
    if state[name].dtype == torch.float32:
        return  # `values` is a view of the state
    code = _code(name, values.device)
    quantised, quant_state = quantization.quantize_blockwise(values, code=code, blocksize=BLOCK_SIZE)
    state[name][span] = quantised
    state[f"{name}_absmax"][_blocks(span)] = quant_state.absmax


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
