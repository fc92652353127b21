"""Messages that no honest client sends to a block server, of seeded kinds."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from pipelines.core.swarm.streams.refusals import Refusal

Message = tuple[dict[str, Any], dict[str, Tensor]]

STRANGE = (None, -1, 0, 2**40, 1.5, "x", [], [1], {}, True, "9" * 100)


def honest_start(revision: str, layers: range, codec: str = "float32") -> list[Message]:
    """Return the messages with which a client opens a session of the tiny DALL-E model and reads two codes."""
    states = dict(values=torch.ones(2, 1, 7, 64))
    step = dict(values=torch.ones(2, 2, 1, 64))
    where = dict(start=layers.start, end=layers.stop, revision=revision, codec=codec)
    return [
        (dict(do="open", num_prompts=1, num_places=0, **where), {}),
        (dict(do="prefill", prompts=1), states),
        (dict(do="start", num_candidates=2, window=1), {}),
        (dict(do="step", steps=1), step | {"places": torch.zeros(2, 1, dtype=torch.int64)}),
        (dict(do="step", steps=1), step | {"places": torch.ones(2, 1, dtype=torch.int64)}),
        (
            dict(do="replay", places=3, answer=True),
            dict(values=torch.ones(2, 2, 3, 64), num_read=torch.tensor([2, 3])),
        ),
        (dict(do="forward", samples=1, positions=7, **where), states),
        (
            dict(do="backward", samples=1, positions=7, **where),
            states | {"grads.values": torch.ones(2, 1, 7, 64)},
        ),
    ]


def hostile_sessions(seed: int, number: int, revision: str, layers: range) -> Iterator[list[Message]]:
    """Yield messages of `number` sessions: an honest beginning, then one message that is spoilt."""
    random_numbers = random.Random(seed)
    for _ in range(number):
        honest = honest_start(revision, layers)
        at = random_numbers.randrange(len(honest))
        spoil = random_numbers.choice(KINDS)
        yield [*honest[: min(at, 5)], spoil(random_numbers, honest[at])]


def other_value(random_numbers: random.Random, message: Message) -> Message:
    """A number, name or list of another type or size."""
    body, tensors = message
    return {**body, random_numbers.choice(sorted(body)): random_numbers.choice(STRANGE)}, tensors


def missing_value(random_numbers: random.Random, message: Message) -> Message:
    """Something left out."""
    body, tensors = dict(message[0]), message[1]
    body.pop(random_numbers.choice(sorted(body)))
    return body, tensors


def huge_session(random_numbers: random.Random, message: Message) -> Message:
    """As much memory as numbers can name."""
    body, tensors = message
    names = ("num_prompts", "num_candidates", "window", "num_places", "samples", "positions", "steps", "places")
    return {**body, **{name: 10 ** random_numbers.randrange(2, 9) for name in names}}, tensors


def other_shape(random_numbers: random.Random, message: Message) -> Message:
    """Tensors of another size."""
    body, tensors = message
    sizes = [random_numbers.choice((0, 1, 2, 3, 65)) for _ in range(random_numbers.randrange(5))]
    return body, {name: torch.ones(sizes, dtype=tensor.dtype) for name, tensor in tensors.items()} | _something(sizes)


def other_type(random_numbers: random.Random, message: Message) -> Message:
    """Tensors of another type."""
    kind = random_numbers.choice((torch.float16, torch.int32, torch.uint8, torch.bfloat16))
    body, tensors = message
    return body, {name: tensor.to(kind) for name, tensor in tensors.items()} | _something([2])


def not_finite(random_numbers: random.Random, message: Message) -> Message:
    """NaN and infinity."""
    value = random_numbers.choice((torch.nan, torch.inf, -torch.inf))
    body, tensors = message
    spoilt = {name: tensor * value if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    return (body, spoilt) if spoilt else ({"do": "nothing"}, {})


def out_of_order(random_numbers: random.Random, message: Message) -> Message:
    """Places that were not reached, or are behind."""
    places = torch.tensor([[random_numbers.randrange(5, 2**40)], [random_numbers.randrange(-5, 64)]])
    return dict(do="step", steps=1), dict(values=torch.ones(2, 2, 1, 64), places=places)


def long_replay(random_numbers: random.Random, message: Message) -> Message:
    """A replay of more than there was."""
    read = torch.tensor([random_numbers.randrange(-9, 99), 99])
    return dict(do="replay", places=3), dict(values=torch.ones(2, 2, 3, 64), num_read=read)


def bad_prompts(random_numbers: random.Random, message: Message) -> Message:
    """Learned prompts for other layers."""
    body, tensors = message
    body = {**body, "do": "forward", "samples": 1, "positions": 7}
    sizes = [random_numbers.randrange(1, 9) for _ in range(random_numbers.randrange(1, 4))]
    return body, tensors | {"prompts": torch.full(sizes, torch.nan)}


def _something(sizes: list[int]) -> dict[str, Tensor]:
    return {"values": torch.ones(sizes, dtype=torch.int32)}


KINDS: list[Callable[[random.Random, Message], Message]] = [
    other_value, missing_value, huge_session, other_shape, other_type, not_finite, out_of_order, long_replay,
    bad_prompts,
]  # fmt: skip


def is_refused(link: Any, messages: list[Message]) -> bool:
    """Send messages one after the other until the server refuses one, and close the stream; tell whether it did."""
    try:
        for body, tensors in messages:
            link.ask(body, tensors)
    except Refusal:
        return True
    finally:
        link.close()
    return False
