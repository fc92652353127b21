"""The calculator behind the Space: the controls' values, and what the page shows for them."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

from hub_tools.checks import is_number
from modeling_dalle_collab import DalleCollabConfig
from pipelines.features.memory_estimate.estimate import estimate_training_memory
from pipelines.features.memory_estimate.hub_config import read_sizes
from pipelines.features.memory_estimate.model_presets import MODEL_PRESETS, ModelSizes
from pipelines.features.memory_estimate.models.dalle_collab_compute import training_flops
from pipelines.features.memory_estimate.settings import MemorySettings
from pipelines.tools.pages.memory_calculator.fitting import MACHINES, find_fitting, join_command
from pipelines.tools.pages.memory_calculator.presentation import (
    NamedEstimate,
    as_gigabytes,
    as_parameters,
    compared,
    fits_table,
    stacked_picture,
)

MAX_MICRO_BATCH = 100_000
MAX_SEQUENCE = 1_000_000
MAX_REPOSITORY_LENGTH = 200


@dataclass(frozen=True, kw_only=True)
class CalculatorInput:
    """The controls of the page, in their order."""

    model: str = next(iter(MODEL_PRESETS))
    repository: str = ""
    """A model on the Hub instead of `model`."""
    micro_batch_size: int = 4
    sequence_length: int = 0
    """0: the model's own."""
    precision: str = "fp16"
    recompute: str = "reversible"
    optimizer: str = "lamb"
    optimizer_bits: str = "8"
    offload_optimizer: bool = False
    collaborative: bool = True
    num_shared_groups: int = 0
    """0: the model's own."""
    num_gpus: int = 1
    shard_over_gpus: bool = False

    @classmethod
    def from_values(cls, values: Sequence[Any]) -> Self:
        """Build the input from the values of the controls; ValueError for values that no control should send."""
        names = [item.name for item in dataclasses.fields(cls)]
        given = dict(zip(names, values, strict=True))
        for name, most in (
            ("micro_batch_size", MAX_MICRO_BATCH),
            ("sequence_length", MAX_SEQUENCE),
            ("num_shared_groups", 10_000),
            ("num_gpus", 10_000),
        ):
            given[name] = _whole(name, given[name], most)
        for name in ("offload_optimizer", "collaborative", "shard_over_gpus"):
            given[name] = bool(given[name])
        for name in ("model", "repository", "precision", "recompute", "optimizer", "optimizer_bits"):
            given[name] = str(given[name] or "").strip()[:MAX_REPOSITORY_LENGTH]
        return cls(**given)

    def values(self) -> tuple[Any, ...]:
        """Return the values of the controls."""
        return tuple(getattr(self, item.name) for item in dataclasses.fields(self))

    def to_state(self) -> dict[str, Any]:
        """Return plain values that a page can store."""
        return dataclasses.asdict(self)

    def sizes(self) -> ModelSizes:
        """Return the model's sizes; reads the Hub if a repository is named."""
        if self.repository:
            return _sizes_on_hub(self.repository)
        if self.model not in MODEL_PRESETS:
            raise ValueError(f"There is no model {self.model[:80]!r} here. Choose one from the list.")
        return MODEL_PRESETS[self.model]

    def settings(self) -> MemorySettings:
        """Return the estimate's settings."""
        return MemorySettings(
            micro_batch_size=self.micro_batch_size,
            sequence_length=self.sequence_length or None,
            precision=self.precision,
            recompute=self.recompute,
            optimizer=self.optimizer,
            optimizer_bits=int(self.optimizer_bits) if self.optimizer_bits.isdigit() else 0,
            offload_optimizer=self.offload_optimizer,
            collaborative=self.collaborative,
            num_shared_groups=self.num_shared_groups or None,
            num_gpus=self.num_gpus,
            shard_over_gpus=self.shard_over_gpus,
        )


@dataclass(frozen=True, kw_only=True)
class CalculatorAnswer:
    """What the page shows."""

    summary: str
    """Plain text."""
    picture: str = ""
    """HTML, like `fits`; all external text is escaped."""
    fits: str = ""
    command: str = ""


