"""The judge on made-up pictures whose answers are known, and on the codec's own drawings."""

import io
import json
import math

import pytest
import torch
from PIL import Image
from rich.console import Console

from pipelines.demo.emoji.emoji_judge import Gallery, judge_pictures, open_gallery, picture_features
from pipelines.demo.emoji.emoji_prompts import (
    HELD_OUT_PEOPLE,
    HELD_OUT_THINGS,
    TRAINED_ON,
    judged_groups,
    pictured_concepts,
)
from pipelines.demo.emoji.emoji_report import judgement_table, side_by_side
from pipelines.demo.emoji.emoji_tars import EmojiConfig, write_emoji_tars
from pipelines.demo.shipped_models import PRETRAINED_CODEC
from pipelines.evaluation.figures import wilson_interval
from pipelines.image_codes.vqgan_codec import VQGANCodec

CAPTIONS = tuple(
    f"{concept}, in the style of {style}"
    for concept in ("cook, dark skin tone", "cook, light skin tone", "judge, dark skin tone", "apple")
    for style in ("Noto", "Fluent")
)


def noise(seed):
    return torch.randint(0, 256, (3, 64, 64), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


PICTURES = {caption: noise(number) for number, caption in enumerate(CAPTIONS)}
GALLERY = Gallery(captions=CAPTIONS, features=picture_features(torch.stack(list(PICTURES.values()))))


def judge(wanted, drawn):
    judgement = judge_pictures("a group", [wanted], PICTURES[drawn][None], GALLERY)
    return {question for question, score in judgement.scores.items() if score.right}


@pytest.mark.parametrize(
    ("drawn", "right"),
    [
        ("cook, dark skin tone, in the style of Noto", {"style", "what", "attribute", "concept", "both"}),
        ("cook, dark skin tone, in the style of Fluent", {"what", "attribute", "concept"}),
        ("cook, light skin tone, in the style of Noto", {"style", "what"}),
        ("judge, dark skin tone, in the style of Fluent", {"attribute"}),
        ("apple, in the style of Noto", {"style"}),
        ("apple, in the style of Fluent", set()),
    ],
)
def test_the_judge_reads_each_part_from_the_most_similar_true_picture(drawn, right):
    assert judge("cook, dark skin tone, in the style of Noto", drawn) == right


def test_a_slightly_wrong_picture_is_still_read_right():
    caption = CAPTIONS[3]
    shifted = torch.roll(PICTURES[caption], 1, dims=2)
    assert judge_pictures("g", [caption], shifted[None], GALLERY).scores["both"].right == 1


def test_a_caption_without_skin_tone_or_colour_is_asked_for_neither():
    judgement = judge_pictures("g", [CAPTIONS[6]], PICTURES[CAPTIONS[6]][None], GALLERY)
    assert set(judgement.scores) == {"style", "concept", "both"}


def test_shares_intervals_and_chance_are_those_of_the_plain_formulas():
    drawn = [PICTURES[CAPTIONS[number]] for number in (0, 1, 6, 7)]
    scores = judge_pictures(
        "g", [CAPTIONS[0], CAPTIONS[0], CAPTIONS[6], CAPTIONS[6]], torch.stack(drawn), GALLERY
    ).scores
    assert (scores["style"].right, scores["style"].of, scores["style"].share) == (2, 4, 0.5)
    assert (scores["what"].right, scores["what"].of) == (2, 2)
    assert (scores["style"].chance, scores["what"].chance, scores["concept"].chance) == (4 / 8, 4 / 8, 2 / 8)
    assert scores["both"].chance == 1 / 8
    z, share, n = 1.959964, 0.5, 4
    centre, reach = share + z * z / 2 / n, z * math.sqrt(share * (1 - share) / n + z * z / 4 / n / n)
    expected = [(centre - reach) / (1 + z * z / n), (centre + reach) / (1 + z * z / n)]
    assert [scores["style"].low, scores["style"].high] == pytest.approx(expected, abs=1e-5)
    assert wilson_interval(4, 4)[1] == 1 and 0.3 < wilson_interval(4, 4)[0] < 1


def test_pictures_that_look_the_same_under_two_names_are_right_under_either():
    gallery = Gallery(captions=CAPTIONS[:2], features=GALLERY.features[:1].repeat(2, 1))
    for caption in CAPTIONS[:2]:
        assert judge_pictures("g", [caption], PICTURES[CAPTIONS[0]][None], gallery).scores["both"].right == 1


def test_what_the_codec_makes_of_a_true_picture_is_that_picture(make_sets, make_entry, tmp_path):
    entries = [make_entry(f"E{number}", f"thing {number}") for number in range(5)]
    write_emoji_tars(make_sets(entries), tmp_path / "tars", EmojiConfig(held_out_share=0.0))
    codec = VQGANCodec.from_pretrained(PRETRAINED_CODEC)
    gallery, true = open_gallery([tmp_path / "tars" / "train"], codec)
    captions = sorted(true)
    assert len(captions) == 20 and true[captions[0]].shape == (3, 128, 128)
    images = torch.stack([true[caption] for caption in captions]).float() / 255
    drawn = (codec.decode(codec.encode(images)) * 255).round().to(torch.uint8)
    assert all(caption in nearest for caption, nearest in zip(captions, gallery.nearest(drawn), strict=True))


def test_groups_are_samples_of_their_splits_and_people_are_apart():
    captions = dict(
        train=[f"thing {number}, in the style of Noto" for number in range(50)]
        + ["hand, light skin tone, in the style of Noto"],
        styles=["hand, in the style of Fluent", "drum, in the style of Noto", "bell, in the style of Noto"],
        skin_tones=[],
        colours=[],
    )
    groups = judged_groups(captions, 10)
    assert set(groups) == {TRAINED_ON, HELD_OUT_THINGS, HELD_OUT_PEOPLE}
    assert groups[HELD_OUT_PEOPLE] == ["hand, in the style of Fluent"]
    assert sorted(groups[HELD_OUT_THINGS]) == ["bell, in the style of Noto", "drum, in the style of Noto"]
    assert len(groups[TRAINED_ON]) == 10 and groups == judged_groups(captions, 10)
    known = {"drum, in the style of Noto", "drum, in the style of Fluent", "bell, in the style of Noto"}
    assert pictured_concepts(groups, known, ["Noto", "Fluent"], per_group=2) == ["drum"]


def test_the_table_and_the_figures_say_the_same():
    judgement = judge_pictures("a group", [CAPTIONS[0], CAPTIONS[6]], torch.stack([noise(0), noise(0)]), GALLERY)
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(judgement_table([judgement]))
    text = console.export_text()
    assert "a group" in text and "100% (34%–100%)" in text and "50% (9%–91%)" in text and "by chance 0.12" in text
    scores = json.loads(json.dumps(judgement.to_json()))["scores"]
    assert scores["style"]["right"] == 2 and scores["both"]["right"] == 1


def test_the_picture_frames_what_was_held_out():
    red, held_out = Image.new("RGB", (64, 64), "red"), frozenset({"apple, in the style of Noto"})
    pictures = {"apple, in the style of Noto": red}
    framed = side_by_side(["apple"], ["Noto", "Fluent"], pictures, pictures, held_out)
    plain = side_by_side(["apple"], ["Noto", "Fluent"], pictures, pictures, frozenset())
    frame = (200, 30, 30)
    assert frame in {colour for _, colour in framed.getcolors(1 << 24)}
    assert frame not in {colour for _, colour in plain.getcolors(1 << 24)}
    assert framed.size == plain.size and framed.width < 1000
