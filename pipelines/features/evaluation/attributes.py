"""Which attributes of a caption a picture shows, for captions of which a judge can tell."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import torch

from pipelines.features.evaluation.figures import HIGHER, NEITHER
from pipelines.features.evaluation.measurement import Measurement

Judge = Callable[[str, np.ndarray], Mapping[str, bool] | None]
"""Gets a caption and a picture, `(height, width, 3)` uint8; returns for each attribute whether it is right.

None: it knows nothing of such a caption.
"""

EXACT = "exact"


def measure_attributes(
    result: Measurement,
    judge: Judge,
    captions: Sequence[str],
    drawings: Iterable[torch.Tensor],
    held_out: torch.Tensor,
) -> None:
    """Add what a judge says of drawings and of held-out pictures, or nothing if it knows none of the captions.

    Each drawing, and `held_out`, are the pictures of all captions, `(picture, 3, side, side)` in [0, 1]. The drawings
    are not looked at if the judge knows none of the captions.
    """
    expected = _shares(judge, captions, [held_out])
    if not expected:
        return
    shares = _shares(judge, captions, drawings)
    meaning, all_right = "Share of drawings with every attribute right.", torch.tensor(shares.pop(EXACT))
    result.add_items("exact_match", "prompts", HIGHER, meaning, all_right)
    for name, values in shares.items():
        meaning = f"Share of drawings with the right {name}."
        result.add_items(f"right_{name}", "prompts", HIGHER, meaning, torch.tensor(values))
    meaning = "The same of held-out pictures: what the codec and the judge leave."
    result.add_items("exact_match_held_out", "records", NEITHER, meaning, torch.tensor(expected[EXACT]))


def _shares(judge: Judge, captions: Sequence[str], drawings: Iterable[torch.Tensor]) -> dict[str, list[float]]:
    """Return, for each attribute, the share of a caption's drawings that have it right, where it has the attribute."""
    rights: list[list[Mapping[str, bool]]] = [[] for _ in captions]
    for pictures in drawings:
        for found, caption, picture in zip(rights, captions, pictures, strict=True):
            array = (picture.float() * 255).round().byte().permute(1, 2, 0).numpy()
            if (right := judge(caption, array)) is not None:
                found.append(right)
    shares: dict[str, list[float]] = defaultdict(list)
    for found in filter(None, rights):
        shares[EXACT].append(sum(all(right.values()) for right in found) / len(found))
        for name in found[0]:
            shares[name].append(sum(right[name] for right in found) / len(found))
    return shares
