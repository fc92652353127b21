"""OpenAI's requests for texts: completions of a prompt, and the next message of a chat."""

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

MOST_TOKENS = 4096
DEFAULT_TOKENS, DEFAULT_TOKENS_OF_A_CHAT = 16, 256
MOST_PROMPT_CHARACTERS = 2**15
MOST_MESSAGES = 128
MOST_STOPS, MOST_STOP_CHARACTERS = 4, 64
ROLES = ("system", "user", "assistant")

SAMPLING = {"temperature", "top_k", "top_p"}
IGNORED = {"model", "user", "store", "metadata"}
WITHOUT_EFFECT: dict[str, tuple[object, ...]] = {
    "stream_options": (None, {}, {"include_usage": False}, {"include_usage": True}),
    "echo": (None, False),
    "logprobs": (None, False),
    "top_logprobs": (None, 0),
    "logit_bias": (None, {}),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "best_of": (None, 1),
    "suffix": (None, ""),
    "tools": (None, []),
    "tool_choice": (None, "none"),
    "response_format": (None, {"type": "text"}),
}
"""What programs send as a matter of course, with the values that ask for nothing that is not done anyway."""


@dataclass(frozen=True, kw_only=True)
class Message:
    """One message of a chat."""

    role: str
    content: str


@dataclass(frozen=True, kw_only=True)
class TextRequest:
    """What a program asks for: texts behind a prompt, or behind the messages of a chat."""

    prompt: str | None
    messages: tuple[Message, ...]
    number: int
    seed: int
    stops: tuple[str, ...]
    """Texts end in front of these."""

    is_streamed: bool
    """Whether the answer comes piece by piece."""

    options: SamplingOptions
    """With the most tokens of a text."""

    @classmethod
    def from_mapping(cls, values: Mapping[str, object], *, is_chat: bool) -> "TextRequest":
        """Check the body of a request; raises `RefusedRequestError`."""
        own = {"messages", "max_completion_tokens"} if is_chat else {"prompt"}
        known = own | {"n", "seed", "max_tokens", "stop", "stream"} | SAMPLING
        check_names(values, known, IGNORED | set(WITHOUT_EFFECT))
        for name, neutral in WITHOUT_EFFECT.items():
            if name in values and values[name] not in neutral:
                raise bad(f"{name} is not supported here: leave it out.")
        if values.get("stream") not in (None, False, True):
            raise bad("stream must be true or false.")
        default = DEFAULT_TOKENS_OF_A_CHAT if is_chat else DEFAULT_TOKENS
        name = "max_completion_tokens" if values.get("max_completion_tokens") is not None else "max_tokens"
        num_tokens = whole_number(values, name, default, 1, MOST_TOKENS)
        return cls(
            prompt=None if is_chat else _prompt(values.get("prompt")),
            messages=_messages(values.get("messages")) if is_chat else (),
            number=whole_number(values, "n", 1, 1, MOST_AT_ONCE_OF_ONE),
            seed=seed_of(values),
            stops=_stops(values.get("stop")),
            is_streamed=values.get("stream") is True,
            # Programs that say nothing expect all tokens to be possible.
            options=sampling_of({"top_k": 0, **values}, SAMPLING, num_image_codes=num_tokens),
        )


def _prompt(value: object) -> str:
    if isinstance(value, list) and len(value) == 1:
        (value,) = value
    return text_of(value, "prompt", MOST_PROMPT_CHARACTERS)


def _messages(values: object) -> tuple[Message, ...]:
    if not isinstance(values, list) or not 1 <= len(values) <= MOST_MESSAGES:
        raise bad(f"messages must be a list of 1 to {MOST_MESSAGES} messages.")
    return tuple(map(_message, values))


def _message(value: object) -> Message:
    role, content = (value.get("role"), value.get("content")) if isinstance(value, dict) else (None, None)
    if isinstance(content, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in content):
        content = "".join(str(part.get("text", "")) for part in content)
    if role not in ROLES:
        raise bad(f"Each message needs a role, one of {', '.join(ROLES)}.")
    return Message(role=role, content=text_of(content, "content", MOST_PROMPT_CHARACTERS))


def _stops(value: object) -> tuple[str, ...]:
    stops = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or len(stops) > MOST_STOPS:
        raise bad(f"stop must be a text, or a list of at most {MOST_STOPS}.")
    return tuple(text_of(stop, "stop", MOST_STOP_CHARACTERS) for stop in stops)
