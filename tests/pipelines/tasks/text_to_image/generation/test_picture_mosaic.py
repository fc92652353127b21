"""A mosaic shows each prompt's best picture large, the others small, and fits a screen."""

import numpy as np
import pytest
from PIL import Image

from pipelines.tasks.text_to_image.generation.picture_mosaic import RIGHT, WRONG, draw_picture_mosaic


def plain(colour):
    return Image.new("RGB", (32, 32), colour)


def places(mosaic, colour):
    """Left, top, right and bottom of the pixels of this colour."""
    rows, columns = np.nonzero((np.asarray(mosaic) == colour).all(axis=2))
    return columns.min(), rows.min(), columns.max() + 1, rows.max() + 1


RED, LIME, BLUE, YELLOW, CYAN = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0), (0, 255, 255)


def test_the_best_picture_is_large_and_the_next_three_stand_small_beside_it():
    pictures = [plain(colour) for colour in (RED, LIME, BLUE, YELLOW, CYAN)]
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
    rows = [("a medium red circle in the bottom right corner of a black background", [plain("red")] * 4)] * 12
    mosaic = draw_picture_mosaic(rows)
    assert mosaic.width == 4 * (216 + 6 + 68) + 3 * 24 + 2 * 28 <= 1300
    assert 3 * 216 < mosaic.height <= 960
    assert draw_picture_mosaic(rows[:5]).width == mosaic.width > draw_picture_mosaic(rows[:2]).width


def test_single_pictures_leave_no_empty_column():
    assert draw_picture_mosaic([("a", [plain("red")])]).width == 216 + 2 * 28


def test_a_long_prompt_makes_its_row_higher_and_nothing_is_cut_off():
    short, long = ("a", [plain("white")]), ("a small red star " * 12, [plain("white")])
    mosaic, low = draw_picture_mosaic([short, long]), draw_picture_mosaic([short, short])
    assert mosaic.width == low.width and mosaic.height > low.height + 100
    edges = np.asarray(mosaic.convert("L"))
    assert edges[-28:].min() == edges[:, -28:].min() == 255


def test_a_judged_picture_has_a_tick_or_what_is_wrong_with_it_below():
    rows = [("a", [plain("black")])] * 2
    judged = draw_picture_mosaic(rows, [[], ["position", "shape"]])
    assert judged.height > draw_picture_mosaic(rows).height
    right, wrong = places(judged, RIGHT), places(judged, WRONG)
    assert right[2] < 28 + 216 + 24 <= wrong[0] and right[2] - right[0] < 20 < 60 < wrong[2] - wrong[0]


@pytest.mark.parametrize("rows", [[], [("a", [])]], ids=["no prompt", "no picture"])
def test_nothing_to_draw_is_refused(rows):
    with pytest.raises(ValueError, match="There is nothing to draw"):
        draw_picture_mosaic(rows)
