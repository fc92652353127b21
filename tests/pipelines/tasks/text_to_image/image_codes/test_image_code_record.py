"""The format of shards: its round trip, its stored example, the published layout, and every damage by name."""

from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.tasks.text_to_image.image_codes.image_code_record import (
    IMAGE_CODE_SCHEMA,
    ImageCodeFormatError,
    ImageCodeLayout,
    captions_and_codes,
    codes_from_bytes,
    image_code_table,
    iterate_shard,
    layout_from_metadata,
    read_layout,
    write_image_code_shard,
)

LAYOUT = ImageCodeLayout(codec_fingerprint="0123456789abcdef", codebook_size=512, grid_size=4)
EXAMPLE_SHARD = Path(__file__).with_name("example_format_1.parquet")


def some_codes(num_records: int, codebook_size: int = 512) -> np.ndarray:
    return np.random.default_rng(0).integers(0, codebook_size, (num_records, 16))


def some_table(num_records: int = 40) -> pa.Table:
    scalars = {
        "key": [f"a/{i}" for i in range(num_records)],
        "width": [64] * num_records,
        "NSFW": ["UNLIKELY"] * num_records,
    }
    return image_code_table([f"picture {i}" for i in range(num_records)], some_codes(num_records), LAYOUT, scalars)


def test_a_shard_gives_back_captions_codes_scalars_and_layout(tmp_path):
    path = tmp_path / "train-00000.parquet"
    num_bytes = write_image_code_shard(path, some_table())
    batches = list(iterate_shard(path, batch_size=16))
    assert [batch.num_rows for batch in batches] == [16, 16, 8]
    captions, codes = captions_and_codes(pa.Table.from_batches(batches), num_codes=16)
    assert captions == [f"picture {i}" for i in range(40)]
    assert codes.dtype == np.int16 and np.array_equal(codes, some_codes(40))
    assert batches[0]["key"].to_pylist()[:2] == ["a/0", "a/1"]
    assert batches[0]["similarity"].null_count == 16
    assert read_layout(path) == LAYOUT
    assert num_bytes == path.stat().st_size


def test_shards_are_brotli_with_the_published_columns_and_no_partial_file_stays(tmp_path):
    write_image_code_shard(tmp_path / "train-00000.parquet", some_table())
    with pq.ParquetFile(tmp_path / "train-00000.parquet") as shard:
        assert shard.schema_arrow.names == IMAGE_CODE_SCHEMA.names
        assert shard.schema_arrow.field("codes").type == pa.list_(pa.int16())
        group = shard.metadata.row_group(0)
        assert {group.column(i).compression for i in range(group.num_columns)} == {"BROTLI"}
    assert [path.name for path in tmp_path.iterdir()] == ["train-00000.parquet"]


def test_equal_tables_give_equal_bytes(tmp_path):
    for name in ("a.parquet", "b.parquet"):
        write_image_code_shard(tmp_path / name, some_table())
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()


def test_the_stored_example_of_format_1_reads_as_it_was_written():
    assert read_layout(EXAMPLE_SHARD) == LAYOUT
    (batch,) = iterate_shard(EXAMPLE_SHARD)
    captions, codes = captions_and_codes(batch, num_codes=16)
    assert captions == ["a small red star", "ein größerer Kreis", "赤い星"]
    assert codes.tolist() == [list(range(16)), [511] * 16, list(range(0, 512, 32))]


def test_the_datasets_library_streams_a_folder_of_shards(tmp_path):
    write_image_code_shard(tmp_path / "train-00000.parquet", some_table())
    stream = datasets.load_dataset("parquet", data_files=str(tmp_path / "*.parquet"), split="train", streaming=True)
    table = next(iter(stream.with_format("arrow").iter(batch_size=40)))
    assert np.array_equal(captions_and_codes(table, num_codes=16)[1], some_codes(40))
    rows = next(iter(stream.with_format("numpy").iter(batch_size=40)))
    assert np.array_equal(captions_and_codes(rows, num_codes=16)[1], some_codes(40))


