"""The gradient of one micro-batch on one device: precision, loss scaling, compilation.

Parameters and gradients stay float32 whatever the precision; only the computation in between uses fewer bits.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from pipelines.core.run.task import Batch, TrainingTask

logger = logging.getLogger(__name__)

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
FIRST_LOSS_SCALE = 2.0**16
GOOD_STEPS_BEFORE_GROWTH = 2000
"""Both are the defaults of `torch.amp.GradScaler`."""


@dataclass(frozen=True, kw_only=True)
class BatchLoss:
    """The loss of a micro-batch whose gradient was computed."""

    mean: float
    weight: int
    """What the mean is taken over, in the task's unit: samples or tokens."""


@runtime_checkable
class CompilesLayers(Protocol):
    """A model that compiles what its layers share once, not all layers one after the other."""

    def compile_layers(self) -> None:
        """Train with compiled layers from now on; where the compiler fails, as they are."""


ComputeGradient = Callable[[Batch, float], BatchLoss]
"""Adds a factor times the gradient of a batch's mean loss to the parameters' `.grad`."""


class GradientComputation:
    """Computes gradients with one model on one device; `precision` is a key of `PRECISIONS`.

    With `compiled` the model is compiled when the first gradient is asked for. Where the compiler fails, the log says
    so, and gradients are computed without it.
    """

    def __init__(
        self, task: TrainingTask, model: torch.nn.Module, *, device: str, precision: str, compiled: bool
    ) -> None:
        self.device = torch.device(device)
        self._task, self._dtype = task, PRECISIONS[precision]
        self._model, self._is_to_be_compiled = model, compiled

    def loss(self, batch: Batch) -> tuple[torch.Tensor, int]:
        """Return the batch's summed loss, float32 with its graph, and the weight that it sums over."""
        if self._is_to_be_compiled:
            logger.info("Compiling the model: the first gradient takes a minute or more.")
            self._model, self._is_to_be_compiled = _compiled(self._model), False
        return self._loss(batch)

    def backward(self, batch: Batch, factor: float) -> BatchLoss:
        """Add `factor` times the gradient of the batch's mean loss to the parameters' `.grad`; return the loss."""
        return _backward(*self.loss(batch), factor)

    def backward_as_it_is(self, batch: Batch, factor: float) -> BatchLoss:
        """The same without compiling first: to try sizes, each of which would be compiled anew."""
        return _backward(*self._loss(batch), factor)

    def _loss(self, batch: Batch) -> tuple[torch.Tensor, int]:
        on_device = {name: tensor.to(self.device, non_blocking=True) for name, tensor in batch.items()}
        with torch.autocast(self.device.type, dtype=self._dtype, enabled=self._dtype != torch.float32):
            loss, weight = self._task.loss(self._model, on_device)
        if weight <= 0:
            raise ValueError(f"A micro-batch has a weight of {weight}; expected at least 1.")
        return loss.float(), weight


def _backward(total: torch.Tensor, weight: int, factor: float) -> BatchLoss:
    mean = total / weight
    (mean * factor).backward()
    return BatchLoss(mean=mean.item(), weight=weight)


def _compiled(model: torch.nn.Module) -> torch.nn.Module:
    """Return a model that computes in compiled code: by layers, where it has a way of its own."""
    if isinstance(model, CompilesLayers):
        model.compile_layers()
        return model
    torch._dynamo.config.suppress_errors = True  # what cannot be compiled runs as it is, and the log says so
    compiled: torch.nn.Module = torch.compile(model)  # type: ignore[assignment]  # of a module it is one
    return compiled


@dataclass(frozen=True, kw_only=True)
class LossScale:
    """Factor on the loss, so that small gradients survive float16 (Micikevicius et al., 2018)."""

    value: float = FIRST_LOSS_SCALE
    num_good_steps: int = 0
    """Finite gradients since the value last changed."""

    def after(self, was_finite: bool) -> "LossScale":
        """Return the scale for the next gradient: half after an overflow, double after a long time without."""
        if not was_finite:
            return LossScale(value=max(1.0, self.value / 2))
        if self.num_good_steps + 1 == GOOD_STEPS_BEFORE_GROWTH:
            return LossScale(value=self.value * 2)
        return LossScale(value=self.value, num_good_steps=self.num_good_steps + 1)


class UsableGradients:
    """Computes gradients and, in float16, scales the loss; a gradient that overflowed is dropped."""

    def __init__(
        self,
        backward: ComputeGradient,
        parameters: Iterable[torch.nn.Parameter],
        *,
        precision: str,
        scale: LossScale | None = None,
    ) -> None:
        self._backward, self._parameters = backward, tuple(parameters)
        self.scale = scale or (LossScale() if precision == "fp16" else None)

    def compute(self, batch: Batch) -> BatchLoss | None:
        """Leave the batch's gradient in the parameters' `.grad` and return the loss; None if it overflowed."""
        if self.scale is None:
            return self._backward(batch, 1.0)
        loss = self._backward(batch, self.scale.value)
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        finite = gradients_are_finite(gradients)
        if finite:
            torch._foreach_mul_(gradients, 1 / self.scale.value)
        else:
            for parameter in self._parameters:
                parameter.grad = None
        self.scale = self.scale.after(finite)
        if not finite:
            logger.info("A gradient overflowed in float16 and was dropped; the loss scale is %g now.", self.scale.value)
        return loss if finite else None


def gradients_are_finite(gradients: Iterable[torch.Tensor]) -> bool:
    """Tell whether every value is finite."""
    norms = [torch.linalg.vector_norm(gradient) for gradient in gradients]
    return not norms or bool(torch.isfinite(torch.stack(norms)).all())


def resolve_precision(wanted: str, device: str) -> str:
    """Return the precision for `auto`: bf16 on GPUs that support it, fp16 on older ones, fp32 on the CPU."""
    if wanted != "auto":
        return wanted
    if torch.device(device).type != "cuda":
        return "fp32"
    return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"


def is_worth_compiling(wanted: str, device: str, task: TrainingTask) -> bool:
    """Tell whether to compile the model: for `auto`, on a GPU if the task says that it pays off."""
    if wanted != "auto":
        return wanted == "on"
    return torch.device(device).type == "cuda" and task.compiling_pays()
