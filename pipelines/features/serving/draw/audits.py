"""Which servers' drawings are not what was wished for: a sample of their candidates is computed again, and judged.

One candidate proves little: honest rounding to bfloat16 reaches with some what a liar's weights do with others. So
excesses are pooled for each server over its last audited candidates, and compared with what an honest server of the
same precision would have reached, as measured on this model.
"""

import copy
import random
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor
from transformers import PreTrainedModel

from pipelines.features.servers.complaints import ServerComplaint
from pipelines.features.serving.draw.evidence import drawn_here, excesses
from pipelines.features.serving.draw.modalities.choice import modality_of
from pipelines.features.serving.draw.requests import SamplingRequest
from pipelines.features.serving.server_blocklist import ServerBlocklist, blocklist_words

POOL = 64
"""Audited candidates of a server that count."""

SHARE_AUDITED = 1 / 16
"""Of the candidates of a server: a pass over one costs about as much as drawing it with guesses, less without."""

LEAST_AUDITED = 4
"""Of each server and drawing, as far as it has drawn so many."""

NUM_FOR_HONESTY = 32
"""Candidates on which it is measured what an honest server of another precision than float32 may be off by."""

FACTOR = 24.0
"""By how much the pool may be above the honest mean: more than the difference between kinds of hardware."""

SINGLE_FACTOR = 48.0
"""By how much one honest candidate of the pool may be above the largest measured: honest excesses have a long tail."""

ROUNDING = 2e-7
LARGEST_ROUNDING = 1e-5
"""Mean and largest excess of an honest server in float32, whose sums run in another order than the auditor's."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """What honest servers of one precision reach with one model."""

    mean: float
    largest: float

    @classmethod
    def of(cls, measured: Sequence[float]) -> "Calibration":
        """Return what these honest excesses say; at least rounding in float32, which is all of it for float32."""
        values = [ROUNDING, *measured]
        return cls(mean=max(ROUNDING, sum(values) / len(values)), largest=max(LARGEST_ROUNDING, *values))

    def judge(self, measured: Collection[float]) -> tuple[float, float]:
        """Return the mean excess of candidates, and the highest one that is believed to be honest."""
        number = len(measured)
        return sum(measured) / number, FACTOR * self.mean + SINGLE_FACTOR * self.largest / number


EXACT = Calibration.of(())
"""Of float32."""


@dataclass(frozen=True, kw_only=True)
class Complaint:
    """Why a server is avoided from here; nobody else has to believe it."""

    claim: ServerComplaint
    """What the swarm is told, with the worst of the candidates that were audited last: not the prompt."""

    until: float
    user: str = ""
    """The server's admitted user, in an open run nobody."""

    def __str__(self) -> str:
        claim = self.claim
        return (
            f"{claim.server} did not draw what was asked for: its last {claim.num_audited} audited candidates are off "
            f"by {claim.mean_excess:.1e} on average, and an honest server's by at most {claim.limit:.1e}. Its "
            f"candidates are drawn again elsewhere, and {blocklist_words(self.until, self.user)}."
        )


class DrawingAudits:
    """The audits of one client, with the model, of servers of one precision."""

    def __init__(
        self,
        model: PreTrainedModel,
        precision: str = "float32",
        blocklist: ServerBlocklist | None = None,
        *,
        share: float = SHARE_AUDITED,
        secret: int | None = None,
    ) -> None:
        """`blocklist` is what is known already, and learns more; `secret` is for tests."""
        self._model, self._precision, self.blocklist = model, precision, blocklist or ServerBlocklist()
        self._calibration = EXACT if precision == "float32" else None
        self._pools: dict[str, deque[float]] = {}
        self._share, self._random = share, random.Random(secret)

    def learn_calibration(self, sampling: SamplingRequest) -> None:
        """Measure what honest servers of this precision are off by; for float32 it is known."""
        if self._calibration is None:
            rounded, some = copy.deepcopy(self._model), range(NUM_FOR_HONESTY)
            modality_of(rounded.config).rounded(rounded, self._precision)
            codes = drawn_here(self._model, sampling, some)
            self._calibration = Calibration.of(excesses(self._model, sampling, some, codes, rounded=rounded).tolist())

    def pick(self, candidates: Collection[int], num_before: int) -> list[int]:
        """Return which of a server's candidates are audited, when so many of it have been in this drawing.

        A server cannot know which: the choice is the client's own.
        """
        wanted = max(LEAST_AUDITED - num_before, sum(self._random.random() < self._share for _ in candidates))
        return sorted(self._random.sample(sorted(candidates), min(wanted, len(candidates))))

    def compute_again(self, sampling: SamplingRequest, candidates: Sequence[int], codes: Tensor) -> dict[int, float]:
        """Return the excesses of candidates, by their numbers and codes, (candidate, place); takes long."""
        return dict(zip(candidates, excesses(self._model, sampling, candidates, codes).tolist(), strict=True))

    def judge(
        self, sampling: SamplingRequest, server: str, measured: Mapping[int, float], user: str = ""
    ) -> Complaint | None:
        """Take the excesses of some of a server's candidates; return the complaint if it is avoided for them.

        `user` is as in `ServerBlocklist.avoid`.
        """
        assert self._calibration is not None, "it is learnt first"
        pool = self._pools.setdefault(server, deque(maxlen=POOL))
        pool.extend(measured.values())
        mean, limit = self._calibration.judge(pool)
        if not mean > limit:  # also where it is no number: then the auditor's own model is damaged
            return None
        worst = max(measured, key=measured.__getitem__)
        claim = ServerComplaint(
            server=server, revision=sampling.revision, precision=self._precision, num_audited=len(pool),
            mean_excess=mean, limit=limit, seed=sampling.seed, prompt=sampling.prompt, candidate=worst,
            excess=measured[worst],
        )  # fmt: skip
        pool.clear()  # so that it can prove itself afterwards
        return Complaint(claim=claim, user=user, until=self.blocklist.avoid(server, user))
