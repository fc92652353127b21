"""What is asked of a drawing server, and the checks before it takes memory for it."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import PretrainedConfig

from modeling_dalle_collab.sampling_dalle_collab import SamplingOptions, candidate_numbers
from pipelines.core.swarm.streams.refusals import Refusal
from pipelines.features.serving.draw.modalities.choice import modality_of

SERVICE = "draw"
PRECISIONS = ("float32", "bfloat16", "int8")

MOST_CANDIDATES = 64
"""Of one request; whoever wants more asks again, here or elsewhere."""

MOST_CANDIDATE_NUMBER = 2**31
MOST_PROMPTS = 2**16

MOST_TENSOR_BYTES = 2**20
"""Of one request: text ids and image prompt."""


@dataclass(frozen=True, kw_only=True)
class SamplingRequest:
    """What all candidates of one prompt have in common."""

    revision: str
    """SHA-256 of the weights' file."""

    precision: str
    """One of `PRECISIONS`."""

    tokenizer: str
    """See `tokenizer_name`."""

    input_ids: Tensor
    """(1, text) int64: the prompt."""

    prompt: int = 0
    """The prompt's place among those that are drawn together; it goes into the random numbers."""

    seed: int = 0
    options: SamplingOptions = field(default_factory=SamplingOptions)
    image_prompt: Tensor | None = None
    """(1, given) int64: the first codes of every candidate; None for texts."""

    every: int = 32
    """Codes are sent each time that so many places more are drawn; a server may send them more often."""

    @property
    def num_given(self) -> int:
        """Places whose codes are given."""
        return 0 if self.image_prompt is None else self.image_prompt.shape[1]

    def num_places(self, config: PretrainedConfig) -> int:
        """Return the places of a finished candidate, given ones included."""
        return modality_of(config).num_places(self.options, config)

    def numbers(self, candidates: Sequence[int], config: PretrainedConfig) -> Tensor:
        """Return the candidates' random numbers: (candidate, place) float64."""
        length = modality_of(config).num_numbers(self.options, config)
        prompt = range(self.prompt, self.prompt + 1)
        return torch.cat([candidate_numbers(self.seed, prompt, range(one, one + 1), length) for one in candidates])


@dataclass(frozen=True, kw_only=True)
class DrawRequest:
    """Some candidates of a sampling request."""

    sampling: SamplingRequest
    candidates: range

    def message(self) -> tuple[dict[str, object], dict[str, Tensor]]:
        """Return what is sent: body and tensors."""
        sampling, tensors = self.sampling, dict(input_ids=self.sampling.input_ids.int())
        if sampling.image_prompt is not None:
            tensors["image_prompt"] = sampling.image_prompt.int()
        body = dict(
            do="draw",
            revision=sampling.revision,
            precision=sampling.precision,
            tokenizer=sampling.tokenizer,
            prompt=sampling.prompt,
            seed=sampling.seed,
            first=self.candidates.start,
            number=len(self.candidates),
            every=sampling.every,
            sampling={name: getattr(sampling.options, name) for name in SAMPLING},
        )
        return body, tensors

    @classmethod
    def from_message(
        cls, body: Mapping[str, object], tensors: Mapping[str, Tensor], config: PretrainedConfig
    ) -> "DrawRequest":
        """Check a stranger's message for a model; raises `Refusal` for what does not exist or is out of range."""
        text, given = tensors.get("input_ids"), tensors.get("image_prompt")
        if set(tensors) - {"input_ids", "image_prompt"} or text is None or len(text.shape) != 2 or len(text) != 1:
            raise Refusal("invalid", "Expected input_ids of one prompt, and nothing besides but an image_prompt.")
        first = _whole(body, "first", 0, MOST_CANDIDATE_NUMBER)
        number = _whole(body, "number", 1, MOST_CANDIDATES)
        modality = modality_of(config)
        try:
            options = SamplingOptions.from_mapping(_sampling(body))
            modality.check(text, given, options, config)
        except (ValueError, TypeError) as error:
            raise Refusal("invalid", str(error)) from error
        sampling = SamplingRequest(
            revision=_text(body, "revision"),
            precision=_text(body, "precision"),
            tokenizer=_text(body, "tokenizer"),
            input_ids=text.long(),
            prompt=_whole(body, "prompt", 0, MOST_PROMPTS),
            seed=_whole(body, "seed", -(2**63), 2**63 - 1),
            options=options,
            image_prompt=None if given is None else given.long(),
            # A client's turn ends when there is something to send: who wants to hear rarely gets no longer turns.
            every=min(_whole(body, "every", 1, 2**16), modality.every(config)),
        )
        if sampling.num_given >= sampling.num_places(config):
            raise Refusal(
                "invalid", f"{sampling.num_given} of {sampling.num_places(config)} codes are given: nothing is left."
            )
        return cls(sampling=sampling, candidates=range(first, first + number))


SAMPLING: dict[str, tuple[type, ...]] = {
    "top_k": (int, type(None)),
    "top_p": (float, int, type(None)),
    "temperature": (float, int),
    "guidance_scale": (float, int),
    "num_image_codes": (int, type(None)),
}
"""The sampling options that a client chooses, with their types; how the server computes is its own affair."""


def tokenizer_name(processor: object, config: PretrainedConfig) -> str:
    """Return a digest of all that turns a prompt into ids: those of another tokenizer would draw something else."""
    return hashlib.sha256(modality_of(config).rules_of(processor).encode()).hexdigest()


def _sampling(body: Mapping[str, object]) -> dict[str, object]:
    values = body.get("sampling")
    if not isinstance(values, dict) or set(values) - set(SAMPLING):
        raise Refusal("invalid", f"Expected sampling options out of {', '.join(SAMPLING)}.")
    for name, value in values.items():
        if type(value) not in SAMPLING[name] or (value is not None and not abs(value) <= 2**31):
            raise Refusal("invalid", f"{name} is {str(value)[:40]}, expected a number that is not too large.")
    return values


def _whole(body: Mapping[str, object], name: str, least: int, most: int) -> int:
    value = body.get(name)
    if type(value) is not int or not least <= value <= most:
        raise Refusal("invalid", f"{name} is {str(value)[:40]}, expected a whole number from {least} to {most}.")
    return value


def _text(body: Mapping[str, object], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or len(value) > 128:
        raise Refusal("invalid", f"{name} is no short text.")
    return value
