"""The calculator behind the Space: the controls' values, and what the page shows for them."""

import contextlib
import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

import httpx2
from huggingface_hub.errors import HFValidationError, RemoteEntryNotFoundError

from hub_tools.checks import is_number
from hub_tools.counted import memory_size
from hub_tools.foreign.downloads import fetch_file
from hub_tools.run_files import TRAINING_RUN_FILE
from modeling_dalle_collab import DalleCollabConfig
from pipelines.core.run.compute_options import GIBIBYTE
from pipelines.core.run.training_run import TrainingRun
from pipelines.features.memory_estimate.estimate import estimate_training_memory
from pipelines.features.memory_estimate.hub_config import read_sizes
from pipelines.features.memory_estimate.model_presets import MODEL_PRESETS, ModelSizes
from pipelines.features.memory_estimate.models.dalle_collab_compute import training_flops
from pipelines.features.memory_estimate.run_memory import run_settings, run_sizes
from pipelines.features.memory_estimate.settings import MemorySettings
from pipelines.features.publishing.metrics.run_state import RunPhase, condition_by
from pipelines.features.publishing.repository.snapshot import RunSnapshot
from pipelines.tools.pages.memory_calculator.fitting import (
    MemoryPreset,
    find_fitting,
    join_command,
    largest_micro_batch,
    least_needed,
    smaller_models,
)
from pipelines.tools.pages.memory_calculator.presentation import (
    MOST_SHOWN,
    NamedEstimate,
    as_parameters,
    compared,
    fits_table,
    stacked_picture,
)

MAX_MICRO_BATCH = 100_000
MAX_SEQUENCE = 1_000_000
MAX_REPOSITORY_LENGTH = 200
MAX_GIBIBYTES = 100_000


@dataclass(frozen=True, kw_only=True)
class CalculatorInput:
    """The controls of the page, in their order."""

    model: str = next(iter(MODEL_PRESETS))
    repository: str = ""
    """A run, or a model on the Hub, instead of `model`."""
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

    def as_in_run(self) -> Self:
        """Return the input with what the run decides for each peer; the same one if no run is named.

        Raises ValueError or OSError if the Hub cannot be read.
        """
        if (run := self.run) is None:
            return self
        decided = run_settings(run)
        return dataclasses.replace(
            self,
            recompute=decided.recompute,
            optimizer=decided.optimizer,
            optimizer_bits=str(decided.optimizer_bits),
            collaborative=True,
            offload_optimizer=not decided.local_steps,
        )

    @property
    def run(self) -> TrainingRun | None:
        """The run that `repository` names; None: it names none. Raises ValueError or OSError, as `sizes`."""
        return _run_on_hub(self.repository, _minute()) if self.repository else None

    @property
    def fixed_offload(self) -> bool | None:
        """Whether the optimizer is in RAM where the swarm decides that; None: one may choose. Raises as `sizes`."""
        return not (self.run and self.run.local_steps > 1) if self.collaborative else None

    def values(self) -> tuple[object, ...]:
        """Return the values of the controls."""
        return tuple(getattr(self, item.name) for item in dataclasses.fields(self))

    def to_state(self) -> dict[str, object]:
        """Return plain values that a page can store."""
        return dataclasses.asdict(self)

    def sizes(self) -> ModelSizes:
        """Return the model's sizes; reads the Hub if a repository is named."""
        if (run := self.run) is not None:
            return run_sizes(run)
        if self.repository:
            return _sizes_on_hub(self.repository)
        if self.model not in MODEL_PRESETS:
            raise ValueError(f"There is no model {self.model[:80]!r} here. Choose one from the list.")
        return MODEL_PRESETS[self.model]

    def settings(self) -> MemorySettings:
        """Return the estimate's settings; raises as `sizes`."""
        chosen: dict[str, Any] = dict(
            micro_batch_size=self.micro_batch_size,
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
        if self.sequence_length:
            chosen["sequence_length"] = self.sequence_length
        if self.collaborative and (run := self.run) is not None:
            return run_settings(run, **chosen)
        return MemorySettings(**chosen)


@dataclass(frozen=True, kw_only=True)
class CalculatorAnswer:
    """What the page shows."""

    summary: str
    """Plain text."""
    picture: str = ""
    """HTML, like `fits`; all external text is escaped."""
    fits: str = ""
    command: str = ""
    total: str = ""
    """What is needed, in a few words."""


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
        f"{memory_size(estimate.gpu.total)} on each GPU, {memory_size(estimate.ram.total)} of RAM."
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
        command=_command(given, model, settings, run),
        total=f"GPU {memory_size(estimate.gpu.total)} · RAM {memory_size(estimate.ram.total)}",
    )


