"""Jobs that share an output make the folder that one process makes."""

import json

import pytest
from dirty_pictures import write_dirty_tars
from killed_preparation import folder_digest

from pipelines.tasks.text_to_image.data_preparation.engines.part import Part
from pipelines.tasks.text_to_image.data_preparation.engines.part_preparation import prepare_part
from pipelines.tasks.text_to_image.data_preparation.preparation_manifest import PreparationError
from pipelines.tasks.text_to_image.data_preparation.shard_writing import Preparation, PreparationOptions, prepare_shards
from pipelines.tasks.text_to_image.data_preparation.sources.finding import find_sources

OPTIONS = PreparationOptions(shard_size=48, num_workers=2)
NUM_SHARDS = 10


@pytest.fixture(scope="module")
def tars(tmp_path_factory):
    """More dirt of a kind than is shown, so that what is shown depends on all shards."""
    folder = tmp_path_factory.mktemp("pictures") / "tars"
    write_dirty_tars(folder, 48 * NUM_SHARDS - 10, samples_per_tar=200, side=40, large=())
    return folder


@pytest.fixture(scope="module")
def whole(tars, codec, tmp_path_factory):
    """The digest of the folder that one process makes."""
    output = tmp_path_factory.mktemp("whole")
    prepare_shards(find_sources([tars]), codec, output, OPTIONS)
    return folder_digest(output)


@pytest.fixture
def preparation(tars, codec, tmp_path):
    return Preparation(sources=find_sources([tars]), codec=codec, output=tmp_path / "out", options=OPTIONS)


@pytest.mark.parametrize("order", [(1,), (2, 1), (3, 1, 2), tuple(range(12, 0, -1))])
def test_parts_in_any_order_make_the_folder_of_one_process(preparation, whole, order):
    *first, last = [prepare_part(preparation, Part(index=index, num_parts=len(order))) for index in order]
    assert all(done.whole is None and done.missing for done in first)
    assert last.missing == () and last.whole.report.seen == 470
    assert folder_digest(preparation.output) == whole


def test_a_part_that_is_run_again_makes_only_what_it_lacks(preparation, whole):
    prepare_part(preparation, Part(index=1, num_parts=2))
    (preparation.output / "train-00002.parquet").unlink()
    before = {path: path.stat().st_mtime_ns for path in preparation.output.glob("*.parquet")}
    done = prepare_part(preparation, Part(index=1, num_parts=2))
    assert [span.number for span in done.missing] == [1, 3, 5, 7, 9]
    assert {path: path.stat().st_mtime_ns for path in before} == before
    last = prepare_part(preparation, Part(index=2, num_parts=2))
    assert last.whole.num_shards_kept == 5 and folder_digest(preparation.output) == whole
    again = prepare_part(preparation, Part(index=2, num_parts=2))
    assert again.whole.num_shards_kept == NUM_SHARDS and folder_digest(preparation.output) == whole


def test_without_part_one_process_finishes_what_parts_began(preparation, whole):
    prepare_part(preparation, Part(index=2, num_parts=3))
    (preparation.output / "finished" / "00004.json").write_text("{damaged")
    result = prepare_shards(preparation.sources, preparation.codec, preparation.output, OPTIONS)
    assert result.num_shards_kept == 2 and folder_digest(preparation.output) == whole


def test_parts_go_on_where_one_process_was_stopped(preparation, whole):
    def stop(progress):
        if progress.num_shards == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare_shards(preparation.sources, preparation.codec, preparation.output, OPTIONS, stop)
    for index in (1, 2):
        done = prepare_part(preparation, Part(index=index, num_parts=2))
    assert done.whole.num_shards_kept == NUM_SHARDS - 4 and folder_digest(preparation.output) == whole


def test_what_a_killed_part_left_is_gone_when_the_folder_is_whole(preparation, whole):
    prepare_part(preparation, Part(index=1, num_parts=2))
    (preparation.output / ".train-00001.parquet.123-123.partial").write_bytes(b"half a shard")
    (preparation.output / "dropped" / ".nsfw-00001-0.jpg.123-123.partial").write_bytes(b"half a picture")
    prepare_part(preparation, Part(index=2, num_parts=2))
    assert folder_digest(preparation.output) == whole


def test_a_part_with_other_settings_is_refused(preparation, tars, codec):
    prepare_part(preparation, Part(index=1, num_parts=2))
    values = json.loads((preparation.output / "manifest.json").read_text())
    other = Preparation(
        sources=preparation.sources,
        codec=codec,
        output=preparation.output,
        options=PreparationOptions(shard_size=16, num_workers=1),
    )
    with pytest.raises(PreparationError, match="was started with shard_size = 48, now it is 16"):
        prepare_part(other, Part(index=2, num_parts=2))
    assert json.loads((preparation.output / "manifest.json").read_text()) == values


@pytest.mark.parametrize("text", ["", "3", "0/2", "3/2", "1/0", "-1/2", "1/2/3", "a/b", "1/２", "1/2 "])
def test_a_part_that_is_none_is_refused(text):
    with pytest.raises(ValueError, match="expected I/N with I from 1 to N, such as 3/8"):
        Part.parse(text)
