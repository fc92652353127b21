import base64
import importlib.util
import io
import json
import tarfile

import numpy as np
import pytest
from PIL import Image, ImageDraw

from pipelines.demo.openmoji import OpenMojiConfig, find_package, is_held_out, read_emoji, write_openmoji_tars


def entry(hexcode, annotation, tags="", **more):
    fields = {"hexcode": hexcode, "annotation": annotation, "tags": tags, "openmoji_tags": "", "group": "food-drink"}
    return fields | {"openmoji_author": "Ada", "skintone": "", "skintone_base_hexcode": ""} | more


def write_package(folder, entries, pictures):
    """A made-up package: hexcode -> RGBA colour of a disc on a transparent ground."""
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "openmoji.json").write_text(json.dumps(entries))
    (folder / "color" / "72x72").mkdir(parents=True)
    for hexcode, colour in pictures.items():
        picture = Image.new("RGBA", (72, 72), (0, 0, 0, 0))
        ImageDraw.Draw(picture).ellipse((16, 16, 56, 56), fill=colour)
        picture.save(folder / "color" / "72x72" / f"{hexcode}.png")
    return folder


@pytest.fixture
def package(tmp_path):
    entries = [
        entry("1F34E", "red apple", "fruit, red"),
        entry("1F44B", "waving hand", "hello", group="people-body"),
        entry("1F44B-1F3FB", "waving hand: light skin tone", skintone=1, skintone_base_hexcode="1F44B"),
        entry("E000", "lost drawing"),
    ]
    pictures = {"1F34E": (200, 0, 0, 255), "1F44B": (250, 220, 0, 255), "1F44B-1F3FB": (250, 220, 180, 255)}
    return write_package(tmp_path / "openmoji", entries, pictures)


def records_of(folder):
    records = {}
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as tar:
            for member in tar:
                key, suffix = member.name.split(".")
                records.setdefault(key, {})[suffix] = tar.extractfile(member).read()
    return list(records.values())


def test_pictures_become_records_with_licence_author_and_several_captions(package, tmp_path):
    progress = []
    config = OpenMojiConfig(held_out_share=0.0)
    counts = write_openmoji_tars(package, tmp_path / "tars", config, lambda *done: progress.append(done))
    records = records_of(tmp_path / "tars" / "train")
    assert {record["txt"].decode() for record in records} == {
        "red apple",
        "red apple: fruit, red",
        "food and drink, red apple",
        "waving hand",
        "waving hand: hello",
        "people and body, waving hand",
        "waving hand, light skin tone",
        "waving hand, light skin tone: hello",
        "food and drink, waving hand, light skin tone",
    }
    for record in records:
        fields = json.loads(record["json"])
        assert fields["license"] == "CC-BY-SA-4.0"
        assert fields["attribution"] == "Ada, OpenMoji (https://openmoji.org)"
        assert fields["NSFW"] == "UNLIKELY"
    assert (counts.training_pictures, counts.held_out_pictures, counts.records) == (3, 0, 9)
    assert counts.missing == ("E000",)
    assert progress == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_transparency_becomes_white_and_the_drawing_keeps_its_colour(package, tmp_path):
    write_openmoji_tars(package, tmp_path / "tars", OpenMojiConfig(held_out_share=0.0, captions_per_picture=1))
    apple = next(record for record in records_of(tmp_path / "tars" / "train") if record["txt"] == b"red apple")
    picture = np.asarray(Image.open(io.BytesIO(apple["jpg"]))).astype(int)
    assert picture.shape == (64, 64, 3)
    assert picture[2, 2] == pytest.approx([255, 255, 255], abs=3)
    assert picture[32, 32] == pytest.approx([200, 0, 0], abs=8)


def test_writing_twice_gives_the_same_bytes(package, tmp_path):
    for name in ("one", "two"):
        write_openmoji_tars(package, tmp_path / name, OpenMojiConfig())
    files = [sorted((tmp_path / name).rglob("*.tar")) for name in ("one", "two")]
    assert [path.read_bytes() for path in files[0]] == [path.read_bytes() for path in files[1]]


