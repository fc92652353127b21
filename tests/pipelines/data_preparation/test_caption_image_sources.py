"""Sources: img2dataset's tars and folders of pictures, whole, dirty and cut off."""

import io
import json
import tarfile

import pytest

from pipelines.data_preparation.caption_image_sources import (
    CaptionImage,
    FolderSource,
    SourceDamage,
    TarSource,
    find_sources,
)


def write_tar(path, members: list[tuple[str, bytes]], mode: str = "w") -> None:
    with tarfile.open(path, mode) as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def sample_members(key: str, caption: str = "a red star", **fields) -> list[tuple[str, bytes]]:
    metadata = {"NSFW": "UNLIKELY", "similarity": 0.31, "original_width": 640, "original_height": 480, **fields}
    return [
        (f"{key}.jpg", f"picture {key}".encode()),
        (f"{key}.txt", caption.encode()),
        (f"{key}.json", json.dumps(metadata).encode()),
    ]


def test_a_tar_gives_its_samples_with_laions_fields(tmp_path):
    write_tar(tmp_path / "00000.tar", [*sample_members("000"), *sample_members("001", "ein Stern", NSFW=None)])
    first, second = TarSource(tmp_path / "00000.tar").samples()
    assert first == CaptionImage(
        key="000",
        source="00000.tar",
        caption="a red star",
        image_bytes=b"picture 000",
        nsfw="UNLIKELY",
        similarity=0.31,
        original_width=640,
        original_height=480,
    )
    assert (second.key, second.caption, second.nsfw) == ("001", "ein Stern", None)


def test_samples_lacking_a_picture_a_caption_or_whole_metadata_are_still_named(tmp_path):
    members = [
        ("000.txt", b"no picture"),
        ("001.png", b"picture"),
        ("002.webp", b"picture"),
        ("002.json", b"{damaged"),
        ("003.jpg", b"picture"),
        ("003.json", b'{"caption": "from the metadata", "similarity": "?", "original_width": "640.0"}'),
    ]
    write_tar(tmp_path / "a.tar", members)
    samples = list(TarSource(tmp_path / "a.tar").samples())
    assert [(sample.key, sample.caption, sample.image_bytes) for sample in samples] == [
        ("000", "no picture", None),
        ("001", None, b"picture"),
        ("002", None, b"picture"),
        ("003", "from the metadata", b"picture"),
    ]
    assert samples[3].similarity is None and samples[3].original_width == 640


