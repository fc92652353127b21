"""What a stranger has put into a repository: too much of it is named before it is taken; no text harms its reader."""

import gc
import json
import math

import pytest
from huggingface_hub import constants
from huggingface_hub.errors import EntryNotFoundError

from hub_tools.checks import is_number
from hub_tools.foreign import downloads
from hub_tools.foreign.downloads import TooLargeError, fetch_file, fetch_files, folder_of, listed_files
from hub_tools.foreign.json_texts import parse_json, read_json

HUGE = 10**400
LIMITS = dict(MOST_FILE_BYTES=2**20, MOST_BYTES=2**21, MOST_WEIGHTS_BYTES=2**22, MOST_ENTRIES=20)


@pytest.mark.parametrize("value", [0, -1.5, 2**63, 10**300, 1.7e308])
def test_a_number_is_what_a_float_holds(value):
    assert is_number(value)
    assert parse_json(json.dumps(value)) == value


@pytest.mark.parametrize("value", [HUGE, -HUGE, math.inf, -math.inf, math.nan, True, None, "1", [1], 1j])
def test_nothing_else_is_a_number(value):
    assert not is_number(value)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 10**5 + "]" * 10**5,
        '{"a":' * 10**5,
        str(HUGE),
        f"[-{HUGE}]",
        "1e999",
        "-Infinity",
        "9" * 5000,
        b"\xff",
        "",
    ],
    ids=["lists", "objects", "whole", "negative", "float", "infinite", "digits", "bytes", "nothing"],
)
def test_a_hostile_text_is_a_value_error(text):
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)


def test_no_finalizer_runs_where_a_nested_text_has_used_up_the_stack():
    begun, thresholds = [], gc.get_threshold()
    gc.callbacks.append(lambda phase, _: begun.append(phase))
    gc.set_threshold(1)
    try:
        with pytest.raises(ValueError, match=r"nested too deeply"):
            parse_json("[" * 10**5)
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.pop()
    assert len(begun) < 100  # of 1,000 lists in each other; what the test itself makes is collected
    assert gc.isenabled()


def test_a_float_that_is_no_number_is_still_read_and_a_file_has_a_size(tmp_path):
    (tmp_path / "state.json").write_text('{"loss": NaN, "epoch": 3}')
    values = read_json(tmp_path / "state.json")
    assert math.isnan(values["loss"]) and values["epoch"] == 3
    with pytest.raises(ValueError, match=r"state\.json has 25 bytes, expected at most 20"):
        read_json(tmp_path / "state.json", 20)


@pytest.fixture
def small_limits(monkeypatch, hub, tmp_path):
    """Limits a thousandth as large, an empty cache, and the Hub under test for functions that take none."""
    for name, value in LIMITS.items():
        monkeypatch.setattr(downloads, name, value)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    )
    return tmp_path / "cache"


def bytes_in(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def put(api, repo, **files):
    for name, size in files.items():
        content = bytes(size) + name.encode()
        api.upload_file(path_or_fileobj=content, path_in_repo=name.replace("__", "."), repo_id=repo)


def test_what_is_too_large_is_named_and_nothing_of_it_is_taken(api, repo, small_limits):
    put(api, repo, config__json=10, junk__json=2**20, model__safetensors=2**20)
    with pytest.raises(TooLargeError, match=r"junk\.json of org/\S+ has 10485\d\d bytes, expected at most 1048576"):
        fetch_files(repo, patterns=["*.json"])
    with pytest.raises(TooLargeError, match=r"junk\.json of "):
        fetch_file(repo, "junk.json")
    assert not small_limits.exists() or bytes_in(small_limits) < 2**10
    put(api, repo, other__safetensors=3 * 2**20 + 10)
    with pytest.raises(TooLargeError, match=r"What is needed of \S+ has 4194\d\d\d bytes in 2 files, expected"):
        fetch_files(repo, patterns=["*.safetensors"])
    assert not small_limits.exists() or bytes_in(small_limits) < 2**10


def test_the_rest_comes_as_before_and_is_found_again_by_the_branchs_name(api, repo, small_limits, monkeypatch):
    put(api, repo, config__json=10, model__safetensors=2**20, notes__txt=10)
    folder = fetch_files(repo, patterns=["*.json", "model*.safetensors"])
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert folder.name == api.model_info(repo).sha
    assert fetch_file(repo, "notes.txt") == folder / "notes.txt"
    with pytest.raises(EntryNotFoundError):
        fetch_file(repo, "nothing.txt")
    assert folder_of(folder, revision=None, patterns=["*"]) == folder
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert fetch_file(repo, "notes.txt") == folder / "notes.txt"
    assert fetch_files(repo, patterns=["*.json", "model*.safetensors"]) == folder


def test_a_repository_of_very_many_files_is_read_no_further(api, repo, small_limits):
    from huggingface_hub import CommitOperationAdd

    operations = [CommitOperationAdd(path_in_repo=f"part-{number}.json", path_or_fileobj=b"{}") for number in range(25)]
    api.create_commit(repo, operations, commit_message="many")
    with pytest.raises(TooLargeError, match=r"has more than 20 files and folders; none is read"):
        listed_files(repo, "main")
    with pytest.raises(TooLargeError, match=r"has more than 20 files"):
        fetch_files(repo, patterns=["part-1.json"])
