"""Blocks of shards: large row groups in pieces beside the same rows read whole, and the bytes that it takes."""

import struct

import httpx2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hub_tools.hub_client import is_outage
from pipelines.tasks.text_to_image.image_codes import shard_blocks
from pipelines.tasks.text_to_image.image_codes.dataset_shards import find_dataset
from pipelines.tasks.text_to_image.image_codes.image_code_record import (
    ImageCodeLayout,
    captions_and_codes,
    image_code_table,
)
from pipelines.tasks.text_to_image.image_codes.shard_blocks import ShardBlocks

NUM_ROWS, NUM_CODES = 5000, 64
LAYOUT = ImageCodeLayout(codec_fingerprint="0" * 16, codebook_size=8192, grid_size=8)
WRITTEN = {
    "LAION's layout without an index": dict(layout="laion"),
    "LAION's layout with an index": dict(layout="laion", write_page_index=True),
    "pages of version 2": dict(layout="laion", data_page_version="2.0"),
    "without dictionaries": dict(layout="laion", use_dictionary=False, compression="none"),
    "lists of codes with an index": dict(layout="ours", write_page_index=True),
    "pages cut by their content": dict(layout="ours", write_page_index=True, use_content_defined_chunking=True),
}


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Row groups are large from 16 kB on, and pieces have multiples of 64 rows."""
    monkeypatch.setattr(shard_blocks, "LARGE_GROUP_BYTES", 2**14)
    monkeypatch.setattr(shard_blocks, "PIECE_BYTES", 2**16)
    monkeypatch.setattr(shard_blocks, "ROWS_WRITTEN_TOGETHER", 64)


def written(folder, *, layout, row_group_size=NUM_ROWS, **options):
    codes = np.random.default_rng(0).integers(0, 8192, (NUM_ROWS, NUM_CODES)).astype("<i2")
    captions = [None if row % 7 == 0 else f"caption {row} " * (row % 5) for row in range(NUM_ROWS)]
    if layout == "ours":
        table = image_code_table(captions, codes, LAYOUT)
    else:
        table = pa.table(
            dict(
                caption=captions,
                NSFW=["UNLIKELY"] * NUM_ROWS,
                original_width=pa.array([256] * NUM_ROWS, pa.int32()),
                code=pa.array([row.tobytes() for row in codes], pa.binary()),
            )
        )
    options = dict(data_page_size=2**13, write_batch_size=50) | options
    pq.write_table(table, folder / "train-00000.parquet", row_group_size=row_group_size, **options)
    return captions, codes


def opened(folder):
    dataset = find_dataset(str(folder))
    return ShardBlocks(dataset, dataset.shards)


def read_by(blocks, order):
    """Captions and codes of all blocks, which are read in an order of their own, in the order of the shard."""
    found = {block: captions_and_codes(blocks.read(0, block), num_codes=NUM_CODES) for block in order}
    parts = [found[block] for block in sorted(found)]
    return [caption for captions, _ in parts for caption in captions], np.concatenate([codes for _, codes in parts])


@pytest.mark.parametrize("options", WRITTEN.values(), ids=WRITTEN)
def test_the_pieces_of_a_large_row_group_have_its_rows(options, tmp_path):
    captions, codes = written(tmp_path, row_group_size=2600, **options)
    blocks = opened(tmp_path)
    sizes = blocks.sizes(0)
    assert len(sizes) > 8 and sum(sizes) == NUM_ROWS and max(sizes) < 1000
    found = read_by(blocks, np.random.default_rng(1).permutation(len(sizes)).tolist())
    assert found[0] == captions and np.array_equal(found[1], codes)


class Counting:
    """A file that knows which bytes were read of it."""

    def __init__(self, file, num_read):
        self._file, self._num_read = file, num_read

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._file.close()

    def __getattr__(self, name):
        return getattr(self._file, name)

    def read(self, size=-1):
        found = self._file.read(size)
        self._num_read.append(len(found))
        return found


@pytest.mark.parametrize("options", [WRITTEN["without dictionaries"], WRITTEN["pages cut by their content"]])
def test_a_piece_takes_the_bytes_of_its_pages(options, tmp_path, monkeypatch):
    written(tmp_path, **(options | dict(write_page_index=True)))
    num_read = []
    plain = ShardBlocks._open
    monkeypatch.setattr(ShardBlocks, "_open", lambda blocks, shard: Counting(plain(blocks, shard), num_read))
    blocks = opened(tmp_path)
    size = blocks.shards[0].num_bytes
    last = len(blocks.sizes(0)) - 1
    blocks.read(0, last)
    assert sum(num_read) < shard_blocks.FOOTER_BYTES + 2**14 + 2.5 * 2**16 < size / 2
    so_far = len(num_read)
    blocks.read(0, last)
    assert len(num_read) == so_far, "a block is kept for who gets the rest of it"
    blocks.read(0, 0)
    assert len(num_read) > so_far


def test_blocks_are_kept_up_to_a_number_of_bytes(tmp_path, monkeypatch):
    written(tmp_path, **WRITTEN["lists of codes with an index"])
    blocks = opened(tmp_path)
    monkeypatch.setattr(shard_blocks, "BYTES_KEPT", 3 * blocks.read(0, 0).nbytes)
    for block in range(len(blocks.sizes(0))):
        blocks.read(0, block)
        assert sum(table.nbytes for table in blocks._kept.values()) <= shard_blocks.BYTES_KEPT
    assert 1 <= len(blocks._kept) <= 4


def test_lists_without_an_index_are_read_whole_and_named_if_they_are_too_large(tmp_path, monkeypatch):
    captions, codes = written(tmp_path, layout="ours")
    blocks = opened(tmp_path)
    assert blocks.sizes(0) == (NUM_ROWS,)
    found = read_by(blocks, [0])
    assert found[0] == captions and np.array_equal(found[1], codes)
    monkeypatch.setattr(shard_blocks, "LARGEST_BLOCK_BYTES", 1000)
    with pytest.raises(ValueError, match=r"Row group 0 of shard train-00000.parquet has \d+ bytes, expected at most"):
        opened(tmp_path).read(0, 0)


def test_a_shard_of_kilobytes_that_unpacks_to_gigabytes_is_refused_before_it_has_taken_them(tmp_path, monkeypatch):
    monkeypatch.setattr(shard_blocks, "LARGE_GROUP_BYTES", 2**22)
    zeros, place = pa.array(np.zeros(2**20, np.int32)), tmp_path / "train-00000.parquet"
    columns = dict(caption=["x" * 3000], code=pa.array([bytes(2 * NUM_CODES)]))
    table = pa.table({name: pa.DictionaryArray.from_arrays(zeros, value) for name, value in columns.items()})
    pq.write_table(table, place, row_group_size=2**20, store_schema=False, compression="brotli")
    assert place.stat().st_size < 2**19
    before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(pool)
    try:
        with pytest.raises(ValueError, match=r"rows unpack to \d+ bytes, expected 134217728 in all"):
            opened(tmp_path).read(0, 0)
        assert 2**26 < pool.max_memory() < 2**28
    finally:
        pa.set_memory_pool(before)


def test_a_page_header_nested_without_end_is_damage(tmp_path):
    written(tmp_path, layout="ours")
    place = tmp_path / "train-00000.parquet"
    content = bytearray(place.read_bytes())
    blocks = opened(tmp_path)
    blocks.sizes(0)
    content[4:16_000] = b"\x1c" * 15_996  # a struct in a struct in a struct
    place.write_bytes(content)
    with pytest.raises(ValueError, match=r"Shard train-00000\.parquet of .* cannot be read"):
        blocks.read(0, 0)


def test_only_captions_and_codes_are_read(tmp_path):
    written(tmp_path, layout="ours", row_group_size=100)
    assert opened(tmp_path).read(0, 3).schema.names == ["caption", "codes"]


def test_a_footer_longer_than_the_end_that_is_read_first_is_read_too(tmp_path):
    written(tmp_path, layout="ours", row_group_size=50)
    content = (tmp_path / "train-00000.parquet").read_bytes()
    assert struct.unpack("<I", content[-8:-4])[0] > shard_blocks.FOOTER_BYTES
    assert opened(tmp_path).sizes(0) == (50,) * 100


@pytest.mark.parametrize("options", WRITTEN.values(), ids=WRITTEN)
def test_damage_anywhere_gives_an_error_with_the_shards_name_or_other_rows(options, tmp_path):
    written(tmp_path, **options)
    path = tmp_path / "train-00000.parquet"
    sound = path.read_bytes()
    random = np.random.default_rng(2)
    for place in random.integers(4, len(sound) - 8, 20).tolist():
        damaged = bytearray(sound)
        damaged[place : place + 8] = random.bytes(8)
        path.write_bytes(damaged)
        blocks = opened(tmp_path)
        try:
            for block in range(len(blocks.sizes(0))):
                assert len(blocks.read(0, block)) == blocks.sizes(0)[block]
        except ValueError as error:
            assert "train-00000.parquet" in str(error) and "dalle-collab data verify" in str(error)


class Cut(Counting):
    """A file whose connection is cut while it is read."""

    def __init__(self, file, error):
        super().__init__(file, [])
        self._error = error

    def read(self, size=-1):
        raise self._error


@pytest.mark.parametrize("layout", ["laion", "ours"])
@pytest.mark.parametrize("error", [ConnectionResetError("cut"), TimeoutError("late"), httpx2.ReadError("cut")])
def test_an_outage_is_not_taken_for_damage(layout, error, tmp_path, monkeypatch):
    written(tmp_path, layout=layout)
    blocks = opened(tmp_path)
    assert (len(blocks.sizes(0)) > 1) == (layout == "laion"), "one is read in pieces, the other whole"
    plain = ShardBlocks._open
    with monkeypatch.context() as patch:
        patch.setattr(ShardBlocks, "_open", lambda blocks, shard: Cut(plain(blocks, shard), error))
        with pytest.raises(type(error)) as raised:
            blocks.read(0, 0)
    assert is_outage(raised.value)
    assert len(blocks.read(0, 0)) == blocks.sizes(0)[0], "the next try succeeds"
