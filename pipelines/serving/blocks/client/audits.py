"""Checks of servers: what one has answered to a real request is asked of another one that has the same layers.

The server cannot tell which of its answers will be checked, because the question is the client's own. What honest
servers differ by, on other processors and through the codec, is far below the limits; a lie smaller than them, such as
weights with 0.1 % noise, is not seen.
"""

import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from pipelines.serving.blocks.routing import Hop
from pipelines.swarm.streams.refusals import PeerGoneError, Refusal

logger = logging.getLogger(__name__)

LIMITS = {"float32": 1e-3, "float16": 5e-3, "int8": 5e-2}
"""Relative error of an answer, by codec, above which two servers contradict each other."""

Repeat = Callable[[Hop], Tensor]
"""Asks another server the same; raises PeerGoneError or Refusal."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What came of a check."""

    peer: str
    outcome: str
    """`agrees`; `lies`: two others contradict it; `false witness`: the other one is contradicted by two; `disputed`:
    one contradicts it, and nobody else can be asked; `unchecked`: nobody else has these layers."""

    error: float = 0.0
    """Relative difference to the other server's answer."""

    liar: str | None = None


class BlockAudits:
    """Decides by a secret of its own which answers are checked, and by up to two other servers what is true."""

    def __init__(self, codec: str, *, share: float, secret: int | None = None) -> None:
        """`share` of the prompts are checked; `secret` seeds the choice, for tests."""
        if not 0 <= share <= 1:
            raise ValueError(f"The share of audited prompts is {share}, expected 0 to 1.")
        self.limit, self.share, self.verdicts = LIMITS[codec], share, list[Verdict]()
        self._random = random.Random(secret) if secret is not None else random.SystemRandom()

    def wants(self) -> bool:
        """Return whether the next answer is to be checked."""
        return self._random.random() < self.share

    def judge(self, hop: Hop, answer: Tensor, others: Mapping[str, Hop], repeat: Repeat) -> Verdict:
        """Compare a server's answer with those of up to two others, which have the same layers and precision."""
        witnesses: list[tuple[str, Tensor]] = []
        for peer in self._random.sample(sorted(others), len(others)):
            try:
                witnesses.append((peer, repeat(others[peer])))
            except (PeerGoneError, Refusal) as error:
                logger.info("Server %s could not be asked for a check: %s", peer, error)
                continue
            if len(witnesses) == 2 or _error(answer, witnesses[0][1]) <= self.limit:
                break
        verdict = self._verdict(hop.peer, answer, witnesses)
        self.verdicts.append(verdict)
        if verdict.liar is not None:
            logger.warning("Server %s has given a false answer (%.1e off).", verdict.liar, verdict.error)
        return verdict

    def _verdict(self, peer: str, answer: Tensor, witnesses: list[tuple[str, Tensor]]) -> Verdict:
        if not witnesses:
            return Verdict(peer=peer, outcome="unchecked")
        (first, other), error = witnesses[0], _error(answer, witnesses[0][1])
        if error <= self.limit:
            return Verdict(peer=peer, outcome="agrees", error=error)
        if len(witnesses) == 2:
            third = witnesses[1][1]
            if _error(answer, third) <= self.limit:
                return Verdict(peer=peer, outcome="false witness", error=error, liar=first)
            if _error(other, third) <= self.limit:
                return Verdict(peer=peer, outcome="lies", error=error, liar=peer)
        return Verdict(peer=peer, outcome="disputed", error=error)


def _error(one: Tensor, other: Tensor) -> float:
    return float((one - other).norm() / other.norm().clamp(min=torch.finfo(torch.float32).tiny))
