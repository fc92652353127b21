"""A mosaic shows each prompt's best picture large, the others small, and fits a screen."""

import numpy as np
import pytest
import torch
from PIL import Image

from pipelines.tasks.text_to_image.generation.picture_mosaic import draw_picture_mosaic
from pipelines.tasks.text_to_image.generation.text_to_image import RankedImage


def ranked(colour):
    codes = torch.zeros(4, dtype=torch.int64)
    return RankedImage(image=Image.new("RGB", (32, 32), colour), score=1.0, candidate_index=0, image_codes=codes)


def places(mosaic, colour):
    """Left, top, right and bottom of the pixels of this colour."""
    rows, columns = np.nonzero((np.asarray(mosaic) == colour).all(axis=2))
    return columns.min(), rows.min(), columns.max() + 1, rows.max() + 1


RED, LIME, BLUE, YELLOW, CYAN = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0), (0, 255, 255)


def test_the_best_picture_is_large_and_the_next_three_stand_small_beside_it():
    pictures = [ranked(colour) for colour in (RED, LIME, BLUE, YELLOW, CYAN)]
    mosaic = draw_picture_mosaic([("a red star", pictures)])
    assert places(mosaic, RED) == (28, 28, 28 + 216, 28 + 216)
    left = 28 + 216 + 6
    assert places(mosaic, LIME) == (left, 28, left + 68, 28 + 68)
    assert places(mosaic, BLUE) == (left, 28 + 74, left + 68, 28 + 74 + 68)
    assert places(mosaic, YELLOW) == (left, 28 + 148, left + 68, 28 + 216)
    assert not (np.asarray(mosaic) == CYAN).all(axis=2).any()
    below = np.asarray(mosaic.crop((28, 28 + 216 + 8, 28 + 216, mosaic.height)).convert("L"))
    assert (below < 128).sum() > 30, "the prompt"


def test_twelve_prompts_make_three_rows_of_four_that_fit_a_screen():
    rows = [("a medium red circle in the bottom right corner of a black background", [ranked("red")] * 4)] * 12
    mosaic = draw_picture_mosaic(rows)
    assert mosaic.width == 4 * (216 + 6 + 68) + 3 * 24 + 2 * 28 <= 1300
    assert 3 * 216 < mosaic.height <= 960
    assert draw_picture_mosaic(rows[:5]).width == mosaic.width > draw_picture_mosaic(rows[:2]).width


def test_single_pictures_leave_no_empty_column():
    assert draw_picture_mosaic([("a", [ranked("red")])]).width == 216 + 2 * 28


def test_a_long_prompt_makes_its_row_higher_and_nothing_is_cut_off():
    short, long = ("a", [ranked("white")]), ("a small red star " * 12, [ranked("white")])
    mosaic, low = draw_picture_mosaic([short, long]), draw_picture_mosaic([short, short])
    assert mosaic.width == low.width and mosaic.height > low.height + 100
    edges = np.asarray(mosaic.convert("L"))
    assert edges[-28:].min() == edges[:, -28:].min() == 255


@pytest.mark.parametrize("rows", [[], [("a", [])]], ids=["no prompt", "no picture"])
def test_nothing_to_draw_is_refused(rows):
    with pytest.raises(ValueError, match="There is nothing to draw"):
        draw_picture_mosaic(rows)
