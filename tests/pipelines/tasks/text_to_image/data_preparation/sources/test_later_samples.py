"""Every source can begin at any of its samples: what comes then is what it yields in one go, damage included."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from captioned_files import JPEG, write_files
from dirty_pictures import write_dirty_tars

from pipelines.tasks.text_to_image.data_preparation.deduplication.duplicates import (
    LIST_SCHEMA,
    DuplicatesList,
    SourceWithoutDuplicates,
)
from pipelines.tasks.text_to_image.data_preparation.preparation_manifest import InputPosition
from pipelines.tasks.text_to_image.data_preparation.sources.folder_source import FolderSource
from pipelines.tasks.text_to_image.data_preparation.sources.parquet_source import ParquetSource
from pipelines.tasks.text_to_image.data_preparation.sources.sample import CaptionImage
from pipelines.tasks.text_to_image.data_preparation.sources.tar_source import TarSource
from pipelines.tasks.text_to_image.data_preparation.span_reader import SpanReader


def later(items, begin):
    """What comes after the first `begin` samples."""
    for place, item in enumerate(items):
        if begin == 0:
            return items[place:]
        begin -= isinstance(item, CaptionImage)
    return []


def cut_tar(folder):
    write_dirty_tars(folder / "tars", 40, samples_per_tar=40, side=20, large=())
    path = folder / "tars" / "00000.tar"
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 3 // 4])
    return TarSource(path)


def folder_with_tables(folder):
    rows = [{"file_name": "b/1.jpg", "text": f"caption {number}"} for number in range(5)]
    rows += [{"file_name": "absent.jpg", "text": "nothing"}, {"text": "names no file"}]
    files = {f"{place}/{number}.jpg": JPEG for place in "abc" for number in range(3)}
    files |= {"a/0.txt": "a caption", "c/7.txt": "no picture", "c/8.xyz": "?"}
    files |= {"metadata.jsonl": "".join(f"{json.dumps(row)}\n" for row in rows), "c/captions.csv": "a,a\n1,2\n"}
    write_files(folder, files)
    return FolderSource(folder)


def damaged_parquet(folder):
    path = folder / "a.parquet"
    columns = {"jpg": [JPEG + bytes([number]) * 5000 for number in range(30)], "caption": ["a cat"] * 30}
    pq.write_table(pa.table(columns), path, row_group_size=10, compression="snappy", use_dictionary=False)
    content, begin = bytearray(path.read_bytes()), pq.read_metadata(path).row_group(1).column(0).data_page_offset
    content[begin : begin + 60] = bytes(60)
    path.write_bytes(content)
    return ParquetSource(path)


def without_duplicates(folder):
    columns = [["00000.tar/000000005", "00000.tar/000000017"], ["exact_duplicate"] * 2, ["x", "x"]]
    pq.write_table(pa.table(columns, schema=LIST_SCHEMA), folder / "duplicates.parquet")
    return SourceWithoutDuplicates(cut_tar(folder), DuplicatesList(folder / "duplicates.parquet"))


@pytest.mark.parametrize("make", [cut_tar, folder_with_tables, damaged_parquet, without_duplicates])
def test_a_source_begins_at_any_of_its_samples(make, tmp_path):
    source = make(tmp_path)
    items = list(source.samples())
    num_samples = sum(isinstance(item, CaptionImage) for item in items)
    assert num_samples > 15 and len(items) > num_samples
    for begin in range(num_samples + 1):
        assert list(source.samples(begin)) == later(items, begin), begin


def test_a_reader_that_resumes_behind_damage_takes_no_sample_twice(tmp_path):
    reader = SpanReader([damaged_parquet(tmp_path)])
    reader.skip_to(InputPosition(source=0, sample=25))
    assert [sample.key for sample in reader.read_span(8)] == ["25", "26", "27", "28", "29"]
