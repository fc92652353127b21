"""Pictures of what was dropped: a few per reason, the same after any interruption, none that a label calls unsafe."""

import pytest

from pipelines.tasks.text_to_image.data_preparation.filtering import DropReason, FilterPolicy
from pipelines.tasks.text_to_image.data_preparation.pictures.decoding_pool import DecodingPool
from pipelines.tasks.text_to_image.data_preparation.pictures.dropped_pictures import (
    MOST_PER_REASON,
    DroppedPictures,
    read_dropped_pictures,
)
from pipelines.tasks.text_to_image.data_preparation.pictures.picture_options import DecodingSettings, PictureOptions
from pipelines.tasks.text_to_image.data_preparation.sources.sample import CaptionImage

SHORT, NSFW = DropReason.SHORT_CAPTION, DropReason.NSFW


@pytest.fixture
def kept(tmp_path):
    settings = DecodingSettings(side=16, policy=FilterPolicy(), options=PictureOptions())
    with DecodingPool(settings, 1) as pool:
        yield DroppedPictures(tmp_path, pool)


def sample(number: int, content: bytes | None, caption: str | None = "x", nsfw: str | None = None) -> CaptionImage:
    return CaptionImage(key=f"{number}", source="a.tar", caption=caption, image_bytes=content, nsfw=nsfw)


def files(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "dropped").iterdir()}


def test_the_first_few_of_each_reason_are_kept_over_all_shards(kept, tmp_path, make_png):
    for shard in range(3):
        kept.begin_shard(shard)
        for number in range(5):
            kept.keep(sample(10 * shard + number, make_png(number)), SHORT)
    found = read_dropped_pictures(tmp_path)
    assert [one.key for one in found] == [f"a.tar/{number}" for number in (0, 1, 2, 3, 4, 10, 11, 12)]
    assert len(found) == MOST_PER_REASON and all(one.picture.read_bytes()[:2] == b"\xff\xd8" for one in found)


def test_a_shard_that_is_made_again_keeps_the_same_files(kept, tmp_path, make_png):
    for shard in (0, 1, 0, 1):
        kept.begin_shard(shard)
        for number in range(6):
            kept.keep(sample(number, make_png(number), caption=f"shard {shard}"), SHORT)
        if (shard, len(files(tmp_path))) == (1, 2 * MOST_PER_REASON):
            before = files(tmp_path)
    assert files(tmp_path) == before


def test_what_a_label_calls_unsafe_is_never_kept(kept, tmp_path, make_png):
    kept.begin_shard(0)
    kept.keep(sample(0, make_png(0), nsfw="NSFW"), NSFW)
    kept.keep(sample(1, make_png(0), nsfw="UNSURE"), SHORT)
    kept.keep(sample(2, make_png(0)), NSFW)
    assert read_dropped_pictures(tmp_path) == []


def test_what_cannot_be_seen_is_still_named(kept, tmp_path, make_png):
    kept.begin_shard(0)
    kept.keep(sample(0, b"<html>"), DropReason.CORRUPT_IMAGE)
    kept.keep(sample(1, None, caption=None), DropReason.MISSING_IMAGE)
    strange = CaptionImage(key="a\nb", source="a.tar", caption="a\ud800b\n" + "long " * 100, image_bytes=make_png(0))
    kept.keep(strange, DropReason.DECODING_FAILED)
    corrupt, failed, missing = read_dropped_pictures(tmp_path)
    assert [one.picture for one in (corrupt, failed, missing)] == [None] * 3
    assert corrupt.reason == "corrupt_image" and missing.caption == ""
    assert failed.key == "a.tar/a b" and failed.caption.startswith("a?b long long") and len(failed.caption) <= 200
