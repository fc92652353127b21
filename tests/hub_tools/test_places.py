"""A place is a folder of this machine, or a repository of the Hub by its name's form."""

import pytest

from hub_tools.places import NoSuchPlaceError, is_repository_name, local_folder


def test_a_folder_is_found_and_a_repository_is_left_to_the_hub(tmp_path):
    assert local_folder(tmp_path, expected="a folder") == tmp_path
    assert local_folder("my-org/birds", revision="epoch-3", expected="a folder") is None


def test_a_folder_has_no_revision(tmp_path):
    with pytest.raises(ValueError, match="is a folder and has no revision 'epoch-3'"):
        local_folder(tmp_path, revision="epoch-3", expected="a folder")


@pytest.mark.parametrize("name", ["birds", "./birds", "/my-org/birds", "~/birds", "a/b/c", "my org/birds", "-a/b", ""])
def test_what_is_neither_is_refused_with_what_was_expected(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert not is_repository_name(name)
    if name:
        with pytest.raises(NoSuchPlaceError, match=f"There is no folder {name}. Expected a folder or ORG/RUN."):
            local_folder(name, expected="a folder or ORG/RUN")