@pytest.mark.parametrize("brotli", [False, True])
def test_the_published_layout_of_int16_bytes_reads_as_codes(brotli):
    codes = some_codes(5).astype("<i2")
    blobs = [row.tobytes() for row in codes]
    if brotli:
        codes = np.tile(codes[:, :1], (1, 16))  # compressible, so that no blob has the plain length by chance
        blobs = [pa.compress(row.astype("<i2").tobytes(), codec="brotli", asbytes=True) for row in codes]
    batch = pa.record_batch(
        {
            "caption": ["x"] * 5,
            "NSFW": ["UNLIKELY"] * 5,
            "original_width": [1] * 5,
            "original_height": [1] * 5,
            "code": blobs,
        }
    )
    for form in (batch, batch.to_pydict()):
        captions, read = captions_and_codes(form, num_codes=16)
        assert captions == ["x"] * 5 and np.array_equal(read, codes)


def test_captions_stored_as_brotli_blobs_read_as_text():
    blob = pa.compress(b"ein Stern", codec="brotli", asbytes=True)
    batch = {"caption": [blob], "code": [np.zeros(16, "<i2").tobytes()]}
    assert captions_and_codes(batch, num_codes=16)[0] == ["ein Stern"]


def test_a_slice_of_a_table_gives_the_codes_of_its_own_rows():
    table = some_table()
    assert np.array_equal(captions_and_codes(table.slice(7, 5), num_codes=16)[1], some_codes(40)[7:12])


def test_a_newer_format_is_refused_with_the_update_command():
    metadata = {b"dalle_collab.format_version": b"3"}
    with pytest.raises(
        ImageCodeFormatError, match=r"Shard train-00017.parquet has format 3, this reader knows 1\. Update"
    ):
        layout_from_metadata(metadata, "train-00017.parquet")


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (None, "Shard x does not name its codec"),
        ({b"dalle_collab.format_version": b"1"}, "Shard x has damaged metadata"),
        (
            {
                b"dalle_collab.format_version": b"1",
                b"dalle_collab.codec_fingerprint": b"a",
                b"dalle_collab.codebook_size": b"99999",
                b"dalle_collab.grid_size": b"4",
            },
            "codebook_size is 99999; int16 codes hold 1 to 32768",
        ),
    ],
)
def test_metadata_that_does_not_describe_codes_is_refused(metadata, message):
    with pytest.raises(ImageCodeFormatError, match=message):
        layout_from_metadata(metadata, "x")


def test_a_truncated_shard_is_named_with_the_cure(tmp_path):
    path = tmp_path / "train-00003.parquet"
    write_image_code_shard(path, some_table())
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(
        ImageCodeFormatError, match=r"Shard train-00003.parquet .* is truncated .* run the same command"
    ):
        read_layout(path)


def test_a_shard_with_damaged_pages_is_named(tmp_path):
    path = tmp_path / "train-00004.parquet"
    write_image_code_shard(path, some_table(5000))
    content = bytearray(path.read_bytes())
    content[1000:60000] = bytes(59000)
    path.write_bytes(content)
    with pytest.raises(ImageCodeFormatError, match=r"Shard train-00004.parquet is damaged"):
        list(iterate_shard(path))


def test_codes_of_another_number_or_outside_the_codebook_cannot_be_stored():
    with pytest.raises(ValueError, match=r"Codes have shape \(1, 16\), expected \(2, 16\)"):
        image_code_table(["a", "b"], some_codes(1), LAYOUT)
    with pytest.raises(
        ImageCodeFormatError, match=r"Code 512 in these records is outside the codebook, expected 0 to 511"
    ):
        image_code_table(["a"], np.full((1, 16), 512), LAYOUT)
    with pytest.raises(ImageCodeFormatError, match="Code -1 "):
        image_code_table(["a"], np.full((1, 16), -1), LAYOUT)


def test_batches_that_are_no_image_codes_are_refused():
    with pytest.raises(ImageCodeFormatError, match=r"org/data has the columns text, image; expected `caption`"):
        captions_and_codes({"text": [], "image": []}, num_codes=16, shard_name="org/data")
    with pytest.raises(ImageCodeFormatError, match="the stream has images of 16 codes, expected 64"):
        captions_and_codes(some_table(), num_codes=64)
    with pytest.raises(ImageCodeFormatError, match="images of 3 codes, expected 16"):
        captions_and_codes({"caption": ["a"], "codes": [[1, 2, 3]]}, num_codes=16)
    with pytest.raises(ImageCodeFormatError, match="An image has 7 bytes of codes, expected 32"):
        codes_from_bytes(b"\xff" * 7, 16)
