"""Checks of servers: what one has answered to a real request is asked of another one that has the same layers.

The server cannot tell which of its answers to prompts will be checked, because the question is the client's own. What
honest servers differ by, on other processors and through the codec, is far below the limits; a lie smaller than them,
such as weights with 0.1 % noise, is not seen. That somebody has begun to lie behind the prompts is found by servers
that took no part: they compute finished candidates again, in one pass each, with the limits of drawings. Who of the
chain it was is not.

Drawing audits measure on the run's own model what honest rounding may be off by. A client of blocks holds no layers to
measure on; but here servers of one precision are compared with each other, not with exact weights, so that only the
order of sums and the rounding of activations remain, which differ little between models.
"""

import logging
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hub_tools.counted import counted
from pipelines.core.swarm.streams.refusals import PeerGoneError, Refusal
from pipelines.features.serving.blocks.routing import Hop, NoChainError
from pipelines.features.serving.draw.audits import EXACT
from pipelines.features.serving.draw.evidence import excesses
from pipelines.features.serving.draw.modalities.choice import modality_of
from pipelines.features.serving.draw.requests import SamplingRequest
from pipelines.features.serving.server_blocklist import ServerBlocklist, blocklist_words

logger = logging.getLogger(__name__)

LIMITS = {"float32": 1e-3, "float16": 5e-3, "int8": 5e-2}
"""Relative error of an answer, by codec, above which two servers contradict each other. Honest ones were up to 4e-7,
3e-5 and 7e-4 apart in float32, with 6, 24 and 64 layers."""

LEAST_LIMITS = {"int8": 5e-3}
"""The limit is at least this, by the servers' precision: processors with and without VNNI round activations otherwise.
Honest servers with int8 weights were up to 2.3e-4 apart in the codec float32, and 2.3e-3 in int8."""

Repeat = Callable[[Hop], Tensor]
"""Asks another server the same; raises PeerGoneError or Refusal."""


@dataclass(frozen=True, kw_only=True)
class AuditVerdict:
    """What came of a check."""

    hop: Hop
    """Whose answer was checked, and for which layers."""

    outcome: str
    """`agrees`; `lies`: two others contradict it; `false witness`: the other one is contradicted by two; `disputed`:
    one contradicts it, and nobody else can be asked; `unchecked`: nobody else has these layers."""

    error: float = 0.0
    """Relative difference to the other server's answer."""

    liar: Hop | None = None


