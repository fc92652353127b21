"""Comparing two versions of a dataset by keys, whatever the shards they lie in."""

import numpy as np
import pyarrow.parquet as pq
import pytest

from pipelines.data_preparation.inspection.dataset_diff import MOST_EXAMPLES, compare_datasets
from pipelines.image_codes.image_code_record import (
    ImageCodeFormatError,
    ImageCodeLayout,
    image_code_table,
    write_image_code_shard,
)

LAYOUT = ImageCodeLayout(codec_fingerprint="a", codebook_size=1000, grid_size=2)


def write(folder, records: dict[str, tuple[str, int]] | list[tuple[str, str, int]], shard_size: int = 7):
    folder.mkdir()
    rows = [(key, *value) for key, value in records.items()] if isinstance(records, dict) else records
    for start in range(0, len(rows), shard_size):
        part = rows[start : start + shard_size]
        codes = np.array([[code] * 4 for _, _, code in part])
        table = image_code_table(
            [caption for _, caption, _ in part], codes, LAYOUT, {"key": [key for key, _, _ in part]}
        )
        write_image_code_shard(folder / f"train-{start:05d}.parquet", table)
    return folder


def records(number: int) -> dict[str, tuple[str, int]]:
    return {f"a.tar/{n:04d}": (f"caption {n}", n) for n in range(number)}


def test_equal_folders_do_not_differ_and_are_not_read(tmp_path):
    heard = []
    found = compare_datasets(
        write(tmp_path / "old", records(20)), write(tmp_path / "new", records(20)), lambda *at: heard.append(at)
    )
    assert found.num_same_shards == 3 and found.num_old == found.num_new == 20
    assert not any(found.counts.values()) and heard == [(n, 6) for n in range(1, 7)]


def test_the_same_records_in_other_shards_and_another_order_do_not_differ(tmp_path):
    shuffled = dict(sorted(records(50).items(), key=lambda entry: entry[1][1] * 37 % 50))
    found = compare_datasets(write(tmp_path / "old", records(50)), write(tmp_path / "new", shuffled, shard_size=11))
    assert found.num_same_shards == 0 and not any(found.counts.values())


def test_every_kind_of_difference_is_counted_and_shown(tmp_path):
    new = records(40)
    del new["a.tar/0003"], new["a.tar/0004"]
    new["b.tar/0000"] = ("more", 1)
    new["a.tar/0010"] = ("another caption", 10)
    new["a.tar/0011"] = ("caption 11", 999)
    new["a.tar/0012"] = ("both", 999)
    found = compare_datasets(write(tmp_path / "old", records(40)), write(tmp_path / "new", new))
    assert found.counts == {"added": 1, "removed": 2, "changed captions": 2, "changed codes": 2}
    assert found.examples == {
        "added": ("b.tar/0000",),
        "removed": ("a.tar/0003", "a.tar/0004"),
        "changed captions": ("a.tar/0010", "a.tar/0012"),
        "changed codes": ("a.tar/0011", "a.tar/0012"),
    }


def test_several_records_of_one_key_are_compared_as_a_set(tmp_path):
    old = [("k", "one", 1), ("k", "two", 2), ("k", "three", 3), ("same", "x", 1), ("same", "y", 2)]
    new = [("k", "one", 1), ("k", "two", 2), ("same", "y", 2), ("same", "x", 1)]
    found = compare_datasets(write(tmp_path / "old", old), write(tmp_path / "new", new))
    assert found.counts == {"added": 0, "removed": 1, "changed captions": 0, "changed codes": 0}


def test_examples_are_few_however_much_differs(tmp_path):
    other = {key: ("new", code) for key, (_, code) in records(100).items()}
    found = compare_datasets(write(tmp_path / "old", records(100)), write(tmp_path / "new", other))
    assert found.counts["changed captions"] == 100 and len(found.examples["changed captions"]) == MOST_EXAMPLES


def test_one_shard_that_is_in_the_new_version_twice_is_an_addition(tmp_path):
    old, new = write(tmp_path / "old", records(5)), write(tmp_path / "new", records(5))
    (new / "train-00009.parquet").write_bytes((new / "train-00000.parquet").read_bytes())
    found = compare_datasets(old, new)
    assert found.counts["added"] == 5 and found.num_new == 10


def test_folders_without_shards_or_keys_are_refused(tmp_path):
    old, new = write(tmp_path / "old", records(5)), write(tmp_path / "new", records(6))
    with pytest.raises(FileNotFoundError, match="absent has no Parquet shards"):
        compare_datasets(old, tmp_path / "absent")
    shard = new / "train-00000.parquet"
    pq.write_table(pq.read_table(shard).drop_columns(["key"]), shard)
    with pytest.raises(ImageCodeFormatError, match="has no column `key`"):
        compare_datasets(old, new)
