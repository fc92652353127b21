"""Parquet files of pictures: img2dataset's, those of `datasets`, damaged ones, and lists that have no pictures."""

import decimal
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from captioned_files import JPEG, outcomes, read, sample_members, write_files, write_tar

from pipelines.tasks.text_to_image.data_preparation.filtering import DropReason, FilterPolicy
from pipelines.tasks.text_to_image.data_preparation.reading.reading_options import ReadingOptions
from pipelines.tasks.text_to_image.data_preparation.sources.finding import find_sources
from pipelines.tasks.text_to_image.data_preparation.sources.parquet_source import ParquetSource

NOT_UTF8 = pa.Array.from_buffers(
    pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\3\0\0\0"), pa.py_buffer(b"\xe9\xe9\xe9")]
)


def write_parquet(path, columns: dict, **options) -> ParquetSource:
    pq.write_table(pa.table(columns), path, **options)
    return ParquetSource(path)


def test_img2datasets_parquet_output_is_read_with_its_labels(tmp_path):
    columns = {
        "url": ["https://a.org/1", "https://a.org/2", "https://a.org/3", "https://a.org/4"],
        "key": ["000000000", "000000001", "000000002", "000000003"],
        "caption": ["a cat", "a dog", None, "a bird"],
        "NSFW": ["UNLIKELY", "NSFW", "UNLIKELY", None],
        "original_width": [640, 640, 640, 10**12],
        "original_height": [480, 480, 480, 480],
        "json": [None, None, None, json.dumps({"punsafe": 0.9})],
        "jpg": [JPEG + b"1", JPEG, JPEG, JPEG],
    }
    source = write_parquet(tmp_path / "00000.parquet", columns)
    first = read(source)[0][0]
    assert (first.key, first.source, first.caption) == ("000000000", "00000.parquet", "a cat")
    assert (first.image_bytes, first.nsfw, first.original_width) == (JPEG + b"1", "UNLIKELY", 640)
    assert outcomes(source) == {"kept": 1, "nsfw": 2, "missing_caption": 1}


@pytest.mark.parametrize(
    ("picture", "caption", "reason"),
    [
        ({"bytes": JPEG, "path": "a.jpg"}, "a cat", "kept"),
        ({"bytes": None, "path": "a.jpg"}, "a cat", DropReason.MISSING_IMAGE),
        (None, "a cat", DropReason.MISSING_IMAGE),
        ({"bytes": b"<svg/>", "path": None}, "a cat", DropReason.UNSUPPORTED_FORMAT),
        ({"bytes": b"RAW", "path": "a.CR2"}, "a cat", DropReason.UNSUPPORTED_FORMAT),
        ({"bytes": JPEG, "path": "a.jpg"}, "one\ntwo", DropReason.SEVERAL_LINES),
    ],
)
def test_pictures_as_datasets_stores_them(tmp_path, picture, caption, reason):
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    columns = {"Image": pa.array([picture], kind), "Text": pa.array([caption])}
    assert outcomes(write_parquet(tmp_path / "a.parquet", columns)) == {reason: 1}


def test_columns_can_be_named(tmp_path):
    columns = {"left": [JPEG + b"left"], "right": [JPEG + b"right"], "short": ["a cat"], "long": ["a very small cat"]}
    path = tmp_path / "a.parquet"
    with pytest.raises(ValueError, match=r"a.parquet has several columns of pictures: left, right. Choose one"):
        list(write_parquet(path, columns).samples())
    with pytest.raises(ValueError, match=r"has no column of pictures 'middle'. Its columns are: left, right, short"):
        list(ParquetSource(path, ReadingOptions(image_column="middle")).samples())
    ((sample,), _) = read(ParquetSource(path, ReadingOptions(image_column="RIGHT", caption_column="Long")))
    assert (sample.image_bytes, sample.caption) == (JPEG + b"right", "a very small cat")


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"caption": [["a cat"]]}, "kept"),
        ({"caption": [b"a cat"]}, "kept"),
        ({"caption": [float("nan")]}, DropReason.MISSING_CAPTION),
        ({"caption": [{"en": "a cat"}]}, DropReason.LIST_CAPTION),
        ({"caption": ["a cat"], "punsafe": [decimal.Decimal("0.99")]}, DropReason.NSFW),
        ({"caption": ["a cat"], "Nsfw": pa.array(["NSFW"]).dictionary_encode()}, DropReason.NSFW),
        ({"caption": ["a cat"], "seen": pa.array([2**62], pa.timestamp("us"))}, "kept"),
        ({"caption": ["a cat"], "seen": pa.array([1], pa.timestamp("us", "Nowhere/City"))}, "kept"),
        ({"caption": ["a cat"], "key": [[7]]}, "kept"),
        ({"caption": NOT_UTF8}, DropReason.UNREADABLE_TEXT),
    ],
)
def test_columns_of_strange_types_end_nothing(tmp_path, columns, reason):
    assert outcomes(write_parquet(tmp_path / "a.parquet", {"jpg": [JPEG], **columns})) == {reason: 1}


