"""The training state as files: tensors in safetensors, the rest in JSON; nothing is ever unpickled."""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from hub_tools.foreign.json_texts import read_json
from hub_tools.run_files import OPTIMIZER_FILE, RUN_STATE_FILE, WEIGHTS_FILE
from pipelines.core.optimizers.parameter_groups import in_optimizer_order


@dataclass(frozen=True, kw_only=True)
class RunState:
    """The run's progress when the checkpoint was taken."""

    run_id: str
    epoch: int
    """Optimizer steps made by the swarm."""

    loss: float | None
    """Training loss that the swarm reported for the newest epoch."""

    package_version: str


def save_training_state(
    folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, state: RunState
) -> None:
    """Write the optimizer's statistics and the run state; the model is written by its own `save_pretrained`."""
    tensors = {name: tensor.contiguous() for name, tensor in _named_statistics(model, optimizer)}
    save_file(tensors, str(folder / OPTIMIZER_FILE), metadata={"format": "pt"})
    (folder / RUN_STATE_FILE).write_text(json.dumps(asdict(state), indent=2) + "\n", encoding="utf-8")


def load_training_state(folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> RunState:
    """Copy a checkpoint into the model and the optimizer, whose parameters may be copies of the model's.

    Raises:
        ValueError: a file is missing, damaged, or of another model.
    """
    state = run_state_in(folder)
    weights, statistics = _read_tensors(folder / WEIGHTS_FILE), _read_tensors(folder / OPTIMIZER_FILE)
    _copy_all(dict(_named_statistics(model, optimizer)), statistics, OPTIMIZER_FILE)
    _copy_all(dict(model.named_parameters()), weights, WEIGHTS_FILE)
    with torch.no_grad():
        for name, parameter in _named_parameters(model, optimizer):
            parameter.copy_(weights[name])
    return state


def loader_of(folder: Path | None) -> Callable[[torch.nn.Module, torch.optim.Optimizer], int] | None:
    """Return what copies a checkpoint as `load_training_state` does, and returns its epoch; None if there is none."""
    return None if folder is None else lambda model, optimizer: load_training_state(folder, model, optimizer).epoch


def load_weights(path: Path, model: torch.nn.Module) -> None:
    """Copy a checkpoint's parameters into the model; raises ValueError if the file is damaged or of another model."""
    _copy_all(dict(model.named_parameters()), _read_tensors(path), path.name)


def run_state_in(folder: Path) -> RunState:
    """Return the run's progress; raises ValueError if the file is missing or damaged."""
    try:
        return RunState(**read_json(folder / RUN_STATE_FILE))
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"{RUN_STATE_FILE} cannot be read ({error}). Download the checkpoint again.") from error


def num_parameters_in(folder: Path) -> int:
    """Return the number of parameters of a checkpoint's model, from the header of its weights."""
    with safe_open(str(folder / WEIGHTS_FILE), framework="pt") as weights:
        return sum(math.prod(weights.get_slice(name).get_shape()) for name in weights.keys())  # noqa: SIM118


def _read_tensors(path: Path) -> dict[str, torch.Tensor]:
    try:
        return load_file(str(path))
    except (OSError, SafetensorError) as error:
        raise ValueError(
            f"{path.name} is not a complete safetensors file ({error}). Download the checkpoint again; a pickle "
            "(.pt, .bin) is never loaded."
        ) from error


@torch.no_grad()
def _copy_all(own: dict[str, torch.Tensor], loaded: dict[str, torch.Tensor], file_name: str) -> None:
    for name, tensor in own.items():
        other = loaded.get(name)
        if other is None or other.shape != tensor.shape or other.dtype != tensor.dtype:
            seen = "nothing" if other is None else f"{other.dtype} {tuple(other.shape)}"
            raise ValueError(
                f"{file_name} has {seen} for {name}; expected {tensor.dtype} {tuple(tensor.shape)}. "
                "It belongs to another model or run."
            )
    for name, tensor in own.items():
        tensor.copy_(loaded[name])


def _named_parameters(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, torch.Tensor]]:
    """Pair the model's parameter names with the optimizer's own tensors, which are in the same order."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    owned = [p for group in optimizer.param_groups for p in group["params"]]
    for parameter, copy in zip(in_optimizer_order(model), owned, strict=True):
        yield names[id(parameter)], copy


def _named_statistics(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, torch.Tensor]]:
    for name, parameter in _named_parameters(model, optimizer):
        for key, tensor in optimizer.state[parameter].items():
            yield f"{name}.{key}", tensor
