"""Attacks on averaging: a gradient averager that does on demand what a hostile or broken peer might do.

It lies after all checks of its own gradients, in the process that talks to the others, so that the lies really reach
them.
"""

import multiprocessing
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from enum import StrEnum
from functools import partial
from typing import Any

import torch
from hivemind.averaging.allreduce import AveragingMode
from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2

from pipelines.core.averaging.averager import SwarmAverager
from pipelines.core.averaging.reducing_end import ReducingEnd
from pipelines.core.averaging.runner import TrustedAllReduceRunner
from pipelines.core.averaging.sending_end import SendingEnd

LIE_FACTOR = -1000.0
HUGE_WEIGHT = 1e9
ROUNDS_OF_DELAY = 2


class Attack(StrEnum):
    """What the peer does in a round."""

    NONE = ""
    NAN = "nan"
    INFINITY = "infinity"
    HUGE_WEIGHT = "huge_weight"
    """Another gradient, with a weight of 1e9."""

    NO_WEIGHT = "no_weight"
    """Another gradient, with weight 0, which times infinity would be nan."""

    LIAR = "liar"
    """The true gradient times -1000."""

    CONSTANT = "constant"
    """Values from 1 to 2, as if to push all parameters one way, at fifteen times the gradient's norm."""

    DELAYED = "delayed"
    """The gradient of two rounds ago."""

    WRONG_SHAPE = "wrong_shape"
    """Parts without their last value."""

    REPLAYED = "replayed"
    """The first part repeatedly."""

    LYING_REDUCER = "lying_reducer"
    """Honest parts, but answers that are -1000 times the average."""

    UNEVEN_REDUCER = "uneven_reducer"
    """Honest parts, but answers for one member only."""

    NOISE = "noise"
    """True gradients of image codes that are drawn by lot."""


VALUE_ATTACKS = {
    Attack.NAN: lambda own, earlier: torch.full_like(own, float("nan")),
    Attack.INFINITY: lambda own, earlier: torch.full_like(own, float("inf")),
    Attack.HUGE_WEIGHT: lambda own, earlier: earlier,
    Attack.NO_WEIGHT: lambda own, earlier: torch.full_like(own, 1e30),
    Attack.LIAR: lambda own, earlier: LIE_FACTOR * own,
    # Not the same value everywhere: equal parts are detected as repetitions.
    Attack.CONSTANT: lambda own, earlier: (
        10 * own.square().mean().sqrt() * torch.linspace(1.0, 2.0, own.numel()).view_as(own)
    ),
    Attack.DELAYED: lambda own, earlier: earlier,
}
"""What is sent instead of the peer's own tensor; `earlier` is the tensor of two rounds ago."""

WEIGHTS = {Attack.HUGE_WEIGHT: HUGE_WEIGHT, Attack.NO_WEIGHT: 0.0}


class _HostileSending(SendingEnd):
    """Sends false parts."""

    def __init__(self, *args: Any, attack: Attack) -> None:
        super().__init__(*args)
        self._attack = attack

    async def messages_of_stream(self, reducer: PeerID, number: int) -> AsyncIterator[averaging_pb2.AveragingData]:
        first = None
        async for message in super().messages_of_stream(reducer, number):
            first = first or message
            if self._attack == Attack.REPLAYED:
                message = first
            if self._attack == Attack.WRONG_SHAPE:
                message.tensor_part.size[:] = [message.tensor_part.size[0] - 1]
                message.tensor_part.buffer = message.tensor_part.buffer[:-4]
            yield message


class _HostileReducing(ReducingEnd):
    """Answers falsely, or only to one sender."""

    def __init__(self, *args: Any, attack: Attack, favoured: PeerID | None) -> None:
        super().__init__(*args)
        self._attack, self._favoured = attack, favoured

    def _own_input(self, sending: SendingEnd, numbered_part: tuple[int, torch.Tensor]) -> tuple[int, torch.Tensor]:
        number, part = numbered_part  # as a reducer it goes on, whatever it sends
        return super()._own_input(sending, (number, torch.nan_to_num(part, nan=0.0, posinf=0.0, neginf=0.0)))

    async def answers_to_stream(
        self, stream: AsyncIterator[averaging_pb2.AveragingData], sender: PeerID, number: int
    ) -> AsyncGenerator[averaging_pb2.AveragingData]:
        async for answer in super().answers_to_stream(stream, sender, number):
            if sender == self._favoured or self._attack != Attack.UNEVEN_REDUCER:
                yield answer

    async def _answer(self, average: torch.Tensor, part_index: int) -> averaging_pb2.AveragingData:
        lie = self._attack == Attack.LYING_REDUCER
        return await super()._answer(LIE_FACTOR * average if lie else average, part_index)


class HostileRunner(TrustedAllReduceRunner):
    """A round with false parts or answers."""

    def __init__(self, *args: Any, attack: Attack, **kwargs: Any) -> None:
        self._attack = attack
        super().__init__(*args, **kwargs)

    @property
    def sending_type(self) -> Callable[..., SendingEnd]:
        """Sends as the attack wants it."""
        return partial(_HostileSending, attack=self._attack)

    @property
    def reducing_type(self) -> Callable[..., ReducingEnd]:
        """Reduces as the attack wants it."""
        others = (p for p, mode in self.state.modes.items() if p != self.state.peer_id and mode == AveragingMode.NODE)
        return partial(_HostileReducing, attack=self._attack, favoured=next(others, None))


class HostileAverager(SwarmAverager):
    """Attacks according to `attack`, which may change between rounds; honest at first."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._attack = multiprocessing.Value("i", 0)
        self._earlier: list[tuple[torch.Tensor, ...]] = []
        super().__init__(*args, **kwargs)

    @property
    def attack(self) -> Attack:
        """What this peer does from the next round on."""
        return list(Attack)[self._attack.value]

    @attack.setter
    def attack(self, attack: Attack) -> None:
        self._attack.value = list(Attack).index(attack)

    @property
    def runner_type(self) -> Any:
        """Rounds that know the attack."""
        return partial(HostileRunner, attack=self.attack)

    def _weight_of(self, tensors: tuple[torch.Tensor, ...], weight: float | None) -> float:
        weight = super()._weight_of(tensors, weight)
        self._earlier = [*self._earlier, tuple(tensor.clone() for tensor in tensors)][-ROUNDS_OF_DELAY - 1 :]
        if self.attack in VALUE_ATTACKS:
            for tensor, earlier in zip(tensors, self._earlier[0], strict=True):
                tensor.copy_(VALUE_ATTACKS[self.attack](tensor, earlier))
        return WEIGHTS.get(self.attack, weight)
