"""Webdataset tars: what belongs together, what is too large or not read. Every sample counts once."""

import io
import json
import tarfile

import pytest
from captioned_files import JPEG, read, sample_members, write_tar

from pipelines.tasks.text_to_image.data_preparation.filtering import DropReason, FilterPolicy, drop_reason
from pipelines.tasks.text_to_image.data_preparation.reading.reading_options import ReadingOptions
from pipelines.tasks.text_to_image.data_preparation.sources.sample import CaptionImage
from pipelines.tasks.text_to_image.data_preparation.sources.tar_source import TarSource


def samples_of(tmp_path, members, **options):
    samples, damages = read(TarSource(write_tar(tmp_path / "a.tar", members, **options)))
    assert damages == []
    return samples


def test_a_tar_gives_its_samples_with_laions_fields(tmp_path):
    first, second = samples_of(tmp_path, [*sample_members("000"), *sample_members("001", "ein Stern", NSFW=None)])
    assert first == CaptionImage(
        key="000",
        source="a.tar",
        caption="a red star",
        image_bytes=JPEG + b"picture 000",
        nsfw="UNLIKELY",
        similarity=0.31,
        original_width=640,
        original_height=480,
    )
    assert (second.key, second.caption, second.nsfw) == ("001", "ein Stern", None)


def test_samples_lacking_parts_are_still_named(tmp_path):
    members = [
        ("000.txt", b"no picture"),
        ("001.png", JPEG),
        ("002.webp", JPEG),
        ("002.json", b"{damaged"),
        ("003.jpg", JPEG),
        ("003.json", b'{"caption": "from the metadata", "similarity": "?", "original_width": "640.0"}'),
        ("004.json", b'{"Alt_Text": "metadata alone"}'),
    ]
    samples = samples_of(tmp_path, members)
    assert [(sample.key, sample.caption, sample.image_bytes) for sample in samples] == [
        ("000", "no picture", None),
        ("001", None, JPEG),
        ("002", None, JPEG),
        ("003", "from the metadata", JPEG),
        ("004", "metadata alone", None),
    ]
    assert [drop_reason(sample, FilterPolicy()) for sample in samples] == [
        *(DropReason.MISSING_IMAGE, DropReason.MISSING_CAPTION, DropReason.DAMAGED_METADATA),
        *(None, DropReason.MISSING_IMAGE),
    ]


PICTURES = [("a.jpg", JPEG + b"1"), ("b.jpg", JPEG + b"2")]
TEXTS = [("a.txt", b"one"), ("b.txt", b"two")]


@pytest.mark.parametrize(
    ("members", "found"),
    [
        ([*PICTURES, *TEXTS], [("a", "one", "1"), ("b", "two", "2")]),
        ([*TEXTS, *reversed(PICTURES)], [("a", "one", "1"), ("b", "two", "2")]),
        (
            [("photo.1.jpg", JPEG + b"1"), ("photo.1.txt", b"one"), ("photo.2.jpg", JPEG + b"2")],
            [("photo.1", "one", "1"), ("photo.2", None, "2")],
        ),
        (
            [("a.jpg", JPEG + b"1"), ("a.txt", b"one"), ("a.jpg", JPEG + b"2"), ("a.txt", b"two")],
            [("a", "one", "1"), ("a##2", "two", "2")],
        ),
        (
            [("a.jpg", JPEG + b"1"), ("a.jpg", JPEG + b"2"), ("a.txt", b"one"), ("a.txt", b"two")],
            [("a", "one", "1"), ("a##2", "two", "2")],
        ),
        ([PICTURES[0], PICTURES[0], TEXTS[0]], [("a", None, "1"), ("a##2", "one", "1")]),
        ([PICTURES[0], ("a.JPG", JPEG + b"2"), TEXTS[0]], [("a", "one", "1"), ("a#2", "one", "2")]),
        ([("A.JPEG", JPEG + b"1"), ("A.TXT", b"one")], [("A", "one", "1")]),
        ([("./x/a.jpg", JPEG + b"1"), ("x/a.txt", b"one")], [("x/a", "one", "1")]),
        ([("a.jpg", JPEG + b"1"), ("a.jpg.txt", b"one")], [("a", "one", "1")]),
        ([("x/a.jpg", JPEG + b"1"), ("y/a.txt", b"one")], [("x/a", None, "1"), ("y/a", "one", None)]),
        ([("a.jpg", JPEG + b"1"), ("a.cls", b"7"), ("a.txt", b"one")], [("a", "one", "1")]),
        ([("..jpg", JPEG + b"1"), (".jpg", JPEG + b"2")], [(".", None, None), (".jpg", None, None)]),
        ([("../../etc/a.jpg", JPEG + b"1"), ("../../etc/a.txt", b"one")], [("../../etc/a", "one", "1")]),
        ([("a\n\x1b[31m.jpg", JPEG + b"1")], [("a\\n\\x1b[31m", None, "1")]),
    ],
    ids=[
        *("apart", "texts first", "dots", "same key twice", "same key twice and apart", "same key, one text"),
        *("two pictures of one name", "capitals", "dot and slash", "named after the picture", "other folders"),
        *("members of unknown kinds", "no names", "paths that lead outside", "controls"),
    ],
)
def test_members_belong_together_by_their_names(tmp_path, members, found):
    samples = samples_of(tmp_path, members)
    seen = [(sample.key, sample.caption, (sample.image_bytes or b"")[3:].decode() or None) for sample in samples]
    assert seen == found
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar"]


