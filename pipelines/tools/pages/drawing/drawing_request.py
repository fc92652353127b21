"""A visitor's request, as values from a page or a program and as the query of a link."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Self
from urllib.parse import urlencode

from hub_tools.checks import is_number
from modeling_dalle_collab.sampling_dalle_collab import SamplingOptions
from pipelines.tasks.text_to_image.generation.generation_options import GenerationOptions, require_prompts

NEWEST = "newest"
CHECKPOINT_NAME = re.compile(r"newest|epoch-\d{1,12}|[0-9a-f]{40}")
IN_EVERY_LINK = ("prompt", "seed")
MAX_PROMPT_CHARACTERS = 10_000
MAX_QUERY_CHARACTERS = 6_000
"""Servers and browsers accept addresses of about 8,000 characters."""


@dataclass(frozen=True, kw_only=True)
class DrawingRequest:
    """One request to draw; the names of the fields are those of the link's query."""

    prompt: str
    """What the pictures should show."""
    candidates: int = 32
    """Pictures drawn."""
    keep: int = 4
    """Pictures kept."""
    top_k: int = 256
    """Sample from this many likeliest codes; 0 for all."""
    top_p: float = 1.0
    """Sample from the likeliest codes that together reach this probability."""
    temperature: float = 1.0
    """Lower for safer pictures."""
    guidance: float = 1.0
    """Above 1 closer to the prompt."""
    seed: int = 0
    """The same seed draws the same pictures."""
    checkpoint: str = NEWEST
    """`newest`, a tag `epoch-N` or a commit."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.type in (int, float):
                object.__setattr__(self, field.name, _number(field.name, getattr(self, field.name), field.type))
        if not isinstance(self.prompt, str) or len(self.prompt) > MAX_PROMPT_CHARACTERS:
            seen = f"{len(self.prompt):,} characters" if isinstance(self.prompt, str) else repr(self.prompt)
            raise ValueError(f"The prompt has {seen}, expected text of at most {MAX_PROMPT_CHARACTERS:,}. Shorten it.")
        if not CHECKPOINT_NAME.fullmatch(str(self.checkpoint)):
            raise ValueError(
                f"There is no checkpoint {str(self.checkpoint)[:60]!r}: expected {NEWEST}, a tag such as epoch-300, or "
                "the 40 digits of a commit."
            )

    def options(self, max_candidates: int) -> GenerationOptions:
        """Return the options of the drawing; ValueError if they or the prompt are invalid or ask for too much."""
        require_prompts([self.prompt])
        if self.candidates > max_candidates:
            raise ValueError(f"{self.candidates} candidates were requested, this page draws at most {max_candidates}.")
        return GenerationOptions(
            num_candidates=self.candidates,
            keep=self.keep,
            seed=self.seed,
            sampling=SamplingOptions(
                top_k=self.top_k, top_p=self.top_p, temperature=self.temperature, guidance_scale=self.guidance
            ),
        )

    def to_query(self) -> str:
        """Return the query of a link that asks for the same; ValueError if it is too long for browsers.

        What has its default is left out: the link is read, and typed, by people.
        """
        told = (
            field for field in fields(self) if field.name in IN_EVERY_LINK or getattr(self, field.name) != field.default
        )
        query = urlencode({field.name: getattr(self, field.name) for field in told})
        if len(query) > MAX_QUERY_CHARACTERS:
            raise ValueError(
                f"The prompt is too long for a link: {len(query):,} of {MAX_QUERY_CHARACTERS:,} characters."
            )
        return query

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> Self | None:
        """Read a link's query, which is untrusted; None if it asks for nothing.

        A link may name only a checkpoint. Raises ValueError for invalid values.
        """
        if not {"prompt", "checkpoint"} & set(query):
            return None
        asked = {field.name: query[field.name] for field in fields(cls) if field.name in query}
        return cls(**{"prompt": "", **asked})


def _number(name: str, value: object, kind: type) -> int | float:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not is_number(number) or (kind is int and number != int(number)):
        words = "a whole number" if kind is int else "a number"
        raise ValueError(f"{name.replace('_', ' ')} is {str(value)[:40]!r}, expected {words}.")
    return int(value) if kind is int and str(value).lstrip("-").isdecimal() else kind(number)  # type: ignore[call-overload]
