"""How pictures are drawn for prompts. Light: no torch, so that mistakes show at once."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hub_tools.counted import counted


@dataclass(frozen=True, kw_only=True)
class GenerationOptions:
    """How many pictures are drawn for a prompt and how freely. The defaults are the paper's."""

    num_candidates: int = 128
    """Pictures drawn for each prompt; CLIP finds better ones among more."""
    keep: int = 4
    """Pictures kept for each prompt."""
    top_k: int | None = 256
    """Sample from this many likeliest codes; None or 0 for all."""
    top_p: float | None = None
    """Sample from the likeliest codes that together reach this probability; None for all."""
    temperature: float = 1.0
    """Lower for safer pictures, higher for stranger ones."""
    guidance_scale: float = 1.0
    """Above 1, pictures keep closer to the prompt and vary less; only for models trained with `caption_dropout`."""
    seed: int = 0
    """The same seed draws the same pictures."""
    batch_size: int = 64
    """Candidates drawn at once. Decrease if memory runs out; the pictures stay the same."""
    window: int | None = None
    """Codes that a pass works on; 1: no guesses, which is slower; None: what is fastest on this machine."""

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
        if self.top_k is not None and self.top_k < 0:
            raise ValueError(f"top_k is {self.top_k}: expected a count of codes, or 0 for all.")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}: expected a probability above 0 and at most 1.")
        if not self.temperature >= 0:
            raise ValueError(f"temperature is {self.temperature}: expected 0 or more.")
        if not math.isfinite(self.guidance_scale):
            raise ValueError(f"guidance_scale is {self.guidance_scale}: expected a finite number, 1 for no guidance.")


def require_prompts(prompts: Sequence[str]) -> None:
    """Raise ValueError unless there is a prompt and no prompt is empty."""
    if not prompts:
        raise ValueError("There is no prompt: say what the pictures should show.")
    for number, prompt in enumerate(prompts, start=1):
        if not prompt.strip():
            raise ValueError(f"Prompt {number} of {len(prompts)} is empty: say what the pictures should show.")
