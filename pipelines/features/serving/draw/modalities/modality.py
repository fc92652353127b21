"""What drawing needs to know of a kind of model. Axes: job, candidate, sample (both flattened), place, code."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from modeling_dalle_collab.sampling_dalle_collab import SamplingOptions

if TYPE_CHECKING:
    from pipelines.features.serving.draw.requests import DrawRequest, SamplingRequest


Model = TypeVar("Model", bound=PreTrainedModel)
ModelOut = TypeVar("ModelOut", bound=PreTrainedModel, covariant=True)
Processor = TypeVar("Processor")
ProcessorOut = TypeVar("ProcessorOut", covariant=True)


class Parts(Protocol[ModelOut, ProcessorOut]):
    """A model that is loaded, and what turns prompts into its ids."""

    @property
    def name(self) -> str:
        """Repository or folder."""

    @property
    def model(self) -> ModelOut:
        """In evaluation mode."""

    @property
    def processor(self) -> ProcessorOut:
        """What `Modality.ids_of` takes."""

    @property
    def epoch(self) -> int | None:
        """Epoch at which the run published it; None if unknown."""


class Modality(Protocol[Model, Processor]):
    """One of `PICTURES` and `TEXTS`."""

    product: str
    """What a candidate becomes, in the singular."""

    unit: str
    """What its codes are, in the plural."""

    def check(self, ids: Tensor, given: Tensor | None, options: SamplingOptions, config: PretrainedConfig) -> None:
        """Raise ValueError unless a model of these sizes can draw behind (1, text) ids and (1, given) codes."""

    def usual_options(self, config: PretrainedConfig) -> SamplingOptions:
        """Return the options of a client who says nothing."""

    def num_places(self, options: SamplingOptions, config: PretrainedConfig) -> int:
        """Return the places of a finished candidate, given ones included."""

    def num_numbers(self, options: SamplingOptions, config: PretrainedConfig) -> int:
        """Return for how many places a candidate has random numbers."""

    def num_symbols(self, config: PretrainedConfig) -> int:
        """Return how many codes there are."""

    def every(self, config: PretrainedConfig) -> int:
        """Return after how many places a client wants to hear."""

    def needed_bytes(self, asked: "DrawRequest", config: PretrainedConfig) -> int:
        """Return what a request takes at most."""

    def most_bytes_of_one(self, config: PretrainedConfig) -> int:
        """Return what the largest candidate takes."""

    def ids_of(self, processor: Processor, prompt: str) -> Tensor:
        """Return the ids of a prompt: (1, text) int64."""

    def rules_of(self, processor: Processor) -> str:
        """Return all that decides which ids a prompt has."""

    def read(self, folder: Path) -> tuple[Processor, PretrainedConfig]:
        """Return processor and configuration of a checkpoint; ValueError if they cannot be used."""

    def load(self, folder: Path, *, precision: str, device: str) -> Parts[Model, Processor]:
        """Load a checkpoint from its folder; ValueError or OSError if that is not possible."""

    def rounded(self, model: Model, precision: str) -> None:
        """Let a float32 model compute in another precision; ValueError if it cannot."""

    def stream(
        self, model: Model, samplings: Sequence["SamplingRequest"], numbers: Tensor, num_candidates: int
    ) -> Iterator[Tensor]:
        """Yield the codes so far of like requests: (job, candidate, number) int64; `numbers`: (sample, place)."""

    def measuring(self, model: Model, num_candidates: int) -> Iterator[int]:
        """Draw some candidates of some prompt to the end; yield how many places are drawn of each."""

    def logits_behind(self, model: Model, sampling: "SamplingRequest", codes: Tensor) -> Tensor:
        """Return the logits that each place's code is chosen from: (candidate, place, code) float32."""

    def means(self, distances: Tensor, codes: Tensor, config: PretrainedConfig) -> Tensor:
        """Return the mean over the places that count, of (candidate, place) distances and codes: (candidate,)."""