def test_a_file_with_two_columns_of_one_name_is_not_believed(tmp_path):
    arrays = [pa.array([JPEG]), pa.array(["a cat"]), pa.array(["NSFW"]), pa.array(["UNLIKELY"])]
    pq.write_table(pa.Table.from_arrays(arrays, ["jpg", "caption", "NSFW", "NSFW"]), tmp_path / "a.parquet")
    samples, (damage,) = read(ParquetSource(tmp_path / "a.parquet"))
    assert samples == [] and "two columns have the same name" in str(damage)


def test_a_damaged_row_group_is_counted_and_the_others_are_read(tmp_path):
    path = tmp_path / "a.parquet"
    columns = {"jpg": [JPEG + bytes([number]) * 5000 for number in range(30)], "caption": ["a cat"] * 30}
    write_parquet(path, columns, row_group_size=10, compression="snappy", use_dictionary=False)
    begin = pq.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    content = bytearray(path.read_bytes())
    content[begin : begin + 60] = bytes(60)
    path.write_bytes(content)
    assert outcomes(ParquetSource(path)) == {"kept": 20, "unreadable_file": 10}
    (damage,) = read(ParquetSource(path))[1]
    assert damage.reason == "10 rows of row group 1 cannot be read"


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + bytes(100) + b"PAR1", b"<html>" * 100])
def test_what_is_no_parquet_is_named(tmp_path, content):
    (tmp_path / "a.parquet").write_bytes(content)
    ((source,), (samples, (damage,))) = ((s := find_sources([tmp_path / "a.parquet"])), read(s[0]))
    assert samples == [] and damage.reason.startswith("damaged (")
    assert source.name == "a.parquet"


def test_metadata_beside_tars_is_no_source_and_lists_of_addresses_are_refused(tmp_path):
    write_tar(tmp_path / "00000.tar", sample_members("000"))
    write_parquet(tmp_path / "00000.parquet", {"url": ["https://a.org"], "caption": ["a cat"]})
    assert [source.name for source in find_sources([tmp_path])] == ["00000.tar"]
    with pytest.raises(ValueError, match="a list of addresses has to be downloaded first: dalle-collab data download"):
        find_sources([tmp_path / "00000.parquet"])


def test_a_row_group_is_never_in_memory_as_a_whole(tmp_path):
    noise = [JPEG + bytes([number % 251]) * 200_000 for number in range(400)]
    options = dict(compression="none", use_dictionary=False, write_batch_size=4)
    write_parquet(tmp_path / "a.parquet", {"jpg": noise, "caption": ["a cat"] * 400}, **options)
    assert pq.ParquetFile(tmp_path / "a.parquet").num_row_groups == 1
    usual = pa.default_memory_pool()
    counting = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(counting)
    try:
        assert sum(1 for _ in ParquetSource(tmp_path / "a.parquet").samples()) == 400
    finally:
        pa.set_memory_pool(usual)
    assert counting.max_memory() < 20 * 2**20


def test_a_folder_of_parquet_files_is_read_in_order(tmp_path):
    for name in ("b/1.parquet", "a/1.parquet"):
        write_files(tmp_path, {name: ""})
        write_parquet(tmp_path / name, {"png": [JPEG], "caption": [f"a caption of {name}"]})
    assert [source.name for source in find_sources([tmp_path])] == ["a/1.parquet", "b/1.parquet"]


def test_every_row_is_counted_whatever_its_columns_hold(tmp_path):
    captions = {
        "dictionary": pa.array(["a cat", "a dog", None]).dictionary_encode(),
        "view": pa.array(["a cat", "a dog", None], pa.string_view()),
        "time": pa.array([2**62, 0, None], pa.timestamp("us")),
        "far": pa.array([decimal.Decimal("1e30"), None, None]),
        "nested": pa.array([[{"a": [b"x"]}], [], None]),
    }
    kept = {"dictionary": 2, "view": 2, "time": 0, "far": 1, "nested": 0}
    for name, column in captions.items():
        source = write_parquet(tmp_path / f"{name}.parquet", {"jpg": [JPEG] * 3, "Caption": column})
        found = outcomes(source, FilterPolicy(keep_placeholders=True))
        assert (found.total(), found["kept"]) == (3, kept[name]), name
