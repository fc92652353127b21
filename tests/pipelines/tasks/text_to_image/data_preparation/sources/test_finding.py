"""What a user names becomes sources, in order; nothing that is there is left out silently."""

import pytest
from captioned_files import JPEG, sample_members, write_files, write_tar

from pipelines.tasks.text_to_image.data_preparation.sources.finding import find_sources


def test_sources_are_found_in_order_and_partial_downloads_are_left_out(tmp_path):
    (tmp_path / "tars").mkdir()
    for name in ("00001.tar", "00000.TAR", ".00002.tar", "00003.tar.partial"):
        write_tar(tmp_path / "tars" / name, sample_members("000"))
    write_files(tmp_path, {"pictures/a.jpg": JPEG})
    sources = find_sources([tmp_path / "pictures", str(tmp_path / "tars"), tmp_path / "tars" / "00000.TAR"])
    assert [source.name for source in sources] == ["pictures", "00000.TAR", "00001.tar", "00000.TAR"]


def test_a_folder_may_have_tars_in_folders_and_pictures_beside_them(tmp_path):
    for name in ("x/0.tar", "y/0.tar"):
        (tmp_path / name).parent.mkdir()
        write_tar(tmp_path / name, sample_members("000"))
    write_files(tmp_path, {"a.jpg": JPEG, "a.txt": "a cat"})
    sources = find_sources([tmp_path])
    assert [source.name for source in sources] == ["x/0.tar", "y/0.tar", tmp_path.name]
    assert [len(list(source.samples())) for source in sources] == [1, 1, 1]


def test_tars_in_linked_folders_are_found_and_broken_links_are_damage(tmp_path):
    write_files(tmp_path / "elsewhere", {"a.jpg": JPEG, "a.txt": "a cat"})
    write_tar(tmp_path / "elsewhere" / "0.tar", sample_members("000"))
    source = tmp_path / "source"
    source.mkdir()
    (source / "more").symlink_to(tmp_path / "elsewhere")
    for name in ("1.tar", "2.parquet"):
        (source / name).symlink_to(tmp_path / "absent")
    found = {one.name: list(one.samples()) for one in find_sources([source])}
    assert list(found) == ["1.tar", "2.parquet", "more/0.tar", "source"]
    assert [len(samples) for samples in found.values()] == [1, 1, 1, 2]
    assert all("No such file" in str(found[name][0]) for name in ("1.tar", "2.parquet"))


def test_paths_with_nothing_to_read_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"There is no .*absent. Expected a tar, a Parquet file"):
        find_sources([tmp_path / "absent"])
    with pytest.raises(ValueError, match=r"has no tars .* and no pictures"):
        find_sources([tmp_path])
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(ValueError, match=r"notes.txt has no tars"):
        find_sources([tmp_path / "notes.txt"])
