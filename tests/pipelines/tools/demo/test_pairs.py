import numpy as np
import pytest
from PIL import Image

from pipelines.tools.demo.scenes.caption_judge import (
    ONE_SHAPE,
    TWO_SHAPES,
    describe_scene,
    held_out_scene_captions,
    judge_caption,
    score_drawings,
)
from pipelines.tools.demo.scenes.pair_judge import PairJudgement, judge_pair
from pipelines.tools.demo.scenes.pairs import (
    PairAttributes,
    draw_training_pair,
    held_out_pairs,
    pair_caption,
    pairs,
    parse_pair_caption,
    render_pair,
)
from pipelines.tools.demo.scenes.scene_captions import parse_caption
from pipelines.tools.demo.scenes.scenes import ScenesConfig, held_out_scenes, render_scene, scene_random

STAR_AND_RING = PairAttributes(first=("red", "star"), second=("green", "ring"), relation="left of", background="white")


def drawn(attributes, seed=1, **config):
    return np.asarray(render_pair(attributes, scene_random(seed, attributes), ScenesConfig(**config)))


def test_an_eighth_of_all_pairs_is_held_out_and_never_drawn_for_training():
    held_out, others = pairs(held_out=True), pairs(held_out=False)
    assert len(held_out) == (len(held_out) + len(others)) // 8 and not set(held_out) & set(others)
    random = scene_random(0)
    assert not set(held_out) & {draw_training_pair(random) for _ in range(20_000)}
    # The shipped codec and CLIP have not seen exactly these; another choice would spoil the demo's honesty.
    assert [pair_caption(pair) for pair in held_out[:2]] == [
        "white background with a green circle above a black square",
        "black background with a yellow ring left of a green ring",
    ]


def test_every_caption_of_a_pair_leads_back_to_it_and_to_no_scene_of_one_shape():
    some = [*pairs(held_out=True)[::50], *pairs(held_out=False)[::200]]
    captions = [pair_caption(pair) for pair in some]
    assert [parse_pair_caption(caption) for caption in captions] == some
    assert {word for caption in captions for word in ("left of", "right of", "above", "below") if word in caption} == {
        "left of",
        "right of",
        "above",
        "below",
    }
    with pytest.raises(ValueError, match="does not describe a scene"):
        parse_caption(captions[0])
    with pytest.raises(ValueError, match="does not describe two shapes; expected for example"):
        parse_pair_caption("a dog")


@pytest.mark.parametrize("image_size", [64, 128])
def test_the_judge_reads_every_attribute_of_freshly_drawn_pairs(image_size):
    some = [*held_out_pairs(100), *pairs(held_out=False)[::300]]
    right = [all(judge_pair(drawn(pair, image_size=image_size)).compared(pair).values()) for pair in some]
    assert sum(right) >= 0.99 * len(right) and len(right) > 150


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"first": ("blue", "star")}, {"colour"}),
        ({"second": ("green", "circle")}, {"shape"}),
        ({"first": ("green", "ring"), "second": ("red", "star")}, {"colour", "shape"}),
        ({"relation": "above"}, {"relation"}),
        ({"background": "pink"}, {"background"}),
    ],
)
def test_each_attribute_of_a_pair_is_judged_by_itself(change, wrong):
    wanted = PairAttributes(**{**vars(STAR_AND_RING), **change})
    compared = judge_pair(drawn(STAR_AND_RING)).compared(wanted)
    assert {name for name, right in compared.items() if not right} == wrong


def test_a_single_shape_a_third_one_and_noise_are_no_pairs():
    third = drawn(STAR_AND_RING).copy()
    third[:30, 50:80] = (20, 20, 20)
    noise = np.random.default_rng(0).integers(0, 256, (128, 128, 3), np.uint8)
    for picture in (third, noise):
        assert judge_pair(picture).relation is None
    singles = [np.asarray(render_scene(one, scene_random(3, n))) for n, one in enumerate(held_out_scenes(60))]
    assert all(judge_pair(picture) == PairJudgement(background=judge_pair(picture).background) for picture in singles)
    with pytest.raises(ValueError, match="expected a square of at least 64 pixels"):
        judge_pair(noise[:32, :32])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"second": ("red", "star")}, "Two shapes are both red star"),
        ({"background": "green"}, "cannot be seen"),
        ({"relation": "inside"}, "relation is 'inside'; expected one of left of, above"),
    ],
)
def test_pairs_that_cannot_be_seen_are_refused(change, message):
    if change.get("background") == "green":
        change = {"background": "white", "first": ("white", "star")}
    with pytest.raises(ValueError, match=message):
        PairAttributes(**{**vars(STAR_AND_RING), **change})


def test_drawings_are_scored_by_kind_with_intervals_and_attributes():
    captions = held_out_scene_captions(4, 2)
    scenes, twos = list(held_out_scenes(4)), list(held_out_pairs(2))
    assert captions[2] == pair_caption(twos[0]) and captions[5] == pair_caption(twos[1])
    ones = [np.asarray(render_scene(scene, scene_random(1, n))) for n, scene in enumerate(scenes)]
    best = [ones[0], ones[1], drawn(twos[0]), ones[2], ones[3], drawn(twos[0])]
    blank = [np.zeros((128, 128, 3), np.uint8)] * 6
    scores = {score.kind: score for score in score_drawings(captions, best, blank)}
    assert scores[ONE_SHAPE].exact_match == 1 and scores[ONE_SHAPE].num_captions == 4
    assert scores[TWO_SHAPES].exact_match == 0.5 and scores[TWO_SHAPES].exact_match_without_ranking == 0
    assert scores[TWO_SHAPES].low < 0.5 < scores[TWO_SHAPES].high
    assert set(scores[TWO_SHAPES].attributes) == {"relation", "colour", "shape", "background"}
    assert 0 < scores[TWO_SHAPES].chance < scores[ONE_SHAPE].chance < 0.001


def test_pictures_are_described_and_judged_by_captions_of_either_kind():
    picture = drawn(STAR_AND_RING)
    assert describe_scene(picture) == "red star left of a green ring, on a white background"
    assert describe_scene(np.asarray(Image.fromarray(picture).resize((32, 32)))).startswith(("no clear shape", "small"))
    assert all(judge_caption(pair_caption(STAR_AND_RING), picture).values())
    assert judge_caption("a dog", picture) is None
