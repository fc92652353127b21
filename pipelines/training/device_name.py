"""What a peer computes on, in a person's words."""

import torch

MAX_CHARACTERS = 64


def describe_device(device: str, num_devices: int = 1) -> str:
    """Return the name of a torch device: `2 x NVIDIA T4`, or `CPU, 4 threads`."""
    kind = torch.device(device)
    name = torch.cuda.get_device_name(kind) if kind.type == "cuda" else kind.type.upper()
    if kind.type == "cpu":
        num_threads = torch.get_num_threads()
        name += f", {num_threads} thread{'' if num_threads == 1 else 's'}"
    return (f"{num_devices} x {name}" if num_devices > 1 else name)[:MAX_CHARACTERS]
