"""How many bytes a value takes in each part of a step, for each way of computing."""

from dataclasses import dataclass

PRECISIONS = ("fp32", "bf16", "fp16", "pure-bf16", "pure-fp16")
"""float32 throughout; autocast to a half type over float32 weights; weights and everything else in a half type."""


@dataclass(frozen=True, kw_only=True)
class ElementBytes:
    """Bytes of one element by its place in the model."""

    weight: int
    """Parameters and their gradients."""
    stream: int
    """Residual streams and outputs of normalisations, which autocast leaves in float32."""
    compute: int
    """Inputs and outputs of matrix products and of attention."""

    @property
    def is_autocast(self) -> bool:
        """Whether products use half copies of float32 weights, which live from forward to backward pass."""
        return self.compute < self.weight


def element_bytes(precision: str) -> ElementBytes:
    """Return the bytes of the elements. Raises ValueError for an unknown precision."""
    if precision not in PRECISIONS:
        raise ValueError(f"precision is {precision!r}; expected one of {', '.join(PRECISIONS)}.")
    if precision == "fp32":
        return ElementBytes(weight=4, stream=4, compute=4)
    if precision.startswith("pure-"):
        return ElementBytes(weight=2, stream=2, compute=2)
    return ElementBytes(weight=4, stream=4, compute=2)
