"""Datasets of the Hub as sources, streamed from the embedded one with the real client."""

import json
from pathlib import Path

import pytest

from pipelines.tasks.text_to_image.data_preparation.sources.hub_source import HubPlace

READER = Path(__file__).parents[5] / "support" / "hub_dataset_reader.py"

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("hub:org/name", HubPlace(repository="org/name")),
        ("org/name@v1:test", HubPlace(repository="org/name", revision="v1", split="test")),
        ("hub:org/name@refs/convert/parquet", HubPlace(repository="org/name", revision="refs/convert/parquet")),
        ("name", None),
        ("a/b/c", None),
        ("/org/name", None),
    ],
)
def test_a_place_on_the_hub_is_written_as_repository_revision_and_split(text, place):
    assert HubPlace.parse(text) == place


def test_a_dataset_with_pictures_in_parquet_is_streamed_file_by_file(commands):
    done = commands.run_program(READER, "parquet", "org/photographs")
    assert done.returncode == 0, done.stderr
    names, captions, is_whole = json.loads(done.stdout.splitlines()[-1])
    assert [name.partition(":")[2] for name in names] == ["train-00000-of-00002", "train-00001-of-00002"]
    assert captions == [f"short text {number}" for number in range(6)] and is_whole


def test_columns_are_the_publishers_choice(commands):
    done = commands.run_program(READER, "parquet", "org/photographs-2", "caption_column=LONG_text")
    assert json.loads(done.stdout.splitlines()[-1])[1] == [f"a long text {number}" for number in range(6)]
    done = commands.run_program(READER, "nothing", "org/photographs-2", "image_column=absent")
    assert "ValueError: org/photographs-2 has no column of pictures 'absent'" in done.stderr


def test_a_dataset_of_picture_files_is_streamed(commands):
    done = commands.run_program(READER, "folder", "org/picture-files")
    assert done.returncode == 0, done.stderr
    _, captions, is_whole = json.loads(done.stdout.splitlines()[-1])
    assert captions == [f"short text {number}" for number in range(3)] and is_whole


def test_what_is_not_there_is_named(commands):
    done = commands.run_program(READER, "nothing", "no/such/place")
    assert "FileNotFoundError: There is no no/such/place. Expected a tar" in done.stderr
    done = commands.run_program(READER, "nothing", "hub:org/photographs:validation")
    assert "has no split 'validation'. It has: train." in done.stderr
