import math

import numpy as np
import pytest
from PIL import Image

from pipelines.tools.demo.scenes.caption_judge import judge_caption
from pipelines.tools.demo.scenes.scene_judge import chance_level, judge_picture, read_picture
from pipelines.tools.demo.scenes.scenes import (
    BACKGROUND_COLOURS,
    POSITIONS,
    SHAPE_COLOURS,
    SHAPES,
    SIZES,
    SceneAttributes,
    ScenesConfig,
    all_combinations,
    attributes_of,
    render_scene,
    scene_random,
)


def scene_pictures(config=None, every=1):
    """(attributes, picture) of every n-th combination, all sizes by turns."""
    for index, combination in enumerate(all_combinations()[::every]):
        attributes = attributes_of(combination, tuple(SIZES)[index % len(SIZES)])
        yield attributes, np.asarray(render_scene(attributes, scene_random(20, index), config))


def test_fresh_clean_pictures_are_read_at_least_995_times_in_1000():
    right = [judge_picture(picture).scored == attributes.scored for attributes, picture in scene_pictures(every=3)]
    assert len(right) > 400
    assert sum(right) / len(right) >= 0.995


def test_sizes_are_read_too():
    right = [judge_picture(picture).size == attributes.size for attributes, picture in scene_pictures(every=4)]
    assert sum(right) / len(right) >= 0.99


def test_pictures_of_another_size_are_read_alike():
    config = ScenesConfig(image_size=128)
    right = [
        judge_picture(picture).scored == attributes.scored for attributes, picture in scene_pictures(config, every=9)
    ]
    assert sum(right) / len(right) >= 0.995


def test_an_exact_match_needs_all_four_attributes_but_not_the_size():
    attributes = SceneAttributes(shape="star", colour="red", size="small", position="left", background="blue")
    picture = np.asarray(render_scene(attributes, scene_random(1)))
    seen = judge_picture(picture).scored
    assert seen == attributes.scored
    changes = {"shape": "heart", "colour": "white", "position": "top", "background": "grey"}
    for name, value in changes.items():
        other = SceneAttributes(**(vars(attributes) | {name: value}))
        assert seen != other.scored, name
    assert seen == SceneAttributes(**(vars(attributes) | {"size": "large"})).scored


def pictures_without_a_shape():
    random = np.random.default_rng(0)
    plain = np.full((64, 64, 3), 150, np.uint8)
    yield "plain", plain
    yield "noise", random.integers(0, 256, (64, 64, 3), dtype=np.uint8)
    yield "faint noise", (plain + random.integers(-10, 11, plain.shape)).astype(np.uint8)
    codes = Image.fromarray(random.integers(0, 256, (8, 8, 3), dtype=np.uint8))
    yield "random codes", np.asarray(codes.resize((64, 64), Image.Resampling.NEAREST))
    gradient = np.broadcast_to(np.arange(0, 256, 4, dtype=np.uint8)[:, None, None], (64, 64, 3))
    yield "gradient", np.ascontiguousarray(gradient)
    speck = plain.copy()
    speck[30:34, 30:34] = (210, 25, 35)
    yield "speck", speck
    stripe = plain.copy()
    stripe[:, 28:36] = (210, 25, 35)
    yield "stripe", stripe
    two = plain.copy()
    two[8:24, 8:24] = two[40:56, 40:56] = (210, 25, 35)
    yield "two squares", two
    half = plain.copy()
    half[20:44, 20:32], half[20:44, 32:44] = (210, 25, 35), (246, 246, 246)
    yield "square of two colours", half


@pytest.mark.parametrize(("name", "picture"), [pytest.param(*case, id=case[0]) for case in pictures_without_a_shape()])
def test_a_picture_without_a_clear_shape_is_judged_none(name, picture):
    assert judge_picture(picture).shape is None, name


def test_a_background_or_a_colour_out_of_the_palette_is_none():
    brown, turquoise = (120, 70, 30), (70, 240, 230)
    picture = np.full((64, 64, 3), turquoise, np.uint8)
    picture[20:44, 20:44] = brown
    seen = judge_picture(picture)
    assert (seen.shape, seen.colour, seen.background, seen.position) == ("square", None, None, "centre")


def test_a_shape_half_way_between_positions_is_at_none():
    picture = np.full((64, 64, 3), 150, np.uint8)
    picture[12:36, 28:52] = SHAPE_COLOURS["red"]
    seen = judge_picture(picture)
    assert (seen.shape, seen.colour, seen.size, seen.background) == ("square", "red", "small", "grey")
    assert seen.position is None


def test_chance_is_one_in_the_number_of_combinations():
    same_name = sum(name in SHAPE_COLOURS for name in BACKGROUND_COLOURS)
    pairs = len(SHAPE_COLOURS) * len(BACKGROUND_COLOURS) - same_name
    assert math.isclose(chance_level(), 1 / (pairs * len(POSITIONS) * len(SHAPES)))
    assert chance_level() <= 0.001


@pytest.mark.parametrize(
    "picture",
    [np.zeros((64, 64), np.uint8), np.zeros((64, 48, 3), np.uint8), np.zeros((64, 64, 3), np.float32)],
    ids=["grey", "not square", "floats"],
)
def test_an_array_that_is_no_square_rgb_picture_is_refused(picture):
    with pytest.raises(ValueError, match="expected a square RGB picture"):
        judge_picture(picture)


def test_a_file_that_is_no_picture_is_refused_by_name(tmp_path):
    path = tmp_path / "picture.png"
    path.write_bytes(b"no picture")
    with pytest.raises(OSError, match=r"picture\.png cannot be read as a picture"):
        read_picture(path)


def test_a_picture_is_judged_by_its_caption_if_that_is_one_of_the_demos():
    picture = np.full((64, 64, 3), 150, np.uint8)
    picture[20:44, 20:44] = SHAPE_COLOURS["red"]
    everything = dict.fromkeys(("colour", "background", "position", "shape"), True)
    assert judge_caption("small red square in the centre, grey background", picture) == everything
    assert judge_caption("small red circle at the top, grey background", picture) == everything | dict(
        position=False, shape=False
    )
    assert judge_caption("a robin on a branch", picture) is None
    assert judge_caption("small red square in the centre, grey background", picture[:16, :16]) is None
