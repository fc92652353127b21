"""Attributes: shares over drawings, each over the captions that have it; nothing without a judge's word."""

import numpy as np
import torch

from pipelines.features.evaluation.attributes import measure_attributes
from pipelines.features.evaluation.measurement import Measurement


def decode(codes):
    """Pictures as bright as their only code, in hundredths."""
    return (codes.float() / 100)[:, None, None, :].expand(-1, 3, 8, 8)


def judge(caption, picture):
    """Knows captions such as `bright` and `dark square`; all of its pictures are square."""
    assert picture.shape == (8, 8, 3) and picture.dtype == np.uint8
    words = caption.split()
    if words[0] not in ("bright", "dark"):
        return None
    tone = dict(tone=bool(picture.mean() > 127) == (words[0] == "bright"))
    return tone | ({"shape": words[1] == "square"} if len(words) > 1 else {})


def test_shares_are_over_drawings_and_captions_that_have_the_attribute():
    captions = ["bright", "dark square", "dark ring", "of something else"]
    drawings = [decode(torch.tensor([[90], [10], [10], [0]])), decode(torch.tensor([[10], [10], [90], [0]]))]
    result = Measurement()
    measure_attributes(result, judge, captions, drawings, held_out=decode(torch.tensor([[90], [10], [10], [0]])))
    figures = {figure.name: (figure.value, figure.num_items) for figure in result.figures}
    assert figures == {
        "exact_match": (0.5, 3),
        "right_tone": (2 / 3, 3),
        "right_shape": (0.5, 2),
        "exact_match_held_out": (2 / 3, 3),
    }


def test_where_the_judge_knows_no_caption_there_is_no_figure():
    result = Measurement()
    drawings = iter([decode(torch.zeros(1, 1))])
    measure_attributes(result, judge, ["a robin"], drawings, held_out=decode(torch.zeros(1, 1)))
    assert result.figures == [] and len(list(drawings)) == 1, "no drawing was decoded for nothing"
