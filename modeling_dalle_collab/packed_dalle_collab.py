"""Weights in the layouts in which a CPU multiplies few rows fastest: as they are, for one generation, and in 8 bits.

Axes: row (batch and position in one), input, output.
"""

from collections.abc import Callable, Iterable
from typing import NoReturn

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from .linear_dalle_collab import Products, is_plain_linear

# oneDNN lays weights out for about so many rows.
TYPICAL_ROWS = 16
SMALLEST = torch.finfo(torch.float32).tiny


def packed_products(layers: Iterable[nn.Module]) -> Products:
    """Return products with the weights of plain linear layers, copied into oneDNN's own layout; none elsewhere.

    From 4 rows on, reading weights in their own order takes 2 to 4 x as long: on one thread of an AMD EPYC 24.0 against
    23.6 ms for one row, 59.0 against 33.0 for 8, and 65.0 against 34.6 for 12 rows and 403 MB.
    """
    return {
        layer: packed_product(layer.weight, layer.bias)
        for layer in layers
        if is_plain_linear(layer) and can_pack(layer.weight)
    }


def can_pack(weight: Tensor) -> bool:
    """Return whether this machine's oneDNN takes a weight: float32, on the CPU."""
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and torch.backends.mkldnn.is_available()


def packed_product(weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    """Return the product with a weight (output, input) and a bias (output), from (..., input) to (..., output)."""
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), TYPICAL_ROWS)
    return lambda x: torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")


def _refuse(what: str) -> NoReturn:
    raise ValueError(
        f"A model with weights of 8 bits cannot be {what}: those it was published with are gone. "
        "Load it again, and leave out use_int8_weights()."
    )


class _Untrainable(torch.autograd.Function):
    """Returns its first input; a backward pass, which would lack the product's gradient, is refused."""

    @staticmethod
    def forward(_ctx: FunctionCtx, out: Tensor, *_inputs: Tensor | None) -> Tensor:
        return out.view_as(out)

    @staticmethod
    def backward(_ctx: FunctionCtx, *_grads: Tensor) -> NoReturn:
        _refuse("trained")


class Int8Linear(nn.Module):
    """A linear layer with weights in 8 bits, a scale for each output.

    Its input is the sum of a coarse and a fine part of 8 bits each, a scale for each row, so that rounding it costs
    nothing beside rounding the weights. A row's sums are whole numbers: they do not depend on the rows beside it.
    torch's product of int8 weights with float32 rows (`_weight_int8pack_mm`) takes longer than that of float32 ones.
    What would lose these weights or their gradients raises `ValueError`: saving, loading, copying, moving, training.
    """

    scales: Tensor

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.bias, weight = layer.bias, layer.weight.detach()
        self.register_buffer("scales", (weight.abs().amax(dim=1) / 127).clamp_(min=SMALLEST))
        self.zeros = torch.zeros(len(weight), dtype=torch.int32)
        self.packed = torch.ops.onednn.qlinear_prepack((weight / self.scales[:, None]).round_().to(torch.int8), None)
        # Without VNNI pairs of products are added in 16 bits, for which larger numbers are too large.
        self.largest = 127 if torch.cpu._is_vnni_supported() else 63

    def forward(self, x: Tensor) -> Tensor:
        """(..., input) float32 to (..., output)."""
        with torch.no_grad():
            out = self._product(x)
        return _Untrainable.apply(out, x, self.bias) if torch.is_grad_enabled() else out

    def _product(self, x: Tensor) -> Tensor:
        scale = x.abs().amax(dim=-1, keepdim=True).clamp_(min=SMALLEST) / self.largest
        exact = x / scale
        coarse = exact.round()
        parts = torch.stack([coarse, (exact - coarse).mul_(2 * self.largest).round_()]).add_(self.largest + 1)
        sums = torch.ops.onednn.qlinear_pointwise(
            *(parts.to(torch.uint8), 1.0, self.largest + 1, self.packed, self.scales, self.zeros),
            *(None, 1.0, 0, torch.float32, "none", [], ""),
        )
        total = torch.add(sums[0], sums[1], alpha=0.5 / self.largest)
        return total * scale if self.bias is None else torch.addcmul(self.bias, total, scale)

    def __getstate__(self) -> NoReturn:
        _refuse("copied")

    def _save_to_state_dict(self, *_arguments: object) -> NoReturn:
        _refuse("saved")

    def _load_from_state_dict(self, *_arguments: object) -> NoReturn:
        _refuse("given other weights")

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Int8Linear":
        if (like := fn(self.scales)).device != self.scales.device or like.dtype != self.scales.dtype:
            _refuse(f"moved to {like.device} or changed to {like.dtype}")
        return super()._apply(fn, recurse)


def replace_by_int8(module: nn.Module) -> None:
    """Replace all plain linear layers inside by `Int8Linear`. Raises `ValueError` unless they are float32 on a CPU."""
    for name, child in module.named_children():
        if not is_plain_linear(child):
            replace_by_int8(child)
        elif can_pack(child.weight):
            setattr(module, name, Int8Linear(child))
        else:
            raise ValueError(
                f"Weights are {child.weight.dtype} on {child.weight.device}, expected torch.float32 on a CPU with "
                "oneDNN, where 8 bits are faster. Load the model so, or leave its weights as they are."
            )
