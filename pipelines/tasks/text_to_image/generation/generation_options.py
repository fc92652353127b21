"""How pictures are drawn for prompts."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from hub_tools.counted import counted
from modeling_dalle_collab.sampling_dalle_collab import SamplingOptions

SAMPLER = ("top_k", "top_p", "temperature", "guidance_scale")


@dataclass(frozen=True, kw_only=True)
class GenerationOptions:
    """How many pictures are drawn for a prompt and how freely. The defaults are the paper's."""

    num_candidates: int = 128
    """Pictures drawn for each prompt; CLIP finds better ones among more."""
    keep: int = 4
    """Pictures kept for each prompt."""
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    """How freely each image code is chosen."""
    seed: int = 0
    """The same seed draws the same pictures."""
    batch_size: int = 64
    """Candidates drawn at once. Decrease if memory runs out; the pictures stay the same."""

    def __post_init__(self) -> None:
        if self.num_candidates < 1:
            raise ValueError(f"{self.num_candidates} candidates were requested: expected at least 1.")
        if not 1 <= self.keep <= self.num_candidates:
            raise ValueError(
                f"Cannot keep {self.keep} of {counted(self.num_candidates, 'candidate')}: "
                f"keep 1 to {self.num_candidates}, or draw more with --candidates {max(self.keep, 1)}."
            )
        if self.batch_size < 1:
            raise ValueError(f"batch_size is {self.batch_size}: expected at least 1.")

    @property
    def chosen(self) -> dict[str, float | None]:
        """The sampling options that a picture is asked for with, by name; the rest is only about speed."""
        return {name: getattr(self.sampling, name) for name in SAMPLER}

    def facts(self) -> dict[str, float | None]:
        """Return all options by name, as reports show them."""
        own = {name: value for name, value in vars(self).items() if name != "sampling"}
        return own | self.chosen | {"window": self.sampling.window}


def require_prompts(prompts: Sequence[str]) -> None:
    """Raise ValueError unless there is a prompt and no prompt is empty."""
    if not prompts:
        raise ValueError("There is no prompt: say what the pictures should show.")
    for number, prompt in enumerate(prompts, start=1):
        if not prompt.strip():
            raise ValueError(f"Prompt {number} of {len(prompts)} is empty: say what the pictures should show.")