@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_names_that_are_long_or_no_utf8_become_readable_keys(tmp_path, format):
    latin = b"caf\xe9".decode("utf-8", "surrogateescape")
    long = "d/" * 600 + "x"
    members = [(f"{key}{suffix}", body) for key in (latin, long) for suffix, body in ((".jpg", JPEG), (".txt", b"one"))]
    first, second = samples_of(tmp_path, members, format=format)
    assert first.key == r"caf\xe9" and first.caption == second.caption == "one"
    assert len(second.key) == 512 and second.key.startswith("d/d/")


def special(name: str, type: bytes, **fields) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = type
    for field, value in fields.items():
        setattr(info, field, value)
    return info


def test_links_devices_and_what_belongs_to_no_sample_are_counted(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.addfile(special("link.jpg", tarfile.SYMTYPE, linkname="/etc/passwd"))
        tar.addfile(special("hard.txt", tarfile.LNKTYPE, linkname="link.jpg"))
        tar.addfile(special("pipe.json", tarfile.FIFOTYPE))
        tar.addfile(special("disk.png", tarfile.BLKTYPE))
        tar.addfile(special("folder.jpg", tarfile.DIRTYPE))
        for name in ("README", "._a.jpg", "__MACOSX/a.jpg", "Thumbs.db", "a.npy"):
            tar.addfile(special(name, tarfile.REGTYPE))
    samples, damages = read(TarSource(tmp_path / "a.tar"))
    assert damages == []
    assert {sample.key: (sample.fault, sample.fault_detail) for sample in samples} == {
        "link": (DropReason.UNREADABLE_FILE, "link"),
        "hard": (DropReason.UNREADABLE_FILE, "link"),
        "pipe": (DropReason.UNKNOWN_KIND, "device"),
        "disk": (DropReason.UNREADABLE_FILE, "device"),
        "README": (DropReason.UNKNOWN_KIND, "no suffix"),
        "._a": (DropReason.UNKNOWN_KIND, ".jpg"),
        "__MACOSX/a": (DropReason.UNKNOWN_KIND, ".jpg"),
        "Thumbs": (DropReason.UNKNOWN_KIND, ".db"),
        "a": (DropReason.UNKNOWN_KIND, ".npy"),
    }


def test_members_that_are_too_large_are_counted_and_not_read(tmp_path):
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as tar:
        for name, size in (("a.jpg", 2**26 + 1), ("a.txt", 0), ("b.jpg", 3), ("b.json", 2**22 + 1)):
            info = tarfile.TarInfo(name)
            info.size = size
            tar.addfile(info, io.BytesIO(bytes(size)))
    first, second = read(TarSource(path))[0]
    assert (first.fault, first.fault_detail, first.image_bytes) == (DropReason.TOO_LARGE, "picture", None)
    assert (second.fault, second.fault_detail) == (DropReason.DAMAGED_METADATA, "no JSON object")


@pytest.mark.parametrize(
    ("suffix", "content", "detail"),
    [
        (".heic", b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "HEIC"),
        (".jpg", b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "HEIC"),
        (".JXL", b"\xff\x0a", "JPEG XL"),
        (".svg", b"<?xml version='1.0'?>\n<svg xmlns='http://www.w3.org/2000/svg'/>", "SVG"),
        (".png", b"  <svg/>", "SVG"),
        (".psd", b"8BPS", "PSD"),
        (".CR2", b"RAW", ".cr2"),
        (".pdf", b"%PDF-1.7", "PDF"),
    ],
)
def test_formats_that_are_not_read_are_told_from_missing_pictures(tmp_path, suffix, content, detail):
    (sample,) = samples_of(tmp_path, [(f"a{suffix}", content), ("a.txt", b"a caption")])
    assert (sample.fault, sample.fault_detail) == (DropReason.UNSUPPORTED_FORMAT, detail)


@pytest.mark.parametrize(
    ("suffix", "content"),
    [
        *((".gif", b"GIF89a"), (".BMP", b"BM"), (".tiff", b"II*\0"), (".tif", b"MM\0*"), (".jfif", JPEG)),
        *(
            (".avif", b"\0\0\0\x1cftypavif\0\0\0\0mif1"),
            (".jpe", JPEG),
            (".webp", b"RIFF\0\0\0\0WEBP"),
            (".heic", JPEG),
        ),
        (".avif", b"\0\0\0\x20ftypmif1\0\0\0\0mif1avifmiaf"),
    ],
)
def test_formats_that_are_read_go_by_content(tmp_path, suffix, content):
    (sample,) = samples_of(tmp_path, [(f"a{suffix}", content), ("a.txt", b"a caption")])
    assert (sample.fault, sample.image_bytes) == (None, content)


@pytest.mark.parametrize(
    ("metadata", "fault"),
    [
        (b"{" * 100_000, DropReason.DAMAGED_METADATA),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, DropReason.DAMAGED_METADATA),
        (b'{"original_width": ' + b"9" * 5000 + b"}", DropReason.DAMAGED_METADATA),
        (b"[1, 2]", DropReason.DAMAGED_METADATA),
        (b'{"nsfw": "NSFW", "nsfw": ""}', DropReason.DAMAGED_METADATA),
        (b"", DropReason.DAMAGED_METADATA),
        (b"\xff\xff\xff", DropReason.DAMAGED_METADATA),
        (b'{"original_width": 1000000000000, "original_height": 3, "similarity": NaN}', None),
        (b'{"original_width": -5, "original_height": "x", "similarity": 31.2}', None),
        (json.dumps({"NSFW": "UNLIKELY"}).encode("utf-16"), None),
        (json.dumps({"NSFW": "UNLIKELY"}).encode("utf-8-sig"), None),
        (b'{"key": "\\ud800", "caption": 7}', None),
    ],
)
def test_metadata_never_ends_the_preparation(tmp_path, metadata, fault):
    (sample,) = samples_of(tmp_path, [("a.jpg", JPEG), ("a.txt", b"a caption"), ("a.json", metadata)])
    assert (sample.fault, sample.original_width, sample.similarity) == (fault, None, None)
    assert sample.nsfw == ("UNLIKELY" if b"U" in metadata else None)


def test_the_publisher_chooses_column_and_lines(tmp_path):
    members = [
        ("a.jpg", JPEG),
        ("a.txt", b"one\ntwo\n"),
        ("a.json", b'{"BLIP caption": "better", "caption": "worse"}'),
    ]
    path = write_tar(tmp_path / "a.tar", members)
    for options, caption in (
        ({}, "one\ntwo"),
        ({"caption_lines": "first"}, "one"),
        ({"caption_lines": "join"}, "one two"),
        ({"caption_column": "blip_caption"}, "better"),
    ):
        ((sample,), _) = read(TarSource(path, ReadingOptions(**options)))
        assert sample.caption == caption
