"""Webdataset tars: whole, dirty, cut anywhere, and things that only look like tars. Every sample counts once."""

import gzip
import io
import json
import random
import struct
import tarfile

import pytest
from captioned_files import JPEG, outcomes, read, sample_members, write_tar

from pipelines.data_preparation.filtering import DropReason, FilterPolicy, drop_reason
from pipelines.data_preparation.reading.reading_options import ReadingOptions
from pipelines.data_preparation.sources import tar_index, tar_source
from pipelines.data_preparation.sources.sample import CaptionImage
from pipelines.data_preparation.sources.tar_source import TarSource


def samples_of(tmp_path, members, **options):
    samples, damages = read(TarSource(write_tar(tmp_path / "a.tar", members, **options)))
    assert damages == []
    return samples


def many(number: int) -> list[tuple[str, bytes]]:
    return [member for index in range(number) for member in sample_members(f"{index:03d}")]


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
        "pipe": (DropReason.UNKNOWN_KIND, ".json"),
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


@pytest.mark.parametrize("cut", [*range(512, 20 * 6 * 512, 1777), 512 * 3, 512 * 6, 512 * 12])
def test_a_tar_cut_anywhere_is_named_and_its_last_sample_counted(tmp_path, cut):
    path = write_tar(tmp_path / "00007.tar", many(20))
    path.write_bytes(path.read_bytes()[:cut])
    samples, (damage,) = read(TarSource(path))
    assert damage.num_samples_read == len(samples) and "later ones are lost" in str(damage)
    assert [sample.key for sample in samples] == [f"{index:03d}" for index in range(len(samples))]
    num_whole = sum(sample.fault is None for sample in samples)
    assert num_whole in (len(samples), len(samples) - 1)
    # A sample takes six blocks: a header and a block of content for each part.
    assert cut // (6 * 512) <= num_whole + 1 and num_whole <= -(-cut // (6 * 512))
    assert all(sample.fault is DropReason.INCOMPLETE for sample in samples[num_whole:])


def test_the_last_sample_of_a_cut_tar_is_not_kept_without_its_label(tmp_path):
    members = [*sample_members("000"), *sample_members("001", NSFW="NSFW")]
    path = write_tar(tmp_path / "a.tar", members)
    path.write_bytes(path.read_bytes()[: 10 * 512])
    assert outcomes(TarSource(path)) == {"kept": 1, "incomplete": 1}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"<!DOCTYPE html><html>404</html>" * 100, r"not a tar: it begins with b'<!DOCTYPE ht'"),
        (b"", r"not a tar: it has 0 bytes"),
        (b"version https://git-lfs", r"not a tar: it has 23 bytes"),
        (bytes(10240), "no members"),
        (bytes(2**20), "no members"),
        (bytes(512), "no end-of-archive mark"),
        (b"\x28\xb5\x2f\xfd" + bytes(600), "compressed with zstd, which is not read: unpack it"),
        (b"\x1f\x8b" + bytes(600), "damaged compression"),
        (b"PK\x03\x04" + bytes(600), "not a tar"),
    ],
    ids=["html", "empty", "pointer", "empty tar", "zeros", "one block", "zstd", "not gzip", "zip"],
)
def test_what_is_no_tar_is_named(tmp_path, content, message):
    (tmp_path / "a.tar").write_bytes(content)
    samples, (damage,) = read(TarSource(tmp_path / "a.tar"))
    assert samples == [] and damage.reason.startswith(message)


def test_tars_one_after_the_other_in_a_file_are_named(tmp_path):
    path = write_tar(tmp_path / "a.tar", sample_members("000"))
    path.write_bytes(path.read_bytes() + write_tar(tmp_path / "b.tar", sample_members("001")).read_bytes())
    (sample,), (damage,) = read(TarSource(path))
    assert sample.key == "000" and "data after the end-of-archive mark at byte 3072" in str(damage)


def test_a_damaged_header_in_the_middle_ends_the_tar_there(tmp_path):
    path = write_tar(tmp_path / "a.tar", many(4))
    content = bytearray(path.read_bytes())
    content[12 * 512 + 10] ^= 1
    path.write_bytes(content)
    samples, (damage,) = read(TarSource(path))
    assert len(samples) == 2 and damage.reason == "no header at byte 6144"


def header(name: bytes, size: bytes, type: bytes) -> bytes:
    """A header of which every field is as hostile as wanted."""
    block = bytearray(512)
    block[: len(name)], block[124:136], block[156:157] = name, size, type
    block[148:156] = b"        "
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (header(b"x", b"77777777777\0", b"L") + bytes(1024), "a name of 8589934591 bytes"),
        (header(b"x", b"77777777777\0", b"x") + bytes(1024), "a name of 8589934591 bytes"),
        ((header(b"x", b"00000000000\0", b"L")) * 5000, "more than 8 long names"),
        (header(b"a.jpg", b"\xff" * 12, b"0") + bytes(1024), "a member of -1 bytes"),
        (header(b"a.jpg", b"\x80" + b"\xff" * 11, b"0") + bytes(1024), "cut in a.jpg"),
        (header(b"a.jpg", b"00000000000\0", b"S")[:-512] + header(b"a.jpg", b"0" * 11 + b"\0", b"S")[:512], ""),
        (header(b"x", b"00000000000\0", b"L"), "no header after the long name"),
    ],
    ids=["long name", "pax", "chain", "negative", "huge", "sparse", "only a long name"],
)
def test_hostile_headers_cost_nothing(tmp_path, content, message):
    (tmp_path / "a.tar").write_bytes(content)
    samples, (damage,) = read(TarSource(tmp_path / "a.tar"))
    assert message in damage.reason
    assert all(sample.fault for sample in samples)


