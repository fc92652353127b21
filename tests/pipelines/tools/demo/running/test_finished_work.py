import pytest

from pipelines.tools.demo.running.finished_work import FinishedWork, digest_of, remove


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "pictures" / "train").mkdir(parents=True)
    (tmp_path / "pictures" / "train" / "0.tar").write_bytes(b"a tar")
    (tmp_path / "grid.png").write_bytes(b"a grid")
    return tmp_path


def reread(folder):
    return FinishedWork(folder, folder / "work" / "finished.json")


def finish(folder, inputs="", result=None):
    reread(folder).add("pictures", inputs, [folder / "pictures", folder / "grid.png"], result)


def test_what_is_finished_is_found_by_the_next_process_with_its_result(folder):
    assert reread(folder).find("pictures") is None
    finish(folder, result=[["0.png"]])
    assert reread(folder).find("pictures").result == [["0.png"]]
    assert reread(folder).was_done("pictures") and not reread(folder).was_done("run")


@pytest.mark.parametrize("damage", [lambda file: file.unlink(), lambda file: file.write_bytes(b"a rat")])
def test_a_file_that_is_missing_or_other_than_it_was_written_makes_it_unfinished(folder, damage):
    finish(folder)
    damage(folder / "pictures" / "train" / "0.tar")
    assert reread(folder).find("pictures") is None and reread(folder).was_done("pictures")


def test_what_was_made_from_something_else_does_not_count(folder):
    finish(folder, inputs="commit 1")
    assert reread(folder).find("pictures", "commit 2") is None
    assert reread(folder).find("pictures", "commit 1") is not None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pieces": {"a": {}}, "seconds": {}}', '{"pieces": 1}', "null"])
def test_a_damaged_file_is_of_nothing_finished(folder, text):
    finish(folder)
    (folder / "work" / "finished.json").write_text(text)
    assert reread(folder).find("pictures") is None and reread(folder).seconds == {}


def test_the_digest_of_a_folder_is_of_names_and_contents(folder):
    before = digest_of(folder / "pictures")
    assert before == digest_of(folder / "pictures") and before != digest_of(folder)
    (folder / "pictures" / "train" / "0.tar").rename(folder / "pictures" / "train" / "1.tar")
    assert digest_of(folder / "pictures") != before


def test_removing_what_is_not_there_is_fine(folder):
    for path in (folder / "pictures", folder / "grid.png", folder / "absent"):
        remove(path)
        assert not path.exists()
