"""A file is there whole or not at all."""

import threading

import pytest

from hub_tools.atomic_files import write_text_whole, written_whole


def test_the_old_file_stays_and_nothing_else_is_left_if_writing_fails(tmp_path):
    path = tmp_path / "birds.json"
    write_text_whole(path, "old\n")
    with pytest.raises(RuntimeError, match="the disk is full"), written_whole(path) as temporary:
        temporary.write_text("half a")
        raise RuntimeError("the disk is full")
    assert path.read_text() == "old\n" and list(tmp_path.iterdir()) == [path]


def test_the_new_file_is_seen_only_when_it_is_whole(tmp_path):
    path = tmp_path / "birds.json"
    with written_whole(path) as temporary:
        temporary.write_text("new, Zoë\n", encoding="utf-8")
        assert not path.exists() and temporary.name.startswith(".birds.json.")
    assert path.read_text(encoding="utf-8") == "new, Zoë\n" and list(tmp_path.iterdir()) == [path]


def test_threads_that_write_the_same_file_do_not_disturb_each_other(tmp_path):
    path, both_write = tmp_path / "birds.txt", threading.Barrier(2)

    def write(letter):
        with written_whole(path) as temporary:
            temporary.write_text(letter * 1000)
            both_write.wait(10)

    threads = [threading.Thread(target=write, args=(letter,)) for letter in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_text() in ("a" * 1000, "b" * 1000) and list(tmp_path.iterdir()) == [path]
