"""Checkpoints as other tools write them: no code in them is run, and weights are found wherever a tool has put them."""

import os
import pickle
import re
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from pipelines.tasks.text_to_image.image_codes.vqgan_config import CodecLoadError

SAFETENSORS_SUFFIX = ".safetensors"
MOST_LEVELS = 4
"""Dictionaries in each other that are searched for weights."""

MOVING_AVERAGE = re.compile(r"(?<![a-z])(ema|averaged?|swa|shadow)(?![a-z])", re.I)
FLAT_AVERAGE = "model_ema."
"""Where latent-diffusion keeps a moving average: after this, the names without their dots."""


class InertObject:
    """Placeholder for an object of a class in the checkpoint: it accepts everything and does nothing."""

    def __init__(self, *arguments: object, **options: object):
        pass

    def __setstate__(self, state: object) -> None:
        pass


def read_checkpoint(checkpoint_path: str | os.PathLike) -> dict[str, Any]:
    """What a pickled checkpoint or a safetensors file holds, tensors on the CPU.

    Lightning stores callback objects next to the tensors. Every class unknown to torch becomes an inert placeholder,
    and the file is read by torch's restricted reader, so that nothing in it is imported or called. CodecLoadError for a
    file that is not such a checkpoint, or one that tries to use the operating system.
    """
    path = Path(checkpoint_path)
    try:
        if path.suffix.lower() == SAFETENSORS_SUFFIX:
            return _read_safetensors(path)
        is_new = zipfile.is_zipfile(path)  # the format before torch 1.6 is read where it has no classes
        names = torch.serialization.get_unsafe_globals_in_checkpoint(path) if is_new else []
        placeholders = [(type(name.rpartition(".")[2], (InertObject,), {}), name) for name in names]
        with torch.serialization.safe_globals(placeholders), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of pickles that torch did not write; they are refused
            content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise
    except (
        *(pickle.UnpicklingError, SafetensorError, ValueError, RuntimeError, EOFError, OSError),
        *(LookupError, TypeError, AttributeError, AssertionError),
    ) as error:
        raise CodecLoadError(
            f"{path} cannot be read as a tensors-only checkpoint: {_reason(error)} "
            "Expected safetensors, or a checkpoint saved by torch, whole and from a source that you trust."
        ) from error
    return content if isinstance(content, dict) else {}


def tensors_of(part: object) -> dict[str, torch.Tensor]:
    """The tensors in a part of a checkpoint, by name; none where the part is something else."""
    items = part.items() if isinstance(part, dict) else ()
    return {name: value for name, value in items if isinstance(name, str) and isinstance(value, torch.Tensor)}


def weights_with(content: Mapping[str, object], mark: str, origin: str) -> dict[str, torch.Tensor]:
    """The weights of a model that has a tensor of the name `mark`, by the model's own names; none if there is none.

    Tools nest them (`state_dict`, `weights`, `ema`), and put something before each name (`module.`, `_orig_mod.`,
    `first_stage_model.`). Of several the moving average is taken, of several codecs the one of the first stage.
    CodecLoadError if it is not clear which are meant.
    """
    found = {
        place + name.removesuffix(mark): _below(tensors, name.removesuffix(mark))
        for place, tensors in _parts(content, "", MOST_LEVELS, set())
        for name in tensors
        if name == mark or name.endswith(f".{mark}")
    }
    rank = {place: (bool(MOVING_AVERAGE.search(place)), "first_stage" in place) for place in found}
    first, *others = sorted(found, key=rank.__getitem__, reverse=True) or [None]
    if first is None:
        return {}
    unclear = [place for place in others if rank[place] == rank[first] and not _are_same(found[place], found[first])]
    if unclear:
        raise CodecLoadError(
            f"{origin} has other weights under `{first}` than under `{unclear[0]}`, expected one model, or a moving "
            "average of it (`ema`). Save only the weights that you mean: torch.save(model.state_dict(), 'weights.pt')"
        )
    return found[first]


def names_of(content: Mapping[str, object]) -> list[str]:
    """The names in the largest part of a checkpoint that has tensors."""
    return list(max((tensors for _, tensors in _parts(content, "", MOST_LEVELS, set())), key=len, default={}))


def _parts(content: object, place: str, levels: int, seen: set[int]) -> Iterator[tuple[str, dict[str, torch.Tensor]]]:
    """Every dictionary with its tensors and the names that lead to it; one that comes again counts once."""
    if not isinstance(content, dict) or id(content) in seen or not levels:
        return
    seen.add(id(content))
    yield place, tensors_of(content)
    for name, inner in content.items():
        if isinstance(name, str):
            yield from _parts(inner, f"{place}{name}.", levels - 1, seen)


def _below(tensors: Mapping[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    own = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    averages = {name: own.get(FLAT_AVERAGE + name.replace(".", "")) for name in own}
    return {
        name: tensor if averages[name] is None else averages[name]
        for name, tensor in own.items()
        if not name.startswith(FLAT_AVERAGE)
    }


def _are_same(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(
        tensor is second[name] or (tensor.shape == second[name].shape and torch.equal(tensor, second[name]))
        for name, tensor in first.items()
    )


def _read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    with safe_open(path, framework="pt", device="cpu") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        # safetensors' `save_model` writes a shared tensor once and keeps its other names as metadata.
        others = {name: kept for name, kept in (file.metadata() or {}).items() if kept in tensors}
    return tensors | {name: tensors[kept] for name, kept in others.items()}


def _reason(error: Exception) -> str:
    # torch's own text begins with advice to disable the safety check; the reason is the underlying error.
    cause = error.__context__ if isinstance(error.__context__, pickle.UnpicklingError) else error
    return str(cause).partition("\n")[0] or type(cause).__name__