class BlockAudits:
    """Decides by a secret of its own which answers are checked, and by up to two other servers what is true."""

    def __init__(
        self,
        codec: str,
        *,
        share: float,
        precision: str | None = "float32",
        blocklist: ServerBlocklist | None = None,
        secret: int | None = None,
    ) -> None:
        """`share` of the prompts are checked. `precision` is that of the servers, None: any; `secret` is for tests.

        `blocklist` is what is known already, and learns more.
        """
        if not 0 <= share <= 1:
            raise ValueError(f"The share of audited prompts is {share}, expected 0 to 1.")
        self.limit = max(LIMITS[codec], LEAST_LIMITS.get(precision or "int8", 0.0))
        self._share, self.verdicts, self._blocklist = share, list[AuditVerdict](), blocklist or ServerBlocklist()
        self._excesses, self._product, self._problem = list[float](), "", ""
        self._random = random.Random(secret) if secret is not None else random.SystemRandom()

    def wants(self) -> bool:
        """Return whether the next answer is to be checked."""
        return self._random.random() < self._share

    def judge(self, hop: Hop, answer: Tensor, others: Mapping[str, Hop], repeat: Repeat) -> AuditVerdict:
        """Compare a server's answer with those of up to two others, which have the same layers and precision.

        A liar is avoided from now on, here and in other processes.
        """
        witnesses: list[tuple[Hop, Tensor]] = []
        for peer in self._random.sample(sorted(others), len(others)):
            try:
                witnesses.append((others[peer], repeat(others[peer])))
            except (PeerGoneError, Refusal) as error:
                logger.info("Server %s could not be asked for a check: %s", peer, error)
                continue
            if len(witnesses) == 2 or _error(answer, witnesses[0][1]) <= self.limit:
                break
        verdict = self._verdict(hop, answer, witnesses)
        self.verdicts.append(verdict)
        if (liar := verdict.liar) is not None:
            until = blocklist_words(self._blocklist.avoid(liar.peer, liar.user), liar.user)
            logger.warning("Server %s has given a false answer (%.1e off): %s.", liar.peer, verdict.error, until)
        return verdict

    def _verdict(self, hop: Hop, answer: Tensor, witnesses: list[tuple[Hop, Tensor]]) -> AuditVerdict:
        if not witnesses:
            return AuditVerdict(hop=hop, outcome="unchecked")
        (first, other), error = witnesses[0], _error(answer, witnesses[0][1])
        if error <= self.limit:
            return AuditVerdict(hop=hop, outcome="agrees", error=error)
        if len(witnesses) == 2:
            third = witnesses[1][1]
            if _error(answer, third) <= self.limit:
                return AuditVerdict(hop=hop, outcome="false witness", error=error, liar=first)
            if _error(other, third) <= self.limit:
                return AuditVerdict(hop=hop, outcome="lies", error=error, liar=hop)
        return AuditVerdict(hop=hop, outcome="disputed", error=error)

    def compute_again(self, model: Any, sampling: SamplingRequest, candidates: Sequence[int], codes: Tensor) -> None:
        """Have candidates computed again by servers that took no part, with a model of `DistributedModel`.

        Their numbers, and codes (candidate, place) int64, given ones included.
        """
        self._product = modality_of(model.config).product
        try:
            with model.layers.route.only_others():
                # One at a time: servers give a client a part of their memory, and a pass takes more than a step.
                self._excesses += excesses(model, sampling, candidates, codes, batch_size=1).tolist()
        except (NoChainError, PeerGoneError, Refusal) as error:
            self._problem = str(error)

    def found(self) -> list[str]:
        """Return lines that say who differs from others, what could not be told, and what was checked or was not."""
        verdicts, limit = self.verdicts, self.limit
        checked = [verdict for verdict in verdicts if verdict.outcome in ("agrees", "false witness")]
        liars = {(one.liar.peer, one.liar.user): one.error for one in verdicts if one.liar is not None}
        lines = [
            f"Server {peer[-8:]} differs from two others by {error:.1e}, and honest ones by at most {limit:.0e}: "
            f"another one has computed in its place, and {blocklist_words(self._blocklist.until(peer, user), user)}."
            for (peer, user), error in liars.items()
        ]
        lines += [
            f"Could not be told: {_place(verdict.hop)} and the only other server of these layers differ by "
            f"{verdict.error:.1e}, and honest ones by at most {limit:.0e}."
            for verdict in verdicts
            if verdict.outcome == "disputed"
        ]
        if alone := sorted({_place(verdict.hop) for verdict in verdicts if verdict.outcome == "unchecked"}):
            lines.append(f"Unchecked, since nobody else serves these layers: {', '.join(alone)}.")
        if checked:
            lines.append(
                f"Checked: {len(checked)} of {len(verdicts)} answers to prompts, each within {limit:.0e} of another "
                "server's."
            )
        return lines + self._found_behind_prompts()

    def _found_behind_prompts(self) -> list[str]:
        lines = [f"Unchecked behind the prompts, by others than took part: {self._problem}"] * bool(self._problem)
        if number := len(self._excesses):
            mean, limit = EXACT.judge(self._excesses)
            lines.append(
                f"Checked: {counted(number, self._product)}, each computed again by servers that took no part."
                if mean <= limit
                else f"Could not be told who differs: by servers that took no part these {number} {self._product}s "
                f"are off by {mean:.1e}, and those of honest servers by at most {limit:.1e}. Some server is false."
            )
        return lines


def _place(hop: Hop) -> str:
    return f"layers {hop.start}:{hop.end} at {hop.peer[-8:]}"


def _error(one: Tensor, other: Tensor) -> float:
    return float((one - other).norm() / other.norm().clamp(min=torch.finfo(torch.float32).tiny))
