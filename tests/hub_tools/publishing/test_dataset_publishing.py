"""`hub-tools publish dataset`: checked shards, a card, one commit, and a dataset that anybody can stream."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from hub_tools.publishing.dataset_card import dataset_card
from hub_tools.publishing.dataset_publishing import ShardError, inspect_shards

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

NUM_CODES = 4


def write_shard(path, num_rows, *, first=0, fingerprint="0123456789abcdef", codes_type=None):
    """A shard in the published schema, as the data pipeline writes it."""
    schema = pa.schema(
        [("caption", pa.string()), ("codes", codes_type or pa.list_(pa.int16())), ("key", pa.string())],
        metadata={
            "dalle_collab.format_version": "1",
            "dalle_collab.codec_fingerprint": fingerprint,
            "dalle_collab.codebook_size": "512",
            "dalle_collab.grid_size": "2",
        },
    )
    numbers = range(first, first + num_rows)
    columns = {
        "caption": [f"caption {number}" for number in numbers],
        "codes": [np.full(NUM_CODES, number % 512, np.int16).tolist() for number in numbers],
        "key": [f"{number:05}" for number in numbers],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table(columns, schema=schema)
    pq.write_table(table, path, compression="brotli", compression_level=5, row_group_size=64)


@pytest.fixture
def shards(tmp_path):
    """A folder of two shards with 150 records."""
    write_shard(tmp_path / "shards/train-00000.parquet", 100)
    write_shard(tmp_path / "shards/train-00001.parquet", 50, first=100)
    return tmp_path / "shards"


def publish(run_client, token, *arguments, check=True):
    return run_client("hub-tools", "publish", "dataset", *map(str, arguments), token=token, check=check)


def test_the_card_credits_who_made_the_pictures_if_that_is_said(shards):
    dataset = inspect_shards(shards)
    card = dataset_card(dataset, "org/birds", license="cc-by-4.0", credits="Photographs: A. Finch, CC BY 4.0\n")
    assert card.endswith("\n\n## Credits\n\nPhotographs: A. Finch, CC BY 4.0\n")
    assert "Credits" not in dataset_card(dataset, "org/birds", license="cc-by-4.0", credits=" ")


@pytest.mark.slow
def test_a_published_dataset_streams_and_a_second_publication_changes_nothing(run_client, api, tokens, repo_id, shards):
    said = publish(run_client, tokens.alice, shards, repo_id, "--license", "cc-by-4.0").stdout
    assert "2 shards, 150 records" in said
    info = api.dataset_info(repo_id)
    assert said.strip().endswith(info.sha)
    assert len(api.list_repo_commits(repo_id, repo_type="dataset")) == 2
    files = api.list_repo_files(repo_id, repo_type="dataset")
    assert files == [".gitattributes", "README.md", "data/train-00000.parquet", "data/train-00001.parquet"]

    again = publish(run_client, tokens.alice, shards, repo_id, "--license", "cc-by-4.0").stdout
    assert "Nothing to do" in again
    assert api.dataset_info(repo_id).sha == info.sha

    code = (
        "import json, sys, datasets\n"
        f"stream = datasets.load_dataset({repo_id!r}, split='train', streaming=True)\n"
        "rows = list(stream)\n"
        "print(json.dumps([len(rows), rows[0], rows[-1], str(stream.features['codes'])]))\n"
        f"whole = datasets.load_dataset({repo_id!r}, split='train')\n"
        "assert whole.num_rows == 150 and whole[149] == rows[-1]\n"
    )
    num_rows, first, last, codes = json.loads(run_client(code=code).stdout.splitlines()[-1])
    assert num_rows == 150
    assert first == {"caption": "caption 0", "codes": [0] * NUM_CODES, "key": "00000"}
    assert last == {"caption": "caption 149", "codes": [149] * NUM_CODES, "key": "00149"}
    assert "int16" in codes


@pytest.mark.slow
def test_the_card_says_what_is_in_the_dataset(run_client, hub, api, tokens, repo_id, shards):
    write_shard(shards / "test-00000.parquet", 10)
    publish(run_client, tokens.alice, shards, repo_id, "--private", "--message", "my title")
    assert api.dataset_info(repo_id).private is True
    assert api.list_repo_commits(repo_id, repo_type="dataset")[0].title == "my title"
    with open(api.hf_hub_download(repo_id, "README.md", repo_type="dataset")) as file:  # noqa: PTH123
        card = file.read()
    data = yaml.safe_load(card.split("---")[1])
    num_bytes = sum(path.stat().st_size for path in shards.glob("*.parquet"))
    assert data["configs"][0]["data_files"] == [
        {"split": "train", "path": "data/train-*.parquet"},
        {"split": "test", "path": "data/test-*.parquet"},
    ]
    assert data["dataset_info"]["features"][1] == {"name": "codes", "list": "int16"}
    assert [(split["name"], split["num_examples"]) for split in data["dataset_info"]["splits"]] == [
        ("train", 150),
        ("test", 10),
    ]
    assert data["dataset_info"]["download_size"] == num_bytes
    assert data["size_categories"] == ["n<1K"]
    for words in ("160 records in 3 Parquet shards", "0123456789abcdef", "streaming=True", f'load_dataset("{repo_id}"'):
        assert words in card

    (shards / "test-00000.parquet").unlink()
    publish(run_client, tokens.alice, shards, repo_id, "--private")
    assert "data/test-00000.parquet" not in api.list_repo_files(repo_id, repo_type="dataset")


@pytest.mark.slow
def test_mistakes_in_publishing_give_one_line_and_change_nothing(run_client, api, client, tokens, repo_id, shards):
    api.create_repo(repo_id, repo_type="dataset")
    head = api.dataset_info(repo_id).sha
    cases = [
        ("hf_wrong", repo_id, "refuses the token"),
        (None, repo_id, "HF_TOKEN"),
        (tokens.carol, repo_id, "has role read"),
        (tokens.alice, "no such name!", "no such name!"),
    ]
    for token, name, words in cases:
        done = publish(run_client, token, shards, name, check=False)
        assert done.returncode == 1
        (line,) = done.stderr.strip().splitlines()
        assert line.startswith("hub-tools: ")
        assert words in line
        assert token is None or token not in line
    public = publish(run_client, tokens.alice, shards, repo_id, "--private", check=False)
    assert "is public, --private expects a private one" in public.stderr
    assert api.dataset_info(repo_id).sha == head


def test_a_truncated_shard_is_named_with_its_cure(shards):
    whole = (shards / "train-00001.parquet").read_bytes()
    (shards / "train-00001.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ShardError, match=r"train-00001.parquet cannot be read .* dalle-collab data prepare"):
        inspect_shards(shards)


def test_a_shard_with_damaged_bytes_in_the_middle_is_named(shards):
    whole = bytearray((shards / "train-00000.parquet").read_bytes())
    whole[4:200] = bytes(196)
    (shards / "train-00000.parquet").write_bytes(whole)
    with pytest.raises(ShardError, match=r"train-00000.parquet cannot be read"):
        inspect_shards(shards)


def test_a_folder_without_shards_is_refused(tmp_path):
    (tmp_path / ".unfinished").mkdir()
    write_shard(tmp_path / ".unfinished/train-00000.parquet", 1)
    with pytest.raises(ShardError, match=r"no .parquet files, expected shards"):
        inspect_shards(tmp_path)


def test_shards_of_two_codecs_or_two_schemas_are_not_one_dataset(shards):
    write_shard(shards / "train-00002.parquet", 10, fingerprint="f" * 16)
    with pytest.raises(ShardError, match="one dataset has one codec"):
        inspect_shards(shards)
    write_shard(shards / "train-00002.parquet", 10, codes_type=pa.list_(pa.int32()))
    with pytest.raises(ShardError, match="Publish them as two datasets"):
        inspect_shards(shards)


def test_progress_counts_every_shard(shards):
    seen = []
    summary = inspect_shards(shards, lambda done, total: seen.append((done, total)))
    assert seen == [(1, 2), (2, 2)]
    assert (summary.num_rows, summary.metadata["codec_fingerprint"]) == (150, "0123456789abcdef")