@dataclass(frozen=True, kw_only=True)
class FoundSettings:
    """A configuration that fits, and a sentence about it."""

    message: str
    input: CalculatorInput


def answer(given: CalculatorInput, *, first: dict[str, Any] | None, run: str) -> CalculatorAnswer:
    """Return what the page shows for `given`, next to `first` (a kept input's state) if there is one.

    Raises ValueError or OSError if the input is invalid or the Hub cannot be read.
    """
    model, settings = given.sizes(), given.settings()
    estimate = estimate_training_memory(model, settings)
    summary = (
        f"{given.repository or given.model}, {as_parameters(estimate.num_parameters)} parameters: "
        f"{as_gigabytes(estimate.gpu.total)} on each GPU, {as_gigabytes(estimate.ram.total)} of RAM."
        f"{_work(model, settings)}"
    )
    shown = [NamedEstimate(name="B" if first else "this", estimate=estimate)]
    if first:
        kept = CalculatorInput(**first)
        kept_model, kept_settings = kept.sizes(), kept.settings()
        kept_estimate = estimate_training_memory(kept_model, kept_settings)
        shown.insert(0, NamedEstimate(name="A", estimate=kept_estimate))
        summary += f" {compared(kept_estimate, estimate)}"
        if model.is_ours and kept_model.is_ours:
            ratio = _flops(model, settings) / _flops(kept_model, kept_settings)
            summary += f" For a picture B computes {ratio:.2f} times as much as A."
    return CalculatorAnswer(
        summary=summary,
        picture=stacked_picture(shown),
        fits=fits_table(model, settings),
        command=_command(model, settings, run),
    )


def find_for(given: CalculatorInput, machine_name: str) -> FoundSettings:
    """Return the settings closest in speed to the given ones that fit the machine, or say that none do."""
    machine = next((item for item in MACHINES if item.name == machine_name), None)
    if machine is None:
        raise ValueError(f"There is no machine {str(machine_name)[:40]!r} here. Choose one from the list.")
    found = find_fitting(given.sizes(), given.settings(), machine)
    if found is None:
        return FoundSettings(
            message=f"No setting with the same result fits {machine.name}. Choose a smaller model, share weights "
            "or use more GPUs.",
            input=given,
        )
    fitted = dataclasses.replace(
        given,
        micro_batch_size=found.micro_batch_size,
        precision=found.precision,
        recompute=found.recompute,
        optimizer_bits=str(found.optimizer_bits),
        offload_optimizer=found.offload_optimizer,
    )
    changed = [
        f"{item.name.replace('_', ' ')} {getattr(fitted, item.name)}"
        for item in dataclasses.fields(fitted)
        if getattr(fitted, item.name) != getattr(given, item.name)
    ]
    text = ", ".join(changed) if changed else "the settings as they are"
    return FoundSettings(message=f"Fits {machine.name}: {text}.", input=fitted)


def _work(model: ModelSizes, settings: MemorySettings) -> str:
    if not model.is_ours:
        return ""
    work, codes = _flops(model, settings) / 1e12, DalleCollabConfig.from_dict(model.values).num_image_codes
    return f" A picture is {codes:,} codes; training on it and its caption takes {work:.2f} TFLOP."


def _flops(model: ModelSizes, settings: MemorySettings) -> float:
    return training_flops(DalleCollabConfig.from_dict(model.values), settings.recompute)


def _command(model: ModelSizes, settings: MemorySettings, run: str) -> str:
    if not model.is_ours:
        return "# The command for joining exists only for this project's model"
    return join_command(settings, run)


def _whole(name: str, value: object, most: int) -> int:
    if not is_number(value) or not 0 <= value <= most or value != int(value):
        raise ValueError(f"{name.replace('_', ' ')} is {str(value)[:40]!r}; expected a whole number up to {most}.")
    return int(value)


@lru_cache(maxsize=256)
def _sizes_on_hub(repository: str) -> ModelSizes:
    return read_sizes(repository)
