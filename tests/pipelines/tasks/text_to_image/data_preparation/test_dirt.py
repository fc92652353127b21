"""All kinds of dirt at once, through the whole preparation: what is kept and dropped is what was there."""

import io
import json
import tarfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from captioned_files import sample_members, write_files, write_tar
from PIL import Image

from pipelines.tasks.text_to_image.data_preparation.filtering import FilterPolicy
from pipelines.tasks.text_to_image.data_preparation.inspection.verification import verify_folder
from pipelines.tasks.text_to_image.data_preparation.shard_writing import PreparationOptions, prepare_shards
from pipelines.tasks.text_to_image.data_preparation.sources.finding import find_sources

OPTIONS = PreparationOptions(shard_size=8, batch_size=4, num_workers=2)
NUM_OF_EACH = 3


def stored(format: str, size: tuple[int, int] = (16, 16)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, "red").save(buffer, format)
    return buffer.getvalue()


def dirty_samples() -> dict[str, tuple[dict[str, bytes], str]]:
    """The files of a sample by suffix, and what becomes of it."""
    png = stored("PNG")
    good = {".png": png, ".txt": b"a red square"}
    return {
        "good": ({**good, ".json": b'{"NSFW": "UNLIKELY"}'}, "kept"),
        "unlabelled": (good, "kept"),
        "jfif": ({".JFIF": stored("JPEG"), ".TXT": b"a red square"}, "kept"),
        "emoji": ({".png": png, ".txt": "🐈🐈".encode()}, "kept"),
        "surrogate": ({".png": png, ".json": b'{"caption": "a \\ud83d square", "original_width": 1e12}'}, "kept"),
        "dots.in.name": (good, "kept"),
        "unsafe": ({**good, ".json": b'{"nsfw": "nsfw"}'}, "nsfw"),
        "score": ({**good, ".json": b'{"punsafe": 0.99}'}, "nsfw"),
        "deep": ({**good, ".json": b'{"a":' * 10**5}, "damaged_metadata"),
        "nan": ({".png": png, ".txt": b"nan"}, "placeholder_caption"),
        "camera": ({".png": png, ".txt": b"IMG_2019.jpg"}, "file_name_caption"),
        "list": ({".png": png, ".txt": b"['a', 'b']"}, "list_caption"),
        "url": ({".png": png, ".txt": b"https://a.org/b"}, "url_caption"),
        "lines": ({".png": png, ".txt": b"a rat\nde.utf8=eine Ratte"}, "several_lines"),
        "long": ({".png": png, ".txt": b"word " * 200_000}, "long_caption"),
        "latin": ({".png": png, ".txt": b"gr\xfcn"}, "unreadable_text"),
        "zero width": ({".png": png, ".txt": "\u200b\u200d".encode()}, "empty_caption"),
        "alone": ({".png": png}, "missing_caption"),
        "short": ({".png": png, ".txt": b"ox"}, "short_caption"),
        "text": ({".txt": b"a red square"}, "missing_image"),
        "heic": ({".heic": b"\0\0\0\x18ftypheic", ".txt": b"a red square"}, "unsupported_format"),
        "html": ({".jpg": b"<html>", ".txt": b"a red square"}, "corrupt_image"),
        "flat": ({".png": stored("PNG", (64, 16)), ".txt": b"a red square"}, "extreme_aspect_ratio"),
        "sound": ({".ogg": b"OggS"}, "unknown_kind"),
    }


@pytest.fixture
def places(tmp_path):
    """The same dirt in a tar, in a tar in which the kinds of files lie apart, and in a folder; and damaged sources."""
    members = [
        (f"{name}{number}{suffix}", content)
        for name, (files, _) in dirty_samples().items()
        for number in range(NUM_OF_EACH)
        for suffix, content in files.items()
    ]
    place = tmp_path / "place"
    place.mkdir()
    write_tar(place / "tidy.tar", members)
    write_tar(place / "apart.tar.gz", sorted(members, key=lambda member: member[0].rpartition(".")[2]), "w:gz")
    write_files(tmp_path / "folder", dict(members))
    whole = write_tar(place / "cut.tar", [member for key in "abc" for member in sample_members(key)])
    whole.write_bytes(whole.read_bytes()[: 14 * tarfile.BLOCKSIZE])
    (place / "page.tar").write_bytes(b"<html>" * 1000)
    pq.write_table(pa.table({"jpg": [stored("JPEG")] * 2, "caption": ["a red square", "..."]}), place / "rows.parquet")
    return [place, tmp_path / "folder"]


def test_every_kind_of_dirt_is_counted_once(places, codec, tmp_path):
    output = tmp_path / "out"
    result = prepare_shards(find_sources(places), codec, output, OPTIONS)
    expected: dict[str, int] = {}
    for _, outcome in dirty_samples().values():
        expected[outcome] = expected.get(outcome, 0) + 3 * NUM_OF_EACH
    expected["kept"] += 1
    expected["placeholder_caption"] += 1
    expected["corrupt_image"] += 2  # the pictures of the cut tar are no pictures
    expected["incomplete"] = 1
    assert {"kept": result.report.kept, **result.report.dropped} == expected
    assert result.report.seen == 3 * NUM_OF_EACH * len(dirty_samples()) + 2 + 3
    assert result.report.kept_unlabelled == 5 * 3 * NUM_OF_EACH + 1
    assert [damage.partition(":")[0] for damage in result.report.damaged_sources] == ["cut.tar", "page.tar"]
    report = verify_folder(output)
    assert not report.problems and report.num_records == result.report.kept
    assert json.loads((output / "report.json").read_text())["seen"] == result.report.seen


def test_dirt_does_not_change_what_an_interruption_leaves(places, codec, tmp_path):
    def stop(progress):
        if progress.num_samples > 100:
            raise KeyboardInterrupt

    prepare_shards(find_sources(places), codec, tmp_path / "whole", OPTIONS)
    with pytest.raises(KeyboardInterrupt):
        prepare_shards(find_sources(places), codec, tmp_path / "stopped", OPTIONS, stop)
    result = prepare_shards(find_sources(places), codec, tmp_path / "stopped", OPTIONS)
    assert result.num_shards_kept > 5
    for path in (tmp_path / "whole").glob("*.*"):
        assert (tmp_path / "stopped" / path.name).read_bytes() == path.read_bytes()


def test_a_crawl_keeps_only_what_is_labelled(places, codec, tmp_path):
    options = PreparationOptions(shard_size=64, batch_size=4, num_workers=2, policy=FilterPolicy(keep_unlabelled=False))
    report = prepare_shards(find_sources(places), codec, tmp_path / "out", options).report
    assert (report.kept, report.kept_unlabelled) == (3 * NUM_OF_EACH, 0)