def find_for(given: CalculatorInput, gpu_gibibytes: float, ram_gibibytes: float) -> FoundSettings:
    """Return the largest micro-batch that fits, with the settings closest in speed to the given ones.

    If none fits a named model, the largest one of its kind is taken that some fit. Raises as `answer`.
    """
    machine = _machine(gpu_gibibytes, ram_gibibytes)
    place = f"{memory_size(machine.gpu_bytes)} of GPU memory and {memory_size(machine.ram_bytes)} of RAM"
    wanted, found = given, _fitted(given, machine)
    if found is None and not given.repository:
        smaller = (
            dataclasses.replace(given, model=name, sequence_length=0, num_shared_groups=0)
            for name, _ in smaller_models(given.sizes())
        )
        found = next(filter(None, (_fitted(one, machine) for one in smaller)), None)
    if found is None:
        gpu, ram = least_needed(given.sizes(), given.settings())
        return FoundSettings(
            message=f"No setting with the same result fits {place}: it takes {memory_size(gpu)} and "
            f"{memory_size(ram)} at least.",
            input=given,
        )
    changed = [
        f"{item.name.replace('_', ' ')} {getattr(found, item.name)}"
        for item in dataclasses.fields(found)
        if item.name not in ("model", "micro_batch_size") and getattr(found, item.name) != getattr(wanted, item.name)
    ]
    smaller_one = "" if found.model == given.model else f"{given.model} does not fit; the largest that does is "
    more = " or more" if found.micro_batch_size == MOST_SHOWN else ""
    return FoundSettings(
        message=f"{smaller_one}{given.repository or found.model}: at most {found.micro_batch_size}{more} samples at "
        f"once fit {place}{', with ' if changed else ''}{', '.join(changed)}.",
        input=found,
    )


def _machine(gpu_gibibytes: float, ram_gibibytes: float) -> MemoryPreset:
    for name, value in (("GPU memory", gpu_gibibytes), ("RAM", ram_gibibytes)):
        if not is_number(value) or not 0 < value <= MAX_GIBIBYTES:
            raise ValueError(
                f"The {name} is {str(value)[:40]!r}; expected GiB, more than 0, at most {MAX_GIBIBYTES:,}."
            )
    return MemoryPreset(name="", gpu_bytes=gpu_gibibytes * GIBIBYTE, ram_bytes=ram_gibibytes * GIBIBYTE)


def _fitted(given: CalculatorInput, machine: MemoryPreset) -> CalculatorInput | None:
    """Return the input changed so that as many samples as possible fit the machine; None if nothing does."""
    sizes = given.sizes()
    found = find_fitting(sizes, given.settings(), machine)
    if found is None:
        return None
    return dataclasses.replace(
        given,
        micro_batch_size=largest_micro_batch(sizes, found, machine, most=MOST_SHOWN),
        precision=found.precision,
        recompute=found.recompute,
        optimizer_bits=str(found.optimizer_bits),
        offload_optimizer=found.offload_optimizer,
    )


def _work(model: ModelSizes, settings: MemorySettings) -> str:
    if not model.is_ours:
        return ""
    flops, codes = _flops(model, settings), DalleCollabConfig.from_dict(model.values).num_image_codes
    work = f"{flops / 1e12:.2f} TFLOP" if flops >= 1e11 else f"{flops / 1e9:.2g} GFLOP"
    return f" A picture is {codes:,} codes; training on it and its caption takes {work}."


def _flops(model: ModelSizes, settings: MemorySettings) -> float:
    return training_flops(DalleCollabConfig.from_dict(model.values), settings.recompute)


def _command(given: CalculatorInput, model: ModelSizes, settings: MemorySettings, run: str) -> str:
    if not model.is_ours:
        return "# The command for joining exists only for this project's model"
    if given.run is None:
        return join_command(settings, run)
    return _use_when_over(given.repository, _minute()) or join_command(settings, given.repository)


def _minute() -> int:
    # What lies on the Hub is read anew each minute: its organiser may change it.
    return int(time.monotonic() // 60)


def _whole(name: str, value: object, most: int) -> int:
    if not is_number(value) or not 0 <= value <= most or value != int(value):
        raise ValueError(f"{name.replace('_', ' ')} is {str(value)[:40]!r}; expected a whole number up to {most}.")
    return int(value)


@lru_cache(maxsize=256)
def _sizes_on_hub(repository: str) -> ModelSizes:
    return read_sizes(repository)


@lru_cache(maxsize=256)
def _use_when_over(repository: str, minute: int) -> str:
    with contextlib.suppress(OSError, ValueError, httpx2.HTTPError):
        condition = condition_by(RunSnapshot.read(repository), (), now=time.time())
        if condition.state is RunPhase.OVER:
            return f"# The run is over. {condition.advice}:\n{condition.command}"
    return ""


@lru_cache(maxsize=256)
def _run_on_hub(repository: str, minute: int) -> TrainingRun | None:
    try:
        return TrainingRun.from_file(fetch_file(repository, TRAINING_RUN_FILE))
    except RemoteEntryNotFoundError:
        return None
    except HFValidationError as error:
        raise ValueError(f"{repository[:80]!r} is not the name of a repository. Write ORG/NAME.") from error
