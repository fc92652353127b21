"""Checks of what came of a chain: servers that took no part in it compute finished candidates again, in one pass each.

Audits of prompts (`audits`) name who lies about them. This finds that somebody has begun to lie behind them, as audits
of drawings do (`draw.evidence`), but not who of the chain it was.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hub_tools.counted import counted
from pipelines.serving.blocks.client.chain_session import LOST
from pipelines.serving.blocks.routing import NoChainError
from pipelines.serving.draw.audits import EXACT
from pipelines.serving.draw.evidence import excesses
from pipelines.serving.draw.media.choice import medium_of
from pipelines.serving.draw.requests import Wish


class Recheck:
    """The candidates of one model that were computed again."""

    def __init__(self, model: Any) -> None:
        """`model` is one of `DistributedModel`."""
        self._model, self.measured, self.problem = model, list[float](), ""

    def look_at(self, wish: Wish, candidates: Sequence[int], codes: Tensor) -> None:
        """Have candidates computed again: their numbers, and codes (candidate, place) int64, given ones included."""
        numbers = torch.cat([wish.numbers(range(one, one + 1), self._model.config) for one in candidates])
        try:
            with self._model.layers.route.only_others():
                # One at a time: servers give a client a part of their memory, and a pass takes more than a step.
                self.measured += excesses(self._model, wish, numbers, codes, batch_size=1).tolist()
        except (NoChainError, *LOST) as error:
            self.problem = str(error)

    def found(self) -> list[str]:
        """Return lines that say what was checked, what was not, and whether servers contradict each other."""
        product, number = medium_of(self._model.config).product, len(self.measured)
        lines = [f"Unchecked behind the prompts, by others than took part: {self.problem}"] if self.problem else []
        if not number:
            return lines
        mean, limit = sum(self.measured) / number, EXACT.limit(number)
        if mean <= limit:
            return [*lines, f"Checked: {counted(number, product)}, each computed again by servers that took no part."]
        return [
            *lines,
            f"Could not be told who differs: by servers that took no part these {number} {product}s are off by "
            f"{mean:.1e}, and those of honest servers by at most {limit:.1e}. Some server is false.",
        ]
