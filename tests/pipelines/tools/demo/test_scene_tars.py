import hashlib
import io
import json
import tarfile
from collections import Counter

import numpy as np
import pytest
from PIL import Image

from pipelines.tools.demo.scenes.caption_judge import judge_caption, parse_scene_caption
from pipelines.tools.demo.scenes.pairs import PairAttributes, pairs
from pipelines.tools.demo.scenes.scene_tars import Dirt, SceneTarsConfig, dirt_of, write_scene_tars
from pipelines.tools.demo.scenes.scenes import held_out_combinations

CONFIG = SceneTarsConfig(num_pictures=600, pictures_per_tar=240, seed=3)


def read_tars(folder):
    """Every record of a folder of tars in order: key -> suffix -> bytes."""
    records = {}
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as tar:
            for member in tar:
                key, suffix = member.name.split(".")
                records.setdefault(key, {})[suffix] = tar.extractfile(member).read()
    return records


@pytest.fixture(scope="module")
def tars(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scenes")
    progress = []
    counts = write_scene_tars(folder, CONFIG, progress.append)
    assert progress == list(range(1, 601))
    return folder, counts, read_tars(folder)


def test_tars_have_img2datasets_names_and_laions_fields(tars):
    folder, _, records = tars
    assert sorted(path.name for path in folder.iterdir()) == ["00000.tar", "00001.tar", "00002.tar"]
    keys = [f"{index // 240:05d}{index % 240:04d}" for index in range(600)]
    assert list(records) == keys
    for key, record in records.items():
        assert set(record) == {"jpg", "txt", "json"}
        fields = json.loads(record["json"])
        assert fields["key"] == key
        assert fields["caption"] == record["txt"].decode()
        assert fields["sha256"] == hashlib.sha256(record["jpg"]).hexdigest()
        assert {"NSFW", "similarity", "original_width", "original_height", "url", "license", "status"} <= fields.keys()


def test_dirt_is_present_in_the_stated_shares(tars):
    _, counts, _ = tars
    assert sum(counts.values()) == CONFIG.num_pictures
    for dirt, share in CONFIG.dirt_shares.items():
        expected = share * CONFIG.num_pictures
        assert abs(counts[dirt] - expected) < 4 * expected**0.5, f"{dirt}: {counts[dirt]}, expected about {expected}"


def test_each_kind_of_dirt_is_really_in_the_files(tars):
    _, counts, records = tars
    seen = Counter()
    for index, record in enumerate(records.values()):
        fields, caption = json.loads(record["json"]), record["txt"].decode()
        seen[Dirt.EMPTY_CAPTION] += caption == ""
        seen[Dirt.SHORT_CAPTION] += 0 < len(caption) < 3
        seen[Dirt.NSFW] += fields["NSFW"] == "NSFW"
        seen[Dirt.UNSURE] += fields["NSFW"] == "UNSURE"
        ratio = fields["original_width"] / fields["original_height"]
        seen[Dirt.EXTREME_RATIO] += max(ratio, 1 / ratio) > 2
        seen[Dirt.CORRUPT] += not is_readable(record["jpg"])
        seen[Dirt.NONE] += dirt_of(index, CONFIG) is Dirt.NONE
    assert seen == counts


def is_readable(jpeg):
    try:
        Image.open(io.BytesIO(jpeg)).load()
    except OSError:
        return False
    return True


def test_clean_records_show_what_their_caption_says_and_are_never_held_out(tars):
    held_out, num_pairs = set(held_out_combinations()), 0
    for index, record in enumerate(tars[2].values()):
        if dirt_of(index, CONFIG) is Dirt.NONE:
            caption = record["txt"].decode()
            attributes = parse_scene_caption(caption)
            is_pair = isinstance(attributes, PairAttributes)
            assert (attributes not in pairs(held_out=True)) if is_pair else (attributes.scored not in held_out)
            picture = np.asarray(Image.open(io.BytesIO(record["jpg"])))
            assert picture.shape == (128, 128, 3)
            assert index % 3 or all(judge_caption(caption, picture).values()), attributes
            num_pairs += is_pair
    assert 0.15 < num_pairs / len(tars[2]) < 0.35


def test_extreme_pictures_have_the_size_that_their_fields_state(tars):
    for index, record in enumerate(tars[2].values()):
        if dirt_of(index, CONFIG) is Dirt.EXTREME_RATIO:
            fields = json.loads(record["json"])
            size = Image.open(io.BytesIO(record["jpg"])).size
            assert size == (fields["original_width"], fields["original_height"]) == (fields["width"], fields["height"])


def test_writing_twice_gives_the_same_bytes(tars, tmp_path):
    small = SceneTarsConfig(num_pictures=50, pictures_per_tar=20, seed=3)
    write_scene_tars(tmp_path, small)
    first = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    write_scene_tars(tmp_path, small)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == first
    assert set(first) == {"00000.tar", "00001.tar", "00002.tar"}


def test_tars_of_an_earlier_longer_run_are_not_mixed_in_silently(tmp_path):
    write_scene_tars(tmp_path, SceneTarsConfig(num_pictures=30, pictures_per_tar=10))
    with pytest.raises(FileExistsError, match=r"has 1 tars of this run and 00001.tar of another"):
        write_scene_tars(tmp_path, SceneTarsConfig(num_pictures=10, pictures_per_tar=10))


def test_clean_tars_can_be_asked_for(tmp_path):
    counts = write_scene_tars(tmp_path, SceneTarsConfig(num_pictures=40, dirt_shares={}))
    assert counts == {Dirt.NONE: 40}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_pictures": 0}, "num_pictures is 0; expected at least 1"),
        ({"pictures_per_tar": 20_000}, "pictures_per_tar is 20000; expected 1 to 10000"),
        ({"jpeg_quality": 10}, "jpeg_quality is 10; expected 50 to 100"),
        ({"dirt_shares": {Dirt.NSFW: 1.5}}, r"dirt_shares are \[1.5\]"),
    ],
)
def test_a_bad_configuration_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        SceneTarsConfig(**changes)
