"""Duplicates: the same file, the same picture stored anew, and pictures that only resemble each other."""

import io

import numpy as np
import pyarrow.parquet as pq
import pytest
from captioned_files import write_files, write_tar
from PIL import Image, ImageDraw, ImageFilter

from pipelines.tasks.text_to_image.data_preparation.deduplication.duplicates import (
    DuplicatesList,
    DuplicatesReport,
    SourceWithoutDuplicates,
    find_duplicates,
)
from pipelines.tasks.text_to_image.data_preparation.deduplication.fingerprints import fingerprint
from pipelines.tasks.text_to_image.data_preparation.deduplication.neighbours import first_of_neighbours
from pipelines.tasks.text_to_image.data_preparation.filtering import FilterPolicy, FilterReport, drop_reason
from pipelines.tasks.text_to_image.data_preparation.sources.finding import find_sources


def photograph(seed: int, side: int = 256) -> Image.Image:
    """Soft random shapes, as different from each other as photographs are."""
    random = np.random.default_rng(seed)
    picture = Image.new("RGB", (side, side), tuple(random.integers(0, 255, 3).tolist()))
    draw = ImageDraw.Draw(picture)
    for _ in range(12):
        x, y, width, height = (random.random(4) * side).tolist()
        draw.ellipse((x, y, x + width, y + height), fill=tuple(random.integers(0, 255, 3).tolist()))
    return picture.filter(ImageFilter.GaussianBlur(side / 64))


def stored(picture: Image.Image, format: str = "PNG", **options) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, format, **options)
    return buffer.getvalue()


def star(shape: str, ground: str) -> bytes:
    picture = Image.new("RGB", (64, 64), ground)
    ImageDraw.Draw(picture).regular_polygon((32, 32, 24), 5, fill=shape)
    return stored(picture)


def distance(first: bytes, second: bytes) -> int:
    one, two = (np.frombuffer(fingerprint(content), np.uint8) for content in (first, second))
    return int(np.bitwise_count(one ^ two).sum())


@pytest.mark.parametrize("seed", range(8))
def test_a_picture_that_was_stored_anew_is_a_near_duplicate(seed):
    picture = photograph(seed)
    original = stored(picture)
    for again in (
        stored(picture, "JPEG", quality=80),
        stored(picture.resize((150, 150)), "PNG"),
        stored(picture.resize((400, 400)), "WEBP", quality=75),
    ):
        assert distance(original, again) <= 3


def test_other_pictures_and_other_colours_are_no_duplicates():
    pictures = [stored(photograph(seed)) for seed in range(12)]
    distances = [distance(one, two) for number, one in enumerate(pictures) for two in pictures[:number]]
    assert min(distances) > 3
    assert distance(star("red", "white"), star("blue", "white")) > 3


def test_pictures_without_structure_and_broken_ones_are_not_compared():
    assert fingerprint(stored(Image.new("RGB", (64, 64), "red"))) is None
    assert fingerprint(b"\xff\xd8\xff no picture") is None
    assert fingerprint(stored(Image.new("1", (10_000, 10_000)))) is None


def brute_force(fingerprints: np.ndarray, distance: int) -> list[int]:
    leaders: list[int] = []
    for number, one in enumerate(fingerprints):
        bits = np.bitwise_count(fingerprints[:number] ^ one).sum(axis=1)
        near = [other for other in np.flatnonzero(bits <= distance).tolist() if leaders[other] == other]
        same = np.flatnonzero(bits == 0).tolist()
        leaders.append(leaders[same[0]] if same else near[0] if near else number)
    return leaders


@pytest.mark.parametrize("largest", [0, 1, 3])
@pytest.mark.parametrize("seed", range(4))
def test_neighbours_are_those_of_the_plain_comparison(seed, largest):
    random = np.random.default_rng(seed)
    fingerprints = random.integers(0, 256, (300, 16), np.uint8)
    for _ in range(400):
        source, target, byte = random.integers(0, 300), random.integers(0, 300), random.integers(0, 16, 3)
        fingerprints[target] = fingerprints[source]
        fingerprints[target, byte] ^= np.left_shift(1, random.integers(0, 8, 3)).astype(np.uint8)
    fingerprints[7] = fingerprints[3] = 0
    assert first_of_neighbours(fingerprints, largest).tolist() == brute_force(fingerprints, largest)