def test_member_names_never_become_paths_and_links_are_ignored(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        link = tarfile.TarInfo("link.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
        for name, content in sample_members("../../outside"):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    (sample,) = TarSource(tmp_path / "a.tar").samples()
    assert sample.key == "../../outside" and sample.image_bytes == b"picture ../../outside"
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar"]


@pytest.mark.parametrize("share", [0.3, 0.5, 0.77])
def test_what_can_be_read_of_a_truncated_tar_is_read_and_the_loss_is_named(tmp_path, share):
    path = tmp_path / "00007.tar"
    write_tar(path, [member for index in range(20) for member in sample_members(f"{index:03d}")])
    path.write_bytes(path.read_bytes()[: int(20 * 6 * 512 * share)])
    *samples, damage = TarSource(path).samples()
    assert isinstance(damage, SourceDamage) and damage.num_samples_read == len(samples)
    assert abs(len(samples) - 20 * share) <= 1
    assert [sample.key for sample in samples] == [f"{index:03d}" for index in range(len(samples))]
    assert all(sample.caption and sample.image_bytes for sample in samples)
    assert str(damage).startswith("00007.tar: ") and "later ones are lost" in str(damage)


def test_a_tar_cut_exactly_between_members_is_noticed(tmp_path):
    path = tmp_path / "a.tar"
    write_tar(path, [member for index in range(4) for member in sample_members(f"{index:03d}")])
    path.write_bytes(path.read_bytes()[: 2 * 6 * 512])
    *samples, damage = TarSource(path).samples()
    assert len(samples) == 2
    assert str(damage) == "a.tar: no end-of-archive mark; 2 samples were read, later ones are lost"


def test_a_file_that_is_no_tar_is_damage_without_samples(tmp_path):
    (tmp_path / "a.tar").write_bytes(b"<html>404</html>" * 100)
    (damage,) = TarSource(tmp_path / "a.tar").samples()
    assert isinstance(damage, SourceDamage) and damage.num_samples_read == 0


def test_compressed_tars_are_read_and_their_truncation_is_noticed(tmp_path):
    path = tmp_path / "a.tar.gz"
    write_tar(path, [member for index in range(50) for member in sample_members(f"{index:03d}")], "w:gz")
    assert len(list(TarSource(path).samples())) == 50
    path.write_bytes(path.read_bytes()[:-200])
    *samples, damage = TarSource(path).samples()
    assert isinstance(damage, SourceDamage) and 0 < len(samples) < 50


def test_a_folder_takes_captions_from_text_files_and_tables(tmp_path):
    (tmp_path / "deep").mkdir()
    for name in ("b.jpg", "deep/a.png", "c.webp"):
        (tmp_path / name).write_bytes(name.encode())
    (tmp_path / "b.txt").write_text("from a text file\n")
    rows = [
        {"file_name": "deep/a.png", "text": "from the table", "NSFW": "UNLIKELY"},
        {"file_name": "absent.jpg", "text": "its picture is lost"},
        {"file_name": "../outside.jpg", "text": "never read"},
    ]
    (tmp_path / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path.parent / "outside.jpg").write_bytes(b"secret")
    samples = {sample.key: sample for sample in FolderSource(tmp_path).samples()}
    assert list(samples) == ["b.jpg", "c.webp", "deep/a.png", "../outside.jpg", "absent.jpg"]
    assert samples["b.jpg"].caption == "from a text file"
    assert samples["c.webp"].caption is None
    assert (samples["deep/a.png"].caption, samples["deep/a.png"].nsfw) == ("from the table", "UNLIKELY")
    assert samples["absent.jpg"].image_bytes is None
    assert samples["../outside.jpg"].image_bytes is None


@pytest.mark.parametrize(
    ("content", "caption"),
    [
        ("A rat.\nde.utf8=Eine Ratte.\nel.utf8=Ένας αρουραίος.\n".encode(), "A rat."),
        (b"\n  \r\nAn owl.\r\nde.utf8=Eine Eule.\r\n", "An owl."),
        ("Wellensittich, grün".encode("utf-8-sig"), "Wellensittich, grün"),
        ("grün".encode("latin-1"), "gr\N{REPLACEMENT CHARACTER}n"),
        (b"", ""),
    ],
    ids=["translations", "empty lines first", "byte order mark", "not UTF-8", "empty"],
)
def test_the_caption_is_the_first_line_of_a_text_file(tmp_path, content, caption):
    (tmp_path / "a b (1).PNG").write_bytes(b"picture")
    (tmp_path / "a b (1).txt").write_bytes(content)
    (sample,) = FolderSource(tmp_path).samples()
    assert (sample.key, sample.caption) == ("a b (1).PNG", caption)


def test_pictures_in_formats_that_are_not_read_are_counted(tmp_path):
    for name in ("a.png", "b.svg", "deep/c.SVG", "d.gif", "d.txt", "sound.ogg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "folder.svg").mkdir()
    assert FolderSource(tmp_path).not_read == {".svg": 2, ".gif": 1}


def test_a_csv_table_names_captions_too(tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"a")
    (tmp_path / "captions.csv").write_text('file,caption\na.jpg,"a star, red"\n')
    (sample,) = FolderSource(tmp_path).samples()
    assert sample.caption == "a star, red"


def test_sources_are_found_in_order_and_partial_downloads_are_left_out(tmp_path):
    (tmp_path / "tars").mkdir()
    for name in ("00001.tar", "00000.tar", ".00002.tar", "00003.tar.partial"):
        write_tar(tmp_path / "tars" / name, sample_members("000"))
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "a.jpg").write_bytes(b"a")
    sources = find_sources([tmp_path / "pictures", tmp_path / "tars", tmp_path / "tars" / "00000.tar"])
    assert [source.name for source in sources] == ["pictures", "00000.tar", "00001.tar", "00000.tar"]


def test_paths_with_nothing_to_read_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"There is no .*absent. Expected a tar, a folder of tars"):
        find_sources([tmp_path / "absent"])
    with pytest.raises(ValueError, match=r"has no tars .* and no pictures"):
        find_sources([tmp_path])
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(ValueError, match=r"notes.txt has no tars"):
        find_sources([tmp_path / "notes.txt"])
