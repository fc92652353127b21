"""`hub-tools publish dataset`: checked shards, a card, one commit, and a dataset that anybody can stream."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from hub_tools.publishing.dataset_card import dataset_card
from hub_tools.publishing.dataset_publishing import ShardError, inspect_shards
from hub_tools.publishing.folder_publishing import publish_folder

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
    card = dataset_card(dataset, "org/finches", license="cc-by-4.0", credits="Photographs: A. Finch, CC BY 4.0\n")
    assert card.endswith("\n\n## Credits\n\nPhotographs: A. Finch, CC BY 4.0\n")
    assert "Credits" not in dataset_card(dataset, "org/finches", license="cc-by-4.0", credits=" ")


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


PUBLISH_IN_PARTS = """
import sys
from pathlib import Path
from hub_tools.endpoint import prepare_hub_client
from hub_tools.publishing import dataset_publishing as publishing
prepare_hub_client()
publishing.MOST_FILES_PER_COMMIT = 3
stop_at = {stop_at}
def on_shard(done, total):
    if done == stop_at:
        raise KeyboardInterrupt
print(publishing.publish_checked_dataset(publishing.inspect_shards(Path({folder!r})), {repo_id!r}, on_shard=on_shard))
"""


@pytest.mark.slow
def test_many_shards_go_in_bounded_commits_and_a_stopped_publication_goes_on(run_client, api, tokens, repo_id, shards):
    for number in range(2, 8):
        write_shard(shards / f"train-{number:05}.parquet", 5, first=10 * number)

    def publish_in_parts(stop_at=None, check=True):
        code = PUBLISH_IN_PARTS.format(stop_at=stop_at, folder=str(shards), repo_id=repo_id)
        return run_client(code=code, token=tokens.alice, check=check)

    def titles():
        return [commit.title for commit in api.list_repo_commits(repo_id, repo_type="dataset")][:-1][::-1]

    def changes():
        tree = api.list_repo_tree(repo_id, "data", repo_type="dataset", expand=True)
        return {file.path: file.last_commit.title for file in tree}

    assert publish_in_parts(stop_at=5, check=False).returncode != 0
    assert titles() == ["Publish 180 records in 8 shards, part 1"] and len(changes()) == 3
    publish_in_parts()
    assert titles()[1:] == ["Publish 180 records in 8 shards, part 1", "Publish 180 records in 8 shards, part 2"]
    assert "Nothing to do" in publish(run_client, tokens.alice, shards, repo_id).stdout

    before = changes()
    write_shard(shards / "train-00008.parquet", 7, first=500)
    publish(run_client, tokens.alice, shards, repo_id)
    after = changes()
    assert {path: title for path, title in after.items() if path in before} == before
    assert after["data/train-00008.parquet"] == titles()[-1] == "Publish 187 records in 9 shards"


@pytest.mark.slow
def test_stale_shards_go_when_the_new_ones_are_there(run_client, api, tokens, repo_id, shards):
    publish(run_client, tokens.alice, shards, repo_id)
    for path in sorted(shards.glob("*.parquet")):
        path.unlink()
    for number in range(10, 15):
        write_shard(shards / f"train-{number:05}.parquet", 5, first=10 * number)
    code = PUBLISH_IN_PARTS.format(stop_at=None, folder=str(shards), repo_id=repo_id)
    run_client(code=code, token=tokens.alice)
    files = api.list_repo_files(repo_id, repo_type="dataset")
    assert [path for path in files if path.endswith(".parquet")] == [
        f"data/train-{n:05}.parquet" for n in range(10, 15)
    ]


def test_the_card_says_what_the_filters_dropped_and_how_they_were_set(shards):
    (shards / "report.json").write_text('{"kept": 150, "dropped": {"nsfw": 10, "corrupt_image": 40}}')
    settings = {"filter": {"min_caption_length": 3}, "pictures": {"fit": "crop"}}
    (shards / "manifest.json").write_text(json.dumps({"settings": settings}))
    card = dataset_card(inspect_shards(shards), "org/finches", license="cc-by-4.0")
    for line in ("Of 200 samples:", "| kept | 150 | 75.0% |", "| corrupt image | 40 | 20.0% |", "- fit: `crop`"):
        assert f"\n{line}\n" in card
    assert "- min caption length: `3`" in card and "\n## Licence\n\ncc-by-4.0\n" in card
    assert card.index("corrupt image") < card.index("| nsfw | 10")


@pytest.mark.parametrize("report", ["{", "[]", '{"kept": "many", "dropped": {}}', '{"dropped": 3, "kept": 1}'])
def test_a_damaged_report_costs_the_card_its_filters_only(shards, report):
    (shards / "report.json").write_text(report)
    assert "Filters" not in dataset_card(inspect_shards(shards), "org/finches")


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


def test_shards_in_linked_folders_are_published_and_a_folder_that_would_lack_some_is_refused(shards, tmp_path):
    folder = tmp_path / "dataset"
    folder.mkdir()
    (folder / "more").symlink_to(shards)
    assert [shard.name for shard in inspect_shards(folder).shards] == [
        "more/train-00000.parquet",
        "more/train-00001.parquet",
    ]
    (folder / "file").touch()
    with pytest.raises(ValueError, match=r"more is a link to a folder, and would be left out\. Publish a copy: cp -rL"):
        publish_folder(folder, "org/x")


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
