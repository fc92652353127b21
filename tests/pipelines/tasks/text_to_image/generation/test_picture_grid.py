"""A grid shows every prompt, every picture and its score, for long prompts and any script."""

import numpy as np
import pytest
import torch
from PIL import Image

from pipelines.tasks.text_to_image.generation.picture_grid import (
    draw_picture_grid,
    font_for,
    keep_picture,
    save_picture,
    wrap_text,
)
from pipelines.tasks.text_to_image.generation.text_to_image import RankedImage


def ranked(colour, score=1.0, size=(64, 64)):
    codes = torch.zeros(4, dtype=torch.int64)
    return RankedImage(image=Image.new("RGB", size, colour), score=score, candidate_index=0, image_codes=codes)


def ink(grid, box):
    return (np.asarray(grid.crop(box).convert("L")) < 128).sum()


def test_pictures_lie_side_by_side_under_their_prompt():
    grid = draw_picture_grid([("a red star", [ranked("red"), ranked("blue"), ranked("lime"), ranked("yellow")])])
    assert grid.size == (4 * 192 + 3 * 8 + 2 * 16, 16 + 24 + 8 + 192 + 13 + 8 + 8)
    top = 16 + 24 + 8
    for column, colour in enumerate([(255, 0, 0), (0, 0, 255), (0, 255, 0), (255, 255, 0)]):
        left = 16 + column * 200
        assert (np.asarray(grid.crop((left, top, left + 192, top + 192))) == colour).all()
        assert grid.getpixel((left + 195, top + 96)) == (255, 255, 255) or column == 3


def test_prompt_and_scores_are_written_in_ink():
    pictures = [ranked("white", score=27.5), ranked("white", score=3.25)]
    with_prompt, other = (draw_picture_grid([(prompt, pictures)]) for prompt in ("a red star", "i"))
    prompt_box, label_box = (0, 0, 400, 48), (16, 16 + 24 + 8 + 192, 216, 269)
    assert ink(with_prompt, prompt_box) > 5 * ink(other, prompt_box) > 0
    assert ink(with_prompt, label_box) > 30
    different = draw_picture_grid([("a red star", [ranked("white", score=11.11), pictures[1]])])
    assert np.asarray(different.crop(label_box)).tolist() != np.asarray(with_prompt.crop(label_box)).tolist()


def test_prompts_stand_below_each_other_and_many_pictures_continue_in_the_next_row():
    one = draw_picture_grid([("a", [ranked("red")] * 8)])
    assert draw_picture_grid([("a", [ranked("red")] * 9)]).height == one.height + 192 + 13 + 8 + 8
    assert draw_picture_grid([("a", [ranked("red")] * 8)] * 3).size == (one.width, 3 * one.height)


def test_a_long_prompt_is_wrapped_and_stays_inside():
    prompt = "a very small red star on the left side of an enormous pale blue background " * 4 + "x" * 200
    grid = draw_picture_grid([(prompt, [ranked("white")])])
    short = draw_picture_grid([("x", [ranked("white")])])
    assert grid.width == short.width and grid.height > short.height + 4 * 24
    assert ink(grid, (grid.width - 16, 0, grid.width, grid.height)) == 0


def test_wrapped_lines_hold_all_words_and_fit():
    font = font_for("x", 18)
    text = "one two three four five " * 5 + "y" * 60
    lines = wrap_text(text, font, 200)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert all(font.getlength(line) <= 200 for line in lines)


@pytest.mark.parametrize(
    "prompt", ["маленькая красная звезда", "مثلث أحمر", "ένα μικρό αστέρι", "鳥と木", "🐦 bird", ""]
)
def test_prompts_in_any_script_are_drawn(prompt):
    grid = draw_picture_grid([(prompt, [ranked("white")])])
    assert (ink(grid, (0, 0, grid.width, 48)) > 20) == bool(prompt)


def test_pictures_that_are_not_square_keep_their_shape():
    grid = draw_picture_grid([("a", [ranked("red", size=(64, 32))])])
    is_red = (np.asarray(grid) == (255, 0, 0)).all(axis=-1)
    assert (is_red.any(axis=0).sum(), is_red.any(axis=1).sum()) == (192, 96)


def test_a_picture_is_written_whole_and_replaces_the_old_one(tmp_path):
    path = tmp_path / "new" / "grid.png"
    for colour in ("red", "blue"):
        save_picture(Image.new("RGB", (3, 3), colour), path)
    assert Image.open(path).getpixel((0, 0)) == (0, 0, 255)
    assert [file.name for file in path.parent.iterdir()] == ["grid.png"]


def test_a_place_where_no_picture_can_be_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"grid.txt does not end in .png, .jpg, .jpeg, .webp"):
        save_picture(Image.new("RGB", (3, 3)), tmp_path / "grid.txt")
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(ValueError, match=r"folder.png is a folder. Name a picture in it"):
        save_picture(Image.new("RGB", (3, 3)), tmp_path / "folder.png")
    assert [file.name for file in tmp_path.iterdir()] == ["folder.png"]


def test_nothing_to_draw_is_refused():
    for rows in ([], [("a", [])]):
        with pytest.raises(ValueError, match="There is nothing to draw"):
            draw_picture_grid(rows)


def test_a_picture_that_is_kept_is_written_once_and_equal_ones_share_the_file(tmp_path):
    picture = Image.effect_mandelbrot((20, 10), (-2, -1, 1, 1), 9)
    path = keep_picture(picture, tmp_path)
    first = path.stat()
    assert keep_picture(picture.copy(), tmp_path) == path
    assert path.stat().st_ino == first.st_ino and path.stat().st_mtime_ns >= first.st_mtime_ns
    other = keep_picture(picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT), tmp_path)
    assert other != path and keep_picture(picture.resize((10, 20)), tmp_path) not in (path, other)
    with Image.open(path) as kept:
        assert kept.tobytes() == picture.tobytes()
    assert len([file for file in tmp_path.rglob("*") if file.is_file()]) == 3
