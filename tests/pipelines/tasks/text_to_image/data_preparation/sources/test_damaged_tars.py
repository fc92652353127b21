"""Tars that are dirty, cut anywhere, hostile, or only look like tars: what can be read is, and the rest is named."""

import gzip
import random
import struct
import tarfile

import pytest
from captioned_files import JPEG, outcomes, read, sample_members, write_tar

from pipelines.tasks.text_to_image.data_preparation.filtering import DropReason
from pipelines.tasks.text_to_image.data_preparation.sources import tar_index, tar_source
from pipelines.tasks.text_to_image.data_preparation.sources.tar_source import TarSource


def many(number: int) -> list[tuple[str, bytes]]:
    return [member for index in range(number) for member in sample_members(f"{index:03d}")]


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
