import hashlib
import itertools

import numpy as np
import pytest

from pipelines.tools.demo.scenes.scene_captions import CAPTION_TEMPLATES, caption_of, held_out_captions, parse_caption
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
    draw_training_attributes,
    held_out_combinations,
    held_out_scenes,
    render_mask,
    render_scene,
    scene_random,
    training_combinations,
)

RED_STAR = SceneAttributes(shape="star", colour="red", size="small", position="left", background="blue")


def test_equal_seeds_draw_equal_bytes_on_every_machine():
    pictures = [np.asarray(render_scene(RED_STAR, scene_random(7, "scene", 1))) for _ in range(2)]
    assert np.array_equal(*pictures)
    assert pictures[0].shape == (128, 128, 3) and pictures[0].dtype == np.uint8
    # The generator comes from a digest, not from Python's salted hash: its first number is known.
    expected = np.random.PCG64(int.from_bytes(hashlib.sha256(b"7|scene|1").digest()[:16], "little"))
    assert scene_random(7, "scene", 1).random() == np.random.Generator(expected).random()


def test_another_seed_moves_turns_and_tints_the_same_scene():
    one, other = (np.asarray(render_scene(RED_STAR, scene_random(seed))) for seed in (1, 2))
    assert not np.array_equal(one, other)
    centre = (64, 32)
    assert not np.array_equal(one[centre], other[centre]), "the shape's tint is jittered"
    assert np.array_equal(one[0, 0], other[0, 0]), "flat areas are alike in all pictures"


def test_every_visible_combination_is_counted_once():
    expected = sum(colour != background for colour in SHAPE_COLOURS for background in BACKGROUND_COLOURS)
    assert len(all_combinations()) == len(set(all_combinations())) == expected * len(POSITIONS) * len(SHAPES)
    assert len(all_combinations()) * len(SIZES) > 5000


def test_held_out_combinations_are_fixed_and_at_least_two_hundred():
    held_out, training = set(held_out_combinations()), set(training_combinations())
    assert len(held_out) >= 200
    assert not held_out & training
    assert held_out | training == set(all_combinations())
    # The shipped codec and CLIP were trained without exactly these; another choice would spoil the demo's honesty.
    digest = hashlib.sha256(repr(sorted(held_out)).encode()).hexdigest()
    assert digest == "a0a9316c9866e60c53cb4aa13257c6bbb7a525d6513ab9780186334afd564207"


def test_every_pair_of_attribute_values_is_still_trained_on():
    trained = training_combinations()
    for one, other in itertools.combinations(range(4), 2):
        seen = {(combination[one], combination[other]) for combination in trained}
        assert seen == {(combination[one], combination[other]) for combination in all_combinations()}


def test_training_attributes_are_never_held_out_and_cover_everything_else():
    random = scene_random(0)
    drawn = {draw_training_attributes(random).scored for _ in range(20_000)}
    assert drawn == set(training_combinations())


def test_held_out_scenes_come_each_once_with_all_sizes():
    scenes = list(held_out_scenes(200))
    assert [scene.scored for scene in scenes] == list(held_out_combinations()[:200])
    assert {scene.size for scene in scenes} == set(SIZES)
    with pytest.raises(ValueError, match=r"10000 held-out scenes were requested; there are \d+\."):
        list(held_out_scenes(10_000))


@pytest.mark.parametrize("template_index", range(len(CAPTION_TEMPLATES)))
def test_a_caption_can_be_read_back(template_index):
    for index, combination in enumerate(all_combinations()):
        attributes = attributes_of(combination, tuple(SIZES)[index % len(SIZES)])
        caption = caption_of(attributes, template_index)
        assert parse_caption(caption) == attributes
        assert parse_caption(f" {caption.upper()} ") == attributes


def test_captions_read_as_english_and_stay_short():
    assert caption_of(RED_STAR, 0) == "a small red star on the left of a blue background"
    lengths = [len(caption.replace(",", " ,").split()) for caption in held_out_captions(200)]
    assert max(lengths) <= 14
    assert len(set(held_out_captions(200))) == 200


def test_a_scene_has_one_caption_and_all_templates_are_used():
    scenes = list(held_out_scenes(200))
    captions = [caption_of(scene) for scene in scenes]
    assert captions == [caption_of(scene) for scene in scenes] == held_out_captions(200)
    used = {
        index for scene in scenes for index in range(len(CAPTION_TEMPLATES)) if caption_of(scene, index) in captions
    }
    assert used == set(range(len(CAPTION_TEMPLATES)))


def test_a_caption_of_something_else_is_refused_with_an_example():
    with pytest.raises(
        ValueError, match="'two dogs' does not describe a scene; expected for example 'a small red star"
    ):
        parse_caption("two dogs")


def test_shapes_lie_where_and_are_as_large_as_said():
    for shape in SHAPES:
        mask = np.asarray(render_mask(shape, (64, 64), centre=(20.0, 40.0), extent=24.0, degrees=0)) > 127
        rows, columns = np.nonzero(mask)
        assert (columns.min() + columns.max() + 1) / 2 == pytest.approx(20, abs=1)
        assert (rows.min() + rows.max() + 1) / 2 == pytest.approx(40, abs=1)
        assert max(np.ptp(rows), np.ptp(columns)) + 1 == pytest.approx(24, abs=1.5)


def test_edges_are_anti_aliased():
    mask = np.asarray(render_mask("circle", (64, 64), centre=(32.0, 32.0), extent=24.0, degrees=0))
    soft = ((mask > 0) & (mask < 255)).sum()
    assert 24 < soft < 150, "about the circle's circumference in pixels"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image_size": 60}, "image_size is 60; expected a multiple of 8"),
        ({"position_jitter": 0.5}, "position_jitter is 0.5; expected 0 to 0.08"),
        ({"size_jitter": -0.1}, "size_jitter is -0.1"),
        ({"rotation_jitter_degrees": 45.0}, "rotation_jitter_degrees is 45.0"),
        ({"colour_jitter": 100}, "colour_jitter is 100"),
    ],
)
def test_a_bad_configuration_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        ScenesConfig(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shape": "hexagon"}, "shape is 'hexagon'; expected one of circle, square"),
        ({"size": "tiny"}, "size is 'tiny'; expected one of small"),
        ({"colour": "blue"}, "A blue shape on a blue background cannot be seen"),
    ],
)
def test_a_scene_that_cannot_be_is_refused(changes, message):
    values = {"shape": "star", "colour": "red", "size": "small", "position": "left", "background": "blue"}
    with pytest.raises(ValueError, match=message):
        SceneAttributes(**(values | changes))
