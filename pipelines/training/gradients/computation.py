"""The gradient of one micro-batch on one device: precision, loss scaling, compilation.

Parameters and gradients stay float32 whatever the precision; only what is computed in between is shorter.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

Samples = tuple[torch.Tensor, torch.Tensor]
"""A micro-batch: input_ids (batch, text_sequence) and image_codes (batch, image_sequence), int64 both."""

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
FIRST_LOSS_SCALE = 2.0**16
GOOD_STEPS_BEFORE_GROWTH = 2000
"""Both are the defaults of `torch.amp.GradScaler`."""


class GradientComputation:
    """Computes gradients with one model on one device; `precision` is a key of `PRECISIONS`."""

    def __init__(self, model: torch.nn.Module, *, device: str, precision: str, compiled: bool) -> None:
        self.device = torch.device(device)
        self._dtype = PRECISIONS[precision]
        self._model = torch.compile(model) if compiled else model

    def backward(self, batch: Samples, factor: float) -> float:
        """Add `factor` times the gradient of the batch's mean loss to the parameters' `.grad`; return the loss."""
        input_ids, image_codes = (tensor.to(self.device, non_blocking=True) for tensor in batch)
        with torch.autocast(self.device.type, dtype=self._dtype, enabled=self._dtype != torch.float32):
            loss = self._model(input_ids=input_ids, image_codes=image_codes, return_logits=False).loss
        (loss.float() * factor).backward()
        return loss.item()


@dataclass(frozen=True, kw_only=True)
class LossScale:
    """What the loss is multiplied by, so that small gradients survive float16 (Micikevicius et al., 2018)."""

    value: float = FIRST_LOSS_SCALE
    num_good_steps: int = 0
    """Finite gradients since the last change of the value."""

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
        backward: Callable[[Samples, float], float],
        parameters: Iterable[torch.nn.Parameter],
        *,
        precision: str,
        scale: LossScale | None = None,
    ) -> None:
        self._backward, self._parameters = backward, tuple(parameters)
        self.scale = scale or (LossScale() if precision == "fp16" else None)
        self.num_overflows = 0

    def compute(self, batch: Samples) -> float | None:
        """Leave the batch's gradient in the parameters' `.grad` and return the loss; None if it overflowed."""
        if self.scale is None:
            return self._backward(batch, 1.0)
        loss = self._backward(batch, self.scale.value)
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        finite = gradients_are_finite(gradients)
        if finite:
            torch._foreach_mul_(gradients, 1 / self.scale.value)
        else:
            self.num_overflows += 1
            for parameter in self._parameters:
                parameter.grad = None
        self.scale = self.scale.after(finite)
        return loss if finite else None


def gradients_are_finite(gradients: Iterable[torch.Tensor]) -> bool:
    """Tell whether every value is finite."""
    norms = [torch.linalg.vector_norm(gradient) for gradient in gradients]
    return not norms or bool(torch.isfinite(torch.stack(norms)).all())


def resolve_precision(wanted: str, device: str) -> str:
    """Return the precision for `auto`: bf16 on GPUs that compute it, fp16 on older ones, fp32 on the CPU."""
    if wanted != "auto":
        return wanted
    if torch.device(device).type != "cuda":
        return "fp32"
    return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"


def compiling_pays(wanted: str, device: str, recompute: str) -> bool:
    """Tell whether to compile the model: for `auto`, on a GPU and unless all layers run uncompiled anyway.

    Reversible layers (`recompute` is the model's setting) are left out by the compiler, so that little would be gained
    for the minute that it takes; see `reversible_dalle_collab`.
    """
    if wanted != "auto":
        return wanted == "on"
    return torch.device(device).type == "cuda" and recompute != "reversible"
