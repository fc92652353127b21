"""A square root that has the same bits on all processors."""

import numpy as np
import torch


def root_(values: torch.Tensor) -> torch.Tensor:
    """Replace float32 values by their square roots and return them; on a CPU each is the nearest float32.

    torch's own on a CPU is that of MKL, whose last bit differs between Intel (37 of 6,144 values are not the nearest)
    and AMD (853 of them): no two states of peers on both would be equal. numpy takes the processor's instruction,
    which rounds as IEEE 754 demands.
    """
    if values.device.type != "cpu":
        return values.sqrt_()
    array = values.numpy()
    np.sqrt(array, out=array)
    return values
