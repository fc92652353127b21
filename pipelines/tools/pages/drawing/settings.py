"""What the owner of a drawing Space chooses, from the environment."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pipelines.features.serving.draw.requests import PRECISIONS
from pipelines.features.torch_devices import torch_device
from pipelines.tools.pages.drawing.volunteers.volunteers import VolunteerOptions


@dataclass(frozen=True, kw_only=True)
class DrawingSettings:
    """The run to draw with, and what visitors may ask for."""

    model_repository: str
    """Repository `ORG/RUN` of the run, or a folder."""
    codec: str | None = None
    """Codec in place of the run's."""
    clip: str | None = None
    """CLIP in place of the run's."""
    training_index: str | None = None
    """Dataset repository or folder with the index of the training data."""
    max_candidates: int = 128
    """Most candidates that a visitor may request."""
    max_queue: int = 32
    """Drawings that may wait; further visitors are told that the queue is full."""
    examples: tuple[str, ...] = ()
    """Prompts to try, besides the captions that the run draws by itself."""
    device: str = "cpu"
    """Torch device."""
    volunteers: VolunteerOptions | None = None
    """How volunteers are asked to draw; None: the Space draws itself."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """Read the settings; ValueError where the run is not named or a setting is invalid."""
        repository = environment.get("MODEL_REPOSITORY", "").strip()
        if not repository:
            raise ValueError("MODEL_REPOSITORY is not set. Name the run: MODEL_REPOSITORY=ORG/RUN")
        examples, volunteers = environment.get("EXAMPLES", "").split("|"), _volunteers(environment, repository)
        # ZeroGPU lends a GPU to what draws here; who only ranks needs none.
        device = "cpu" if volunteers and environment.get("SPACES_ZERO_GPU") else environment.get("DEVICE", "auto")
        return cls(
            model_repository=repository,
            codec=environment.get("CODEC_REPOSITORY") or None,
            clip=environment.get("CLIP_REPOSITORY") or None,
            training_index=environment.get("TRAINING_INDEX") or None,
            max_candidates=_count(environment, "MAX_CANDIDATES", 128),
            max_queue=_count(environment, "MAX_QUEUE", 32),
            examples=tuple(example.strip() for example in examples if example.strip()),
            device=torch_device(device),
            volunteers=volunteers,
        )


def _volunteers(environment: Mapping[str, str], repository: str) -> VolunteerOptions | None:
    precision, audit = environment.get("SWARM", "").strip(), environment.get("AUDIT", "").strip()
    if audit not in ("", "yes"):
        raise ValueError(f"AUDIT is {audit!r}, expected yes, or nothing.")
    if not precision:
        if audit:
            raise ValueError("AUDIT is about the drawings of volunteers. Have them draw with SWARM=float32")
        return None
    if precision not in PRECISIONS:
        raise ValueError(f"SWARM is {precision!r}, expected the precision of servers: {', '.join(PRECISIONS)}.")
    if Path(repository).is_dir():
        raise ValueError(f"MODEL_REPOSITORY is the folder {repository}: volunteers serve a run on the Hub, ORG/RUN.")
    patience = _count(environment, "PATIENCE", 60)
    return VolunteerOptions(precision=precision, audits=bool(audit), patience_seconds=patience)


def _count(environment: Mapping[str, str], name: str, default: int) -> int:
    value = environment.get(name) or str(default)
    if not value.isdecimal() or int(value) < 1:
        raise ValueError(f"{name} is {value!r}, expected a whole number of at least 1.")
    return int(value)
