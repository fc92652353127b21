"""How much of a GPU's memory a peer takes: at most its cap while it computes, nothing while it rests."""

import logging
from collections.abc import Callable, Iterable

import torch

from pipelines.core.run.compute_options import GIBIBYTE

logger = logging.getLogger(__name__)


def cap_gpu_memory(device: str, gibibytes: float | None) -> None:
    """Let this process's tensors take at most so many GiB of a GPU; None: all that is free.

    What is more raises torch.OutOfMemoryError. On a CPU the log says that there is nothing to cap.
    """
    if gibibytes is None:
        return
    if torch.device(device).type != "cuda":
        logger.warning(
            "--max-gpu-memory %g has no effect: there is no GPU to cap, this peer is on %s.", gibibytes, device
        )
        return
    with torch.cuda.device(device):
        total = torch.cuda.mem_get_info()[1]
        torch.cuda.set_per_process_memory_fraction(min(1.0, gibibytes * GIBIBYTE / total))


def off_the_gpu(tensors: Iterable[torch.Tensor]) -> Callable[[], None]:
    """Move tensors from GPUs to the CPU and give their memory to other programs; return what brings them back.

    They stay the same objects, which optimizers and modules know; nobody may compute with them meanwhile.
    """
    moved = [(tensor, tensor.device) for tensor in tensors if tensor.device.type == "cuda"]
    _move((tensor, torch.device("cpu")) for tensor, _ in moved)
    torch.cuda.empty_cache()
    return lambda: _move(moved)


def _move(targets: Iterable[tuple[torch.Tensor, torch.device]]) -> None:
    for tensor, device in targets:
        tensor.data = tensor.data.to(device)
