"""Folders with links: each place once, in the same order, and no loop without end."""

from hub_tools.foreign.linked_folders import walk_once


def test_links_are_followed_once_and_never_to_what_is_walked_anyway_or_lies_above(tmp_path):
    root, far = tmp_path / "root", tmp_path / "far"
    for folder in (root / "own", far / "deep"):
        folder.mkdir(parents=True)
        (folder / "file").touch()
    (root / "broken").symlink_to(tmp_path / "nowhere")
    (root / "b").symlink_to(far)
    (root / "a").symlink_to(far / "deep")
    (root / "c").symlink_to(far)
    (root / "inside").symlink_to(root / "own")
    (root / "loop").symlink_to("loop")
    (far / "root").symlink_to("/")
    (far / "deep" / "self").symlink_to(far / "deep")
    assert list(walk_once(root)) == [
        ("", ["broken", "c", "inside", "loop"]),
        ("a/", ["file", "self"]),
        ("b/", ["root"]),
        ("own/", ["file"]),
    ]


def test_a_folder_that_is_itself_a_link_is_walked(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert list(walk_once(tmp_path / "link")) == [("", ["file"])]
