import io
import json
import tarfile

import numpy as np
import pytest
from PIL import Image

from pipelines.demo.emoji.emoji_pairs import COLOURS_TEST, STYLES_TEST, TONES_TEST, TRAIN
from pipelines.demo.emoji.emoji_sets import STYLES
from pipelines.demo.emoji.emoji_tars import EmojiConfig, split_folder, write_emoji_tars

WHOLE = EmojiConfig(held_out_share=0.0)


def records_of(folder):
    records = {}
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as tar:
            for member in tar:
                key, suffix = member.name.split(".")
                records.setdefault((path.name, key), {})[suffix] = tar.extractfile(member).read()
    return {record["txt"].decode(): record for record in records.values()}


def pixels(record):
    return np.asarray(Image.open(io.BytesIO(record["jpg"]))).astype(int)


def test_pairs_become_records_with_the_licence_and_author_of_their_style(make_sets, make_entry, tmp_path):
    source, progress = make_sets([make_entry("1F34E", "red apple")]), []
    counts = write_emoji_tars(source, tmp_path / "tars", WHOLE, lambda *done: progress.append(done))
    records = records_of(tmp_path / "tars" / "train")
    assert set(records) == {f"red apple, in the style of {style.name}" for style in STYLES}
    for style in STYLES:
        fields = json.loads(records[f"red apple, in the style of {style.name}"]["json"])
        assert (fields["license"], fields["attribution"]) == (style.license, style.attribution)
    assert (counts.pairs, counts.concepts, counts.same_picture, counts.unreadable) == ({TRAIN: 4}, 1, 0, ())
    assert progress == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_a_drawing_is_rendered_on_white_in_its_colours(make_sets, make_entry, tmp_path):
    write_emoji_tars(make_sets([make_entry("1F34E", "red apple")]), tmp_path / "tars", WHOLE)
    picture = pixels(records_of(tmp_path / "tars" / "train")["red apple, in the style of Noto"])
    assert picture.shape == (64, 64, 3)
    assert picture[32, 32] == pytest.approx([0xEF, 0x53, 0x50], abs=8)
    assert picture[2, 2] == pytest.approx([255, 255, 255], abs=3)


def test_held_out_pairs_are_in_a_folder_for_each_test_and_in_no_other(make_sets, make_entry, tmp_path):
    entries = [make_entry(f"E{number:02X}", f"thing {number}") for number in range(20)]
    entries += [make_entry("F1", "cook: dark skin tone", subgroups="person-role"), make_entry("F2", "green heart")]
    bodies = {one["hexcode"]: f'<rect x="{number / 4}" width="5" height="5"/>' for number, one in enumerate(entries)}
    counts = write_emoji_tars(make_sets(entries, bodies=bodies), tmp_path, EmojiConfig(held_out_share=0.4))
    captions = {split: set(records_of(split_folder(tmp_path, split))) for split in (TRAIN, STYLES_TEST, COLOURS_TEST)}
    assert captions[COLOURS_TEST] == {f"green heart, in the style of {style.name}" for style in STYLES}
    assert captions[STYLES_TEST] and not captions[STYLES_TEST] & captions[TRAIN]
    assert counts.pairs[STYLES_TEST] == len(captions[STYLES_TEST])
    assert sum(counts.pairs.values()) == 4 * len(entries) and counts.pairs[TONES_TEST] in (0, 4)


def test_a_held_out_pair_that_looks_like_one_that_is_trained_on_is_left_out(make_sets, make_entry, tmp_path):
    circle = '<circle cx="8" cy="8" r="5" fill="red"/>'
    source = make_sets(
        [make_entry("E1", "round thing"), make_entry("E2", "red square")], bodies=dict(E1=circle, E2=circle)
    )
    counts = write_emoji_tars(source, tmp_path, WHOLE)
    assert counts.same_picture == 4 and counts.pairs == {TRAIN: 4}


def test_a_damaged_drawing_is_named_and_skipped(make_sets, make_entry, tmp_path):
    source = make_sets([make_entry("E1", "apple"), make_entry("E2", "pear")], bodies={"E1": "<circle"})
    counts = write_emoji_tars(source, tmp_path, WHOLE)
    assert set(counts.unreadable) == {f"apple, in the style of {style.name}" for style in STYLES}
    assert counts.pairs == {TRAIN: 4}


def test_writing_twice_gives_the_same_bytes(make_sets, make_entry, tmp_path):
    source = make_sets([make_entry(f"E{number}", f"thing {number}") for number in range(9)])
    for name in ("one", "two"):
        write_emoji_tars(source, tmp_path / name, EmojiConfig())
    one, two = (sorted((tmp_path / name).rglob("*.tar")) for name in ("one", "two"))
    assert one and [path.read_bytes() for path in one] == [path.read_bytes() for path in two]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image_size": 8}, "image_size is 8; expected at least 16"),
        ({"held_out_share": 0.9}, "held_out_share is 0.9; expected 0 to 0.5"),
    ],
)
def test_a_bad_configuration_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        EmojiConfig(**changes)