def test_held_out_emoji_are_the_stated_share_with_all_their_skin_tones(tmp_path):
    bases = [entry(f"E{index:03X}", f"thing {index}") for index in range(400)]
    tones = [
        entry(f"{base['hexcode']}-1F3FB", "tone", skintone=1, skintone_base_hexcode=base["hexcode"]) for base in bases
    ]
    emoji = read_emoji(write_package(tmp_path / "many", bases + tones, {}))
    held_out = {one.hexcode for one in emoji if is_held_out(one, 0.25)}
    assert 2 * 70 < len(held_out) < 2 * 130
    assert {f"{hexcode}-1F3FB" for hexcode in held_out if "-" not in hexcode} == {
        hexcode for hexcode in held_out if "-" in hexcode
    }


def test_held_out_and_training_tars_share_no_emoji(tmp_path):
    entries = [entry(f"E{index:03X}", f"thing {index}") for index in range(40)]
    package = write_package(tmp_path / "some", entries, {one["hexcode"]: (0, 0, 0, 255) for one in entries})
    counts = write_openmoji_tars(package, tmp_path / "tars", OpenMojiConfig(held_out_share=0.3))
    names = [
        {json.loads(record["json"])["url"] for record in records_of(tmp_path / "tars" / part)}
        for part in ("train", "held_out")
    ]
    assert counts.held_out_pictures == len(names[1]) > 0
    assert counts.training_pictures == len(names[0]) == 40 - len(names[1])
    assert not names[0] & names[1]


def test_skin_tones_can_be_left_out(package):
    assert [one.hexcode for one in read_emoji(package, skin_tones=False)] == ["1F34E", "1F44B", "E000"]


def test_the_package_is_found_below_node_modules_and_its_absence_is_named(package, tmp_path):
    (tmp_path / "installed" / "node_modules").mkdir(parents=True)
    package.rename(tmp_path / "installed" / "node_modules" / "openmoji")
    assert find_package(tmp_path / "installed") == tmp_path / "installed" / "node_modules" / "openmoji"
    with pytest.raises(FileNotFoundError, match="Fetch it: dalle-collab demo openmoji-fetch --output"):
        find_package(tmp_path)


@pytest.mark.parametrize("content", ["[{]", '[{"hexcode": "1F34E"}]', '{"a": 1}'])
def test_a_damaged_list_is_refused_with_the_cure(package, content):
    (package / "data" / "openmoji.json").write_text(content)
    with pytest.raises(ValueError, match=r"openmoji\.json is not OpenMoji 17's list.*Fetch the package again"):
        read_emoji(package)


def test_a_damaged_drawing_is_counted_as_missing(package, tmp_path):
    (package / "color" / "72x72" / "1F34E.png").write_bytes(base64.b64decode("iVBORw0KGgoAAAA="))
    counts = write_openmoji_tars(package, tmp_path / "tars", OpenMojiConfig())
    assert counts.missing == ("1F34E", "E000")


SVG = (
    '<svg viewBox="0 0 72 72" xmlns="http://www.w3.org/2000/svg"><circle cx="36" cy="36" r="20" fill="#c80000"/></svg>'
)


def test_svg_drawings_are_rendered_or_the_missing_library_is_named(package, tmp_path):
    (package / "color" / "svg").mkdir()
    (package / "color" / "72x72" / "1F34E.png").unlink()
    (package / "color" / "svg" / "1F34E.svg").write_text(SVG)
    config = OpenMojiConfig(held_out_share=0.0, captions_per_picture=1)
    if importlib.util.find_spec("resvg_py") is None:
        with pytest.raises(OSError, match="Install it: pip install 'resvg_py"):
            write_openmoji_tars(package, tmp_path / "tars", config)
        return
    write_openmoji_tars(package, tmp_path / "tars", config)
    apple = next(record for record in records_of(tmp_path / "tars" / "train") if record["txt"] == b"red apple")
    picture = np.asarray(Image.open(io.BytesIO(apple["jpg"]))).astype(int)
    assert picture[32, 32] == pytest.approx([200, 0, 0], abs=8)
    assert picture[2, 2] == pytest.approx([255, 255, 255], abs=3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image_size": 8}, "image_size is 8; expected at least 16"),
        ({"captions_per_picture": 4}, "captions_per_picture is 4; expected 1 to 3"),
        ({"held_out_share": 0.9}, "held_out_share is 0.9; expected 0 to 0.5"),
        ({"jpeg_quality": 0}, "jpeg_quality is 0; expected 50 to 100"),
        ({"pictures_per_tar": 0}, "pictures_per_tar is 0; expected 1 to 10000"),
    ],
)
def test_a_bad_configuration_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        OpenMojiConfig(**changes)