@pytest.fixture
def places(tmp_path):
    """Ten pictures in a folder; in a tar some again: as they are, as JPEG, and with a caption that is dropped."""
    originals = {number: photograph(number) for number in range(10)}
    files = {f"{number}.png": stored(picture) for number, picture in originals.items()}
    write_files(tmp_path / "folder", {**files, **{f"{number}.txt": f"picture {number}" for number in originals}})
    members = [
        *[("same.png", files["3.png"]), ("same.txt", b"the same file")],
        *[("jpeg.jpg", stored(originals[4], "JPEG", quality=85)), ("jpeg.txt", b"stored anew")],
        *[("nan.png", stored(photograph(77))), ("nan.txt", b"nan")],
        *[("after.png", stored(photograph(77))), ("after.txt", b"the one before is dropped")],
        *[("new.png", stored(photograph(99))), ("new.txt", b"a new picture")],
        *[("again.jpg", stored(originals[4], "JPEG", quality=85)), ("again.txt", b"the same JPEG")],
    ]
    write_tar(tmp_path / "more.tar", members)
    return [tmp_path / "folder", tmp_path / "more.tar"]


def test_what_came_before_is_listed_and_left_out_with_its_reason(places, tmp_path):
    sources = find_sources(places)
    report = find_duplicates(sources, tmp_path / "out", FilterPolicy())
    filtered = FilterReport(kept=15, dropped={"placeholder_caption": 1})
    assert report == DuplicatesReport(num_exact=2, num_near=1, filtered=filtered)
    rows = pq.read_table(tmp_path / "out" / "duplicates.parquet").to_pylist()
    assert [(row["name"], row["reason"], row["duplicate_of"]) for row in rows] == [
        ("more.tar/same", "exact_duplicate", "folder/3.png"),
        ("more.tar/jpeg", "near_duplicate", "folder/4.png"),
        ("more.tar/again", "exact_duplicate", "folder/4.png"),
    ]
    duplicates = DuplicatesList(tmp_path / "out" / "duplicates.parquet")
    without = [SourceWithoutDuplicates(source, duplicates) for source in sources]
    assert all(duplicates.digest[:12] in source.name for source in without)
    reasons = {
        sample.key: reason
        for source in without
        for sample in source.samples()
        if (reason := drop_reason(sample, FilterPolicy()))
    }
    assert reasons == {
        "same": "exact_duplicate",
        "jpeg": "near_duplicate",
        "nan": "placeholder_caption",
        "again": "exact_duplicate",
    }


def test_fingerprints_are_kept_and_only_missing_ones_made(places, tmp_path):
    heard: list[int] = []
    sources = find_sources(places)
    first = find_duplicates(sources, tmp_path / "out", FilterPolicy(), num_workers=2, on_source=heard.append)
    content = (tmp_path / "out" / "duplicates.parquet").read_bytes()
    part = next((tmp_path / "out").glob("fingerprints-*.parquet"))
    part.unlink()
    assert find_duplicates(sources, tmp_path / "out", FilterPolicy(), on_source=heard.append) == first
    assert (tmp_path / "out" / "duplicates.parquet").read_bytes() == content and heard == [1, 2, 2]
    policy = FilterPolicy(keep_placeholders=True)
    assert find_duplicates(sources, tmp_path / "out", policy).num_compared == 16


def test_what_cannot_be_read_is_counted(tmp_path):
    files = {"a.png": stored(photograph(1)), "a.txt": "a picture", "b.png": b"", "c.txt": "of no picture"}
    place = write_files(tmp_path / "place", {**files, "page.tar": b"<html>"})
    report = find_duplicates(find_sources([place]), tmp_path / "out", FilterPolicy()).filtered
    assert (report.kept, report.dropped) == (1, {"missing_caption": 1, "missing_image": 1})
    assert "page.tar: not a tar" in report.damaged_sources[0]


def test_impossible_distances_and_absent_lists_are_refused(tmp_path):
    with pytest.raises(ValueError, match="distance is 4; expected 0 to 3 bits"):
        find_duplicates([], tmp_path, FilterPolicy(), distance=4)
    with pytest.raises(FileNotFoundError, match="dalle-collab data deduplicate SOURCES"):
        DuplicatesList(tmp_path / "absent.parquet")


def test_nothing_has_no_duplicates(tmp_path):
    assert find_duplicates([], tmp_path / "out", FilterPolicy()) == DuplicatesReport(
        num_exact=0, num_near=0, filtered=FilterReport()
    )
