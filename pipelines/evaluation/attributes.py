"""Which attributes of a caption a picture shows, for captions of which a judge can tell."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from pipelines.evaluation.figures import HIGHER, NEITHER, FigureKind
from pipelines.evaluation.measurement import PICTURES_AT_ONCE, Measurement

Judge = Callable[[str, np.ndarray], Mapping[str, bool] | None]
"""Gets a caption and a picture, `(height, width, 3)` uint8; returns for each attribute whether it is right.

None: it knows nothing of such a caption.
"""

EXACT = "exact"
ALL_RIGHT = FigureKind(
    name="exact_match", items="prompts", better=HIGHER, meaning="Share of drawings with every attribute right."
)
ALL_RIGHT_HELD_OUT = FigureKind(
    name="exact_match_held_out",
    items="records",
    better=NEITHER,
    meaning="The same of held-out pictures: what the codec and the judge leave.",
)


def measure_attributes(
    result: Measurement,
    judge: Judge,
    captions: Sequence[str],
    decode: Callable[[torch.Tensor], torch.Tensor],
    drawn: torch.Tensor,
    held_out: torch.Tensor,
) -> None:
    """Add what a judge says of drawings and of held-out pictures, or nothing if it knows none of the captions.

    `drawn: (prompt, drawing, image)` and `held_out: (prompt, image)` are codes; `decode` makes pictures of codes,
    `(picture, 3, side, side)` in [0, 1].
    """
    shares = _shares(judge, captions, [_pictures(decode, codes) for codes in drawn.unbind(1)])
    if not shares:
        return
    exact = shares.pop(EXACT)
    result.add_items(ALL_RIGHT, torch.tensor(exact))
    for name, values in shares.items():
        kind = FigureKind(
            name=f"right_{name}", items="prompts", better=HIGHER, meaning=f"Share of drawings with the right {name}."
        )
        result.add_items(kind, torch.tensor(values))
    result.add_items(ALL_RIGHT_HELD_OUT, torch.tensor(_shares(judge, captions, [_pictures(decode, held_out)])[EXACT]))


def _pictures(decode: Callable[[torch.Tensor], torch.Tensor], codes: torch.Tensor) -> list[np.ndarray]:
    chunks = [(decode(chunk).float().cpu() * 255).round().byte() for chunk in codes.split(PICTURES_AT_ONCE)]
    return [picture.permute(1, 2, 0).numpy() for chunk in chunks for picture in chunk]


def _shares(judge: Judge, captions: Sequence[str], drawings: Sequence[list[np.ndarray]]) -> dict[str, list[float]]:
    """Return, for each attribute, the share of a caption's drawings that have it right, where it has the attribute."""
    shares: dict[str, list[float]] = defaultdict(list)
    for caption, pictures in zip(captions, zip(*drawings, strict=True), strict=True):
        rights = [right for picture in pictures if (right := judge(caption, picture)) is not None]
        if rights:
            shares[EXACT].append(sum(all(right.values()) for right in rights) / len(rights))
            for name in rights[0]:
                shares[name].append(sum(right[name] for right in rights) / len(rights))
    return shares
