"""OpenAI's request for pictures."""

from collections.abc import Mapping
from dataclasses import dataclass

from modeling_dalle_collab.sampling_dalle_collab import SamplingOptions
from pipelines.features.serving.draw.http.refused import (
    MOST_AT_ONCE_OF_ONE,
    bad,
    check_names,
    sampling_of,
    seed_of,
    text_of,
    whole_number,
)

MOST_PROMPT_CHARACTERS = 4000
SAMPLING = {"temperature", "top_k", "top_p", "guidance_scale"}


@dataclass(frozen=True, kw_only=True)
class PictureRequest:
    """What a program asks for."""

    prompt: str
    number: int
    seed: int
    options: SamplingOptions

    @classmethod
    def from_mapping(cls, values: Mapping[str, object]) -> "PictureRequest":
        """Check the body of a request; raises `RefusedRequestError`."""
        ignored = {"model", "size", "quality", "style", "user", "background", "output_format", "response_format"}
        check_names(values, {"prompt", "n", "seed"} | SAMPLING, ignored)
        if values.get("response_format", "b64_json") != "b64_json":
            raise bad("response_format must be b64_json: pictures are not kept here, so they have no URL.")
        prompt = text_of(values.get("prompt"), "prompt", MOST_PROMPT_CHARACTERS)
        if not prompt.strip():
            raise bad("prompt says nothing.")
        return cls(
            prompt=prompt,
            number=whole_number(values, "n", 1, 1, MOST_AT_ONCE_OF_ONE),
            seed=seed_of(values),
            options=sampling_of(values, SAMPLING),
        )