def test_sparse_members_are_counted_and_do_not_hide_the_next(tmp_path):
    sparse = bytearray(header(b"hole.jpg", b"00000000000\0", b"S"))
    sparse[148:156], sparse[483:495] = b"        ", b"77777777777\0"
    sparse[148:156] = b"%06o\0 " % sum(sparse)
    path = write_tar(tmp_path / "a.tar", sample_members("000"))
    path.write_bytes(bytes(sparse) + path.read_bytes())
    first, second = read(TarSource(path))[0]
    assert (first.fault, first.fault_detail) == (DropReason.UNREADABLE_FILE, "sparse file")
    assert second.key == "000" and second.fault is None


def test_a_tar_with_too_many_members_is_read_as_far_as_memory_allows(tmp_path, monkeypatch):
    monkeypatch.setattr(tar_index, "MOST_MEMBERS", 6)
    samples, (damage,) = read(TarSource(write_tar(tmp_path / "a.tar", many(3))))
    assert len(samples) == 2 and damage.reason == "more than 6 members"


@pytest.mark.parametrize(("suffix", "mode"), [(".tar.gz", "w:gz"), (".tbz2", "w:bz2"), (".tar.xz", "w:xz")])
def test_compressed_tars_are_read_and_their_truncation_is_named(tmp_path, suffix, mode):
    noise = random.Random(0)
    members = [(f"{index:03d}.jpg", JPEG + noise.randbytes(3000)) for index in range(400)]
    path = write_tar(tmp_path / f"a{suffix}", members, mode)
    assert len(read(TarSource(path))[0]) == 400
    path.write_bytes(path.read_bytes()[:-200_000])
    samples, (damage,) = read(TarSource(path))
    assert 0 < len(samples) < 400 and damage.reason.startswith("damaged compression")


def test_a_compressed_tar_is_known_by_its_content(tmp_path):
    path = write_tar(tmp_path / "a.tar", many(2), "w:gz")
    assert len(read(TarSource(path))[0]) == 2


def test_a_bomb_is_unpacked_up_to_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(tar_source, "LARGEST_UNPACKED_BYTES", 2**21)
    plain = write_tar(tmp_path / "plain", [*sample_members("000"), ("001.jpg", bytes(2**23))])
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(plain.read_bytes()))
    samples, (damage,) = read(TarSource(tmp_path / "a.tar.gz"))
    assert damage.reason == "more than 2097152 bytes unpacked"
    assert [sample.fault for sample in samples] == [None, DropReason.INCOMPLETE]


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


def dirty_tar(path, seed: int) -> int:
    """A tar of many kinds of dirt, shuffled as a whole; returns how many samples it has."""
    choose = random.Random(seed)
    members, num_samples = [], 0
    for index in range(choose.randrange(1, 60)):
        key = choose.choice((f"{index}", f"photo.{index}", f"d/{index}", f"caf\udce9{index}"))
        suffixes = choose.sample((".jpg", ".HEIC", ".txt", ".json", ".ogg"), choose.randrange(1, 6))
        num_pictures = sum(suffix in (".jpg", ".HEIC") for suffix in suffixes)
        num_samples += max(1, num_pictures)
        members += [
            (key + suffix, choose.choice((b"", b"nan", JPEG, b'{"nsfw": true}', b"\xff"))) for suffix in suffixes
        ]
    choose.shuffle(members)
    write_tar(path, members, format=choose.choice((tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)))
    return num_samples


@pytest.mark.parametrize("seed", range(40))
def test_kept_and_dropped_are_all_that_were_there(tmp_path, seed):
    path = tmp_path / "a.tar"
    num_samples = dirty_tar(path, seed)
    counts = outcomes(TarSource(path))
    assert sum(counts.values()) == num_samples


@pytest.mark.parametrize("seed", range(60))
def test_flipped_bytes_and_cuts_never_end_the_preparation(tmp_path, seed):
    path = tmp_path / "a.tar"
    dirty_tar(path, seed)
    choose = random.Random(seed)
    content = bytearray(path.read_bytes())
    for _ in range(choose.randrange(1, 8)):
        place = choose.randrange(len(content))
        content[place : place + 4] = struct.pack("<I", choose.randrange(2**32))
    path.write_bytes(content[: choose.randrange(len(content) // 2, len(content) + 1)])
    samples, damages = read(TarSource(path))
    assert samples or damages
    assert all(sample.key.isprintable() and len(sample.key) <= 520 for sample in samples)
