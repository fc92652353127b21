"""OpenAI's requests for texts: completions of a prompt, and the next message of a chat."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from modeling_dalle_collab.sampling_dalle_collab import SamplingOptions
from pipelines.serving.draw.http.refused import (
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
WITHOUT_EFFECT: dict[str, tuple[Any, ...]] = {
    "stream": (None, False),
    "stream_options": (None,),
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
"""What programs send as a matter of course, with the values that ask for nothing."""


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

    options: SamplingOptions
    """With the most tokens of a text."""

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], *, is_chat: bool) -> "TextRequest":
        """Check the body of a request; raises `RefusedRequestError`."""
        own = {"messages", "max_completion_tokens"} if is_chat else {"prompt"}
        known = own | {"n", "seed", "max_tokens", "stop"} | SAMPLING
        check_names(values, known, IGNORED | set(WITHOUT_EFFECT))
        for name, neutral in WITHOUT_EFFECT.items():
            if name in values and values[name] not in neutral:
                raise bad(f"{name} is not supported here: leave it out.")
        default = DEFAULT_TOKENS_OF_A_CHAT if is_chat else DEFAULT_TOKENS
        name = "max_completion_tokens" if values.get("max_completion_tokens") is not None else "max_tokens"
        num_tokens = whole_number(values, name, default, 1, MOST_TOKENS)
        return cls(
            prompt=None if is_chat else _prompt(values.get("prompt")),
            messages=_messages(values.get("messages")) if is_chat else (),
            number=whole_number(values, "n", 1, 1, MOST_AT_ONCE_OF_ONE),
            seed=seed_of(values),
            stops=_stops(values.get("stop")),
            options=sampling_of(values, SAMPLING, num_image_codes=num_tokens),
        )


@dataclass(frozen=True, kw_only=True)
class WrittenText:
    """A text that was written for a program."""

    text: str
    num_tokens: int
    is_whole: bool
    """Whether it ended by itself, or at one of the stops; else there were as many tokens as it may have."""

    @property
    def finish_reason(self) -> str:
        """OpenAI's word for why it ended."""
        return "stop" if self.is_whole else "length"


@dataclass(frozen=True, kw_only=True)
class WrittenTexts:
    """All that was written for a request."""

    num_prompt_tokens: int
    texts: Sequence[WrittenText]

    def answer(self, name: str, number: str, created: int, *, is_chat: bool) -> dict[str, Any]:
        """Return OpenAI's answer; `name` is the model's, `number` the answer's own."""
        written = sum(text.num_tokens for text in self.texts)
        usage = dict(
            prompt_tokens=self.num_prompt_tokens,
            completion_tokens=written,
            total_tokens=self.num_prompt_tokens + written,
        )
        choices = [
            dict(
                index=index,
                finish_reason=text.finish_reason,
                logprobs=None,
                **(dict(message=dict(role="assistant", content=text.text)) if is_chat else dict(text=text.text)),
            )
            for index, text in enumerate(self.texts)
        ]
        kind, prefix = ("chat.completion", "chatcmpl") if is_chat else ("text_completion", "cmpl")
        return dict(id=f"{prefix}-{number}", object=kind, created=created, model=name, choices=choices, usage=usage)


def until_stop(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """Return a text up to the first of the stops in it, and whether there was one."""
    places = [place for stop in stops if (place := text.find(stop)) >= 0]
    return (text[: min(places)], True) if places else (text, False)


def _prompt(value: Any) -> str:
    if isinstance(value, list) and len(value) == 1:
        (value,) = value
    return text_of(value, "prompt", MOST_PROMPT_CHARACTERS)


def _messages(values: Any) -> tuple[Message, ...]:
    if not isinstance(values, list) or not 1 <= len(values) <= MOST_MESSAGES:
        raise bad(f"messages must be a list of 1 to {MOST_MESSAGES} messages.")
    return tuple(map(_message, values))


def _message(value: Any) -> Message:
    role, content = (value.get("role"), value.get("content")) if isinstance(value, dict) else (None, None)
    if isinstance(content, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in content):
        content = "".join(str(part.get("text", "")) for part in content)
    if role not in ROLES:
        raise bad(f"Each message needs a role, one of {', '.join(ROLES)}.")
    return Message(role=role, content=text_of(content, "content", MOST_PROMPT_CHARACTERS))


def _stops(value: Any) -> tuple[str, ...]:
    stops = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or len(stops) > MOST_STOPS:
        raise bad(f"stop must be a text, or a list of at most {MOST_STOPS}.")
    return tuple(text_of(stop, "stop", MOST_STOP_CHARACTERS) for stop in stops)
