"""Judges any picture by its caption, if the caption is one of the demo's."""

import numpy as np

from pipelines.demo.scenes.scene_captions import parse_caption
from pipelines.demo.scenes.scene_judge import judge_picture

SCORED = ("colour", "background", "position", "shape")
"""What `SceneAttributes.scored` lists."""


def judge_caption(caption: str, picture: np.ndarray) -> dict[str, bool] | None:
    """Return for each scored attribute whether the picture, (height, width, 3) uint8, shows what the caption says.

    None: the caption is none of a scene, or the picture is too small to be judged.
    """
    try:
        expected, seen = parse_caption(caption).scored, judge_picture(picture).scored
    except ValueError:
        return None
    return {name: one == other for name, one, other in zip(SCORED, expected, seen, strict=True)}
