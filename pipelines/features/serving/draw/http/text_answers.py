"""OpenAI's answers with texts, whole or piece by piece."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

UNFINISHED = "\ufffd"
"""How a decoder shows the first bytes of a character."""


@dataclass(frozen=True, kw_only=True)
class WrittenText:
    """What is there of a text; more of it begins with the same characters."""

    text: str
    num_tokens: int
    finish_reason: str | None
    """`stop`: it ended by itself or at one of the stops; `length`: it is as long as it may be; None: more comes."""


@dataclass(frozen=True, kw_only=True)
class WrittenTexts:
    """What is there of all texts of a request."""

    num_prompt_tokens: int
    texts: Sequence[WrittenText]

    @property
    def usage(self) -> dict[str, int]:
        """OpenAI's count of tokens."""
        written = sum(text.num_tokens for text in self.texts)
        total = self.num_prompt_tokens + written
        return dict(prompt_tokens=self.num_prompt_tokens, completion_tokens=written, total_tokens=total)


@dataclass(frozen=True, kw_only=True)
class AnswerForm:
    """How an answer looks."""

    model: str
    number: str
    """The answer's own."""

    created: int
    """Seconds since 1970."""

    is_chat: bool

    def whole(self, written: WrittenTexts) -> dict[str, object]:
        """Return the answer with finished texts."""
        choices = [
            self._choice(index, text.finish_reason, text.text, "message") for index, text in enumerate(written.texts)
        ]
        return self._answer("", choices) | dict(usage=written.usage)

    def pieces(self, steps: Iterator[WrittenTexts]) -> Iterator[str]:
        """Yield server-sent events: what is new in each step, and at last how many tokens there are."""
        sent: dict[int, str] = {}
        finished: set[int] = set()
        written = None
        for written in steps:
            choices = []
            for index, text in enumerate(written.texts):
                new = text.text.removeprefix(sent.get(index, ""))
                if index in finished or not (new or text.finish_reason):
                    continue
                sent[index] = text.text
                if text.finish_reason:
                    finished.add(index)
                choices.append(self._choice(index, text.finish_reason, new, "delta"))
            if choices:
                yield _event(self._answer(".chunk", choices))
        if written is not None:
            yield _event(self._answer(".chunk", []) | dict(usage=written.usage))
        yield "data: [DONE]\n\n"

    def _choice(self, index: int, reason: str | None, text: str, name: str) -> dict[str, object]:
        own = {name: dict(role="assistant", content=text)} if self.is_chat else dict(text=text)
        return dict(index=index, finish_reason=reason, logprobs=None, **own)

    def _answer(self, suffix: str, choices: list[dict[str, object]]) -> dict[str, object]:
        kind, prefix = ("chat.completion" + suffix, "chatcmpl") if self.is_chat else ("text_completion", "cmpl")
        known = dict(id=f"{prefix}-{self.number}", object=kind, created=self.created, model=self.model)
        return known | dict(choices=choices)


def until_stop(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """Return a text up to the first of the stops in it, and whether there was one."""
    places = [place for stop in stops if (place := text.find(stop)) >= 0]
    return (text[: min(places)], True) if places else (text, False)


def certain_part(text: str, stops: Sequence[str]) -> str:
    """Return what of an unfinished text stays as it is: no half character, and nothing that may begin a stop."""
    text = text.rstrip(UNFINISHED)
    beginnings = [stop[:length] for stop in stops for length in range(1, len(stop))]
    longest = max((len(part) for part in beginnings if text.endswith(part)), default=0)
    return text[: len(text) - longest]


def _event(values: dict[str, object]) -> str:
    return f"data: {json.dumps(values, ensure_ascii=False)}\n\n"
