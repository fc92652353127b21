"""Where to compute: what a person named, checked before anything is loaded."""

import torch


def torch_device(name: str) -> str:
    """Return the device that `auto`, or a torch device's name, means here; ValueError where there is no such one."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        kind = torch.device(name).type
    except RuntimeError as error:
        raise ValueError(f"There is no device {name!r}. Expected auto, cpu, cuda or cuda:N.") from error
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"Device {name} was asked for, but torch sees no GPU here. Use cpu.")
    return name
