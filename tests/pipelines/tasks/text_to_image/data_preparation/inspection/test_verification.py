"""Verification and previews: what is right is counted, what is wrong is named with its cure."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.tasks.text_to_image.data_preparation.inspection.record_sampling import spread_records
from pipelines.tasks.text_to_image.data_preparation.inspection.verification import verify_folder
from pipelines.tasks.text_to_image.data_preparation.shard_writing import PreparationOptions, layout_of, prepare_shards
from pipelines.tasks.text_to_image.data_preparation.sources.finding import find_sources
from pipelines.tasks.text_to_image.image_codes.image_code_record import (
    ImageCodeFormatError,
    image_code_table,
    write_image_code_shard,
)


@pytest.fixture
def prepared(tmp_path, codec, make_tar):
    make_tar(tmp_path / "a.tar", range(40))
    options = PreparationOptions(shard_size=16, batch_size=8, num_workers=1)
    prepare_shards(find_sources([tmp_path / "a.tar"]), codec, tmp_path / "out", options)
    return tmp_path / "out"


def test_a_whole_folder_is_counted(prepared, codec):
    heard = []
    report = verify_folder(prepared, lambda done, total: heard.append((done, total)))
    assert (report.num_shards, report.num_records, report.problems) == (3, 40, ())
    assert report.num_bytes == sum(path.stat().st_size for path in prepared.glob("*.parquet"))
    assert report.layout.codec_fingerprint == codec.fingerprint
    assert heard == [(1, 3), (2, 3), (3, 3)]


def test_a_truncated_shard_is_named_and_the_others_still_count(prepared):
    shard = prepared / "train-00001.parquet"
    shard.write_bytes(shard.read_bytes()[:-20])
    report = verify_folder(prepared)
    assert report.num_shards == 2 and report.num_records == 24
    (problem,) = report.problems
    assert problem.startswith("Shard train-00001.parquet") and "truncated" in problem and "data prepare" in problem


def test_a_shard_changed_after_writing_is_named(prepared, codec):
    shard = prepared / "train-00002.parquet"
    table = pq.read_table(shard)
    pq.write_table(table.slice(0, 5), shard)
    (problem,) = verify_folder(prepared).problems
    assert problem.startswith("Shard train-00002.parquet was changed after it was written: 5 records")


def test_a_missing_and_a_foreign_shard_are_named(prepared):
    (prepared / "train-00000.parquet").rename(prepared / "train-00009.parquet")
    missing, foreign = verify_folder(prepared).problems
    assert missing.startswith("Shard train-00000.parquet is missing, the manifest lists it")
    assert foreign.startswith("Shard train-00009.parquet is not in the manifest")


def test_shards_of_different_codecs_do_not_mix(tmp_path, prepared, make_codec, codec):
    (prepared / "manifest.json").unlink()
    other = make_codec(seed=1)
    table = image_code_table(["a picture"], np.zeros((1, 16)), layout_of(other, PreparationOptions()))
    write_image_code_shard(prepared / "train-00003.parquet", table)
    (problem,) = verify_folder(prepared).problems
    assert f"Shard train-00003.parquet was made by codec {other.fingerprint}" in problem
    assert f"the shards before it by codec {codec.fingerprint}" in problem


def test_shards_of_different_precisions_do_not_mix(prepared, codec):
    (prepared / "manifest.json").unlink()
    layout = layout_of(codec, PreparationOptions(precision="bfloat16"))
    write_image_code_shard(prepared / "train-00003.parquet", image_code_table(["a picture"], np.zeros((1, 16)), layout))
    (problem,) = verify_folder(prepared).problems
    assert "precision bfloat16" in problem and "precision float32" in problem


def test_codes_outside_the_codebook_are_found(prepared):
    (prepared / "manifest.json").unlink()
    shard = prepared / "train-00001.parquet"
    table = pq.read_table(shard)
    metadata = {**table.schema.metadata, b"dalle_collab.codebook_size": b"2"}
    for path in prepared.glob("*.parquet"):
        pq.write_table(pq.read_table(path).replace_schema_metadata(metadata), path)
    problems = verify_folder(prepared).problems
    assert (
        len(problems) == 3
        and "Shard train-00000.parquet has in row 0 a code outside the codebook, expected 0 to 1" in problems[0]
    )


def change_row(shard, column: str, row: int, value) -> None:
    table = pq.read_table(shard)
    values = table[column].to_pylist()
    values[row] = value
    position = table.schema.get_field_index(column)
    field = table.schema.field(column)
    pq.write_table(table.set_column(position, field, pa.array(values, field.type)), shard)


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("codes", [39] * 15 + [40], "has in row 11 a code outside the codebook, expected 0 to 39"),
        ("codes", [-1] * 16, "has in row 11 a code outside the codebook"),
        ("codes", [1] * 15, "has in row 11 not 16 codes"),
        ("codes", None, "has in row 11 not 16 codes"),
        ("caption", None, "has in row 11 no caption"),
        ("caption", "  ", "has in row 11 no caption"),
    ],
)
def test_the_bad_row_is_named(prepared, column, value, words):
    change_row(prepared / "train-00001.parquet", column, 11, value)
    (problem,) = verify_folder(prepared).problems
    assert problem.startswith("Shard train-00001.parquet ") and words in problem


def test_a_row_far_into_a_shard_is_named_by_its_place_in_the_shard(prepared, codec):
    layout = layout_of(codec, PreparationOptions())
    (prepared / "manifest.json").unlink()
    codes = np.zeros((3000, 16))
    table = image_code_table([f"caption {i}" for i in range(3000)], codes, layout)
    write_image_code_shard(prepared / "train-00009.parquet", table)
    change_row(prepared / "train-00009.parquet", "codes", 2500, [77] * 16)
    (problem,) = verify_folder(prepared).problems
    assert "Shard train-00009.parquet has in row 2500 a code outside" in problem


def test_a_shard_that_is_damaged_in_the_middle_says_how_far_it_can_be_read(prepared, codec):
    layout = layout_of(codec, PreparationOptions())
    codes = np.random.default_rng(0).integers(0, 40, (3000, 16))
    shard = prepared / "train-00009.parquet"
    write_image_code_shard(shard, image_code_table([f"caption {i}" for i in range(3000)], codes, layout))
    start = pq.ParquetFile(shard).metadata.row_group(1).column(0).dictionary_page_offset
    content = bytearray(shard.read_bytes())
    content[start : start + 40] = bytes(40)
    shard.write_bytes(content)
    (problem,) = verify_folder(prepared).problems
    assert problem.startswith("Shard train-00009.parquet is damaged after row 1024: ")


def test_a_folder_without_shards_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"has no Parquet shards. .*dalle-collab data prepare"):
        verify_folder(tmp_path)


def test_previews_are_spread_over_the_folder(prepared, codec):
    captions, image_codes = spread_records(prepared, 6, codec_fingerprint=codec.fingerprint)
    assert captions == [f"picture number {i}" for i in (0, 15, 16, 31, 32, 39)]
    assert image_codes.shape == (6, 16)


def test_a_preview_with_another_codec_is_refused(prepared):
    with pytest.raises(ImageCodeFormatError, match=r"was made by codec .*, this is abc. Give the codec"):
        spread_records(prepared, 6, codec_fingerprint="abc")
    with pytest.raises(FileNotFoundError, match="has no Parquet shards"):
        spread_records(prepared / "absent", 6, codec_fingerprint="abc")
