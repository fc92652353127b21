"""Counting the tensors that a training step holds, and what a step with more layers or samples would hold."""

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, product
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class TensorEvents(TorchDispatchMode):
    """Writes down when a storage comes to life and when it is freed, while the mode is on."""

    def __init__(self, existing: Iterable[Tensor] = (), *, has_byte_masks: bool = False) -> None:
        """`existing` tensors, and whatever shares their storage, are left out.

        With `has_byte_masks` a mask of dropout takes one byte a value, as on a GPU; on a CPU it is of numbers.
        """
        super().__init__()
        self.events: list[tuple[int, int]] = []
        """Number of the storage, which is the place of its first event, and bytes, negative where it is freed."""
        self._has_byte_masks = has_byte_masks
        self._numbers = {tensor.untyped_storage()._cdata: -1 for tensor in existing}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See `TorchDispatchMode`."""
        out = func(*args, **(kwargs or {}))
        for value in tree_leaves(out):
            if isinstance(value, Tensor):
                self._count(value.untyped_storage())
        if self._has_byte_masks and func is torch.ops.aten.bernoulli_.float:
            number = self.number_of(out)
            self.events[number] = (number, out.numel())
        return out

    def number_of(self, tensor: Tensor) -> int:
        """Return the number of a tensor's storage."""
        return self._numbers[tensor.untyped_storage()._cdata]

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self._numbers:
            number = self._numbers[key] = len(self.events)
            self.events.append((number, storage.nbytes()))
            weakref.finalize(storage, self._forget, key, number).atexit = False

    def _forget(self, key: int, number: int) -> None:
        self._numbers.pop(key, None)
        self.events.append((number, -self.events[number][1]))


@dataclass(frozen=True)
class Moment:
    """When a tensor is made."""

    size: int
    """Bytes of the tensor."""
    live: int
    """Bytes of all tensors then, without parameters and their gradients."""


Passes = tuple[list[Moment], list[Moment]]
"""The forward and the backward pass."""

Line = tuple[float, float]
"""Bytes without samples, and bytes of each sample."""

MOST_SAMPLES = 2**17
"""Lines that are nowhere the highest up to so many are left out."""


def count_step(model: torch.nn.Module, loss: Callable[[], Tensor], *, has_byte_masks: bool = False) -> Passes:
    """Run one forward and backward pass from no gradients; `loss` computes what is to be differentiated."""
    model.train()
    model.zero_grad(set_to_none=True)
    parameters = list(model.parameters())
    with TensorEvents([*parameters, *model.buffers()], has_byte_masks=has_byte_masks) as seen:
        value = loss()
        num_forward = len(seen.events)
        value.backward()
        gradients = {seen.number_of(p.grad) for p in parameters if p.grad is not None}
    sizes = [0 if number in gradients else size for number, size in seen.events]
    moments = [Moment(size, live) for size, live in zip(sizes, accumulate(sizes), strict=True)]
    forward, backward = moments[:num_forward], moments[num_forward:]
    return [item for item in forward if item.size > 0], [item for item in backward if item.size > 0]


@dataclass(frozen=True)
class Stack:
    """Layers that follow each other, such as an encoder's or a decoder's, and how many of them are counted."""

    name: str
    """The setting that says how many layers there are."""
    layers: int
    few: int
    period: int
    """How many layers more are counted, too."""


@dataclass(frozen=True)
class CountedSteps:
    """Steps of a model with few layers and few samples, from which those with more follow."""

    stacks: Sequence[Stack]
    batches: tuple[int, int]
    steps: tuple[Sequence[Passes], Sequence[Passes]]
    """For each of the batches: with few layers, and then with more of them in one stack after the other."""

    def lines(self, share: float = 1) -> list[Line]:
        """Return the lines whose highest is the peak of everything but parameters and their gradients.

        `share`: for a model with this share of the layers.
        """
        found = []
        for low, high in zip(*(list(self._live(passes, share)) for passes in self.steps), strict=True):
            if len(low) != len(high):  # more samples are computed in more pieces
                low, high = ([max(part)] if part else [] for part in (low, high))
            found += [self._line(*pair) for pair in zip(low, high, strict=False)]
        return upper_lines(found)

    def kept_for_a_layer(self) -> Line:
        """Return what each layer of the first stack adds to the bytes at the end of the forward pass."""
        ends = [[forward[-1].live for forward, _ in passes] for passes in self.steps]
        return self._line(*((more - few) / self.stacks[0].period for few, more, *_ in ends))

    def _live(self, passes: Sequence[Passes], share: float) -> Iterator[list[float]]:
        """Return the bytes at the moments that lie alike in all stacks: before most of the layers, or after them."""
        scales = [(share * stack.layers - stack.few) / stack.period for stack in self.stacks]
        for few, *deeper in zip(*passes, strict=True):
            for parts in product(*(_same_moments(few, more) for more in deeper)):
                places = sorted(set.intersection(*(set(part) for part in parts)))
                scaled = list(zip(scales, parts, strict=True))
                yield [
                    few[place].live + sum(scale * (part[place].live - few[place].live) for scale, part in scaled)
                    for place in places
                ]

    def _line(self, low: float, high: float) -> Line:
        slope = (high - low) / (self.batches[1] - self.batches[0])
        return low - self.batches[0] * slope, slope


def _same_moments(few: Sequence[Moment], more: Sequence[Moment]) -> list[dict[int, Moment]]:
    """Return moments of the deeper model by the places of the same ones in the shallower: from the begin, the end.

    A pass of the deeper model begins and ends as that of the shallower one: with what is kept for the layers between at
    the one end, without it at the other. In the midst of the shallower one both ends have the same tensors, or there is
    something that is taken as it is.
    """
    last, shift = len(few) - _num_same(few[::-1], more[::-1]), len(more) - len(few)
    begin = {place: more[place] for place in range(_num_same(few, more))}
    end = {place: more[place + shift] for place in range(last, len(few))}
    return [begin, {place: few[place] for place in range(len(begin), last)}, end]


def _num_same(few: Sequence[Moment], more: Sequence[Moment]) -> int:
    """Return how many moments make tensors of the same sizes, with the same others or always as many bytes more."""
    pairs = list(zip(few, more, strict=False))
    kept = more[0].live - few[0].live
    different = (place for place, (a, b) in enumerate(pairs) if (a.size, a.live + kept) != (b.size, b.live))
    return next(different, len(pairs))


def upper_lines(lines: Iterable[Line]) -> list[Line]:
    """Return the lines that are the highest for some number of samples."""
    numbers = [*range(1, 65), *(2**exponent for exponent in range(7, MOST_SAMPLES.bit_length()))]
    lines = list(lines)
    highest = (max(lines, key=lambda line: line[0] + number * line[1]) for number in numbers)
    return sorted(set(highest))
