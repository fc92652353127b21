"""How much memory a server gives to those who ask."""

from pipelines.core.run.compute_options import GIBIBYTE
from pipelines.features.machine import available_memory, free_gpu_memory

SHARE_FOR_OTHERS = 0.5
"""Of what is free beside the weights, where the owner says nothing: the rest is for passes, and for the owner."""

UNKNOWN_BYTES = 4 * GIBIBYTE
"""Where the system does not say what is free."""


def free_memory(device: str) -> int | None:
    """Return the bytes that are free on a torch device; None: unknown."""
    return free_gpu_memory(device) if device.startswith("cuda") else available_memory()


def memory_for_others(gibibytes: float | None, free: float | None) -> int:
    """Return the bytes for others: as many as the owner gives, else a share of those that are `free`."""
    if gibibytes is not None:
        return int(gibibytes * GIBIBYTE)
    return int(UNKNOWN_BYTES if free is None else SHARE_FOR_OTHERS * max(0.0, free))
