"""The streaming reader with the real `datasets` against the embedded Hub, in processes of their own."""

import itertools
import json
import threading
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from published_runs import NUM_RECORDS
from support_files import SUPPORT
from transformers import AutoTokenizer

from modeling_dalle_collab import DalleCollabProcessor
from pipelines.core.peer.prefetching import MIN_PREFETCHED_BATCHES, NUM_PREFETCHED_SAMPLES, prefetched
from pipelines.core.run.block_order import BlockOrder
from pipelines.core.run.span_source import WholeDataset
from pipelines.core.run.spans import Span, record_order
from pipelines.features.ledger.batch_gradients import BatchGradient, join_batches
from pipelines.tasks.text_to_image.image_code_stream import (
    evaluation_split,
    held_out_mask,
    image_code_batch,
    read_batches_again,
    stream_batches,
)
from pipelines.tasks.text_to_image.image_codes.dataset_shards import find_dataset
from pipelines.tasks.text_to_image.image_codes.image_code_record import ImageCodeLayout, image_code_table
from pipelines.tasks.text_to_image.image_codes.shard_blocks import ShardBlocks
from pipelines.tools.chaos.tiny_run import write_shards

READER = SUPPORT / "stream_reader.py"
BATCH_SIZE = 8
BATCHES_PER_PASS = NUM_RECORDS // BATCH_SIZE


@pytest.fixture(scope="module")
def processor(training_material, tmp_path_factory):
    folder = tmp_path_factory.mktemp("processor")
    tokenizer = AutoTokenizer.from_pretrained(training_material.tokenizer)
    DalleCollabProcessor(tokenizer, text_sequence_length=8).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def read(commands, processor):
    """A function that streams batches in a process of its own and returns token ids and codes, record by record."""

    def read_stream(repository, num_batches, *, seed=1, batch_size=BATCH_SIZE, num_codes=16):
        request = dict(
            repository=repository, processor=str(processor), num_batches=num_batches, seed=seed,
            batch_size=batch_size, num_codes=num_codes,
        )  # fmt: skip
        done = commands.run_program(READER, "stream", json.dumps(request))
        if done.returncode != 0:
            assert done.stderr.strip().splitlines()[-1].startswith("ValueError: "), done.stderr
            raise ValueError(done.stderr.strip().splitlines()[-1])
        return [pair for batch in json.loads(done.stdout) for pair in zip(*batch, strict=True)]

    return read_stream


@pytest.fixture(scope="module")
def twice(training_material, read):
    """Two passes over the dataset."""
    return read(training_material.dataset, 2 * BATCHES_PER_PASS)


def first_codes(records):
    return [codes[0] for _, codes in records]


def test_every_pass_has_every_record_once_in_another_order(twice):
    first, second = twice[:NUM_RECORDS], twice[NUM_RECORDS:]
    expected = sorted([(number + place) % 32 for place in range(16)] for number in range(NUM_RECORDS))
    assert sorted(codes for _, codes in first) == sorted(codes for _, codes in second) == expected
    assert len({tuple(ids) for ids, _ in first}) == NUM_RECORDS
    assert first != second
    assert first_codes(first) != [number % 32 for number in range(NUM_RECORDS)], "a pass is shuffled"


def test_captions_are_tokenised_padded_and_stay_with_their_codes(twice, processor):
    loaded = DalleCollabProcessor.from_pretrained(processor)
    captions = [f"picture number {number}" for number in range(NUM_RECORDS)]
    numbers = {tuple(ids): number for number, ids in enumerate(loaded(text=captions)["input_ids"].tolist())}
    for ids, codes in twice:
        assert len(ids) == 8 and codes[0] == numbers[tuple(ids)] % 32


def test_the_order_depends_on_the_seed_alone(training_material, read, twice):
    again = read(training_material.dataset, BATCHES_PER_PASS)
    assert again == twice[:NUM_RECORDS]
    other = read(training_material.dataset, BATCHES_PER_PASS, seed=2)
    assert other != again and sorted(other) == sorted(again)


def publish(material, name, folder):
    material.api.create_repo(f"org/{name}", repo_type="dataset")
    material.api.upload_folder(repo_id=f"org/{name}", repo_type="dataset", folder_path=str(folder))
    return f"org/{name}"


def test_a_dataset_smaller_than_a_batch_is_read_again_for_it(training_material, read, tmp_path):
    write_shards(tmp_path, training_material.layout, num_records=5)
    repository = publish(training_material, "five-records", tmp_path)
    records = read(repository, 5, batch_size=6)
    assert Counter(first_codes(records)) == dict.fromkeys(range(5), 6)


def test_records_of_another_grid_are_refused(training_material, read):
    with pytest.raises(ValueError, match=r"train-0000\d.parquet has images of 16 codes, expected 64."):
        read(training_material.dataset, 1, num_codes=64)


def test_an_unknown_dataset_and_an_unknown_revision_are_one_line(commands, training_material):
    for arguments in (("org/no-dataset", "main"), (training_material.dataset, "no-revision")):
        done = commands.run_program(READER, "layout", *arguments)
        assert done.returncode == 1
        message = f"There is no dataset repository {arguments[0]} with Parquet shards at revision {arguments[1]}"
        assert message in done.stderr and "hub-tools publish dataset" in done.stderr


def test_the_layout_is_read_from_the_footer(commands, training_material):
    done = commands.run_program(READER, "layout", training_material.dataset, "main")
    assert ImageCodeLayout(**json.loads(done.stdout)) == training_material.layout


def test_a_truncated_shard_is_named(commands, training_material, tmp_path):
    write_shards(tmp_path, training_material.layout, num_records=32)
    (shard,) = tmp_path.rglob("*.parquet")
    shard.write_bytes(shard.read_bytes()[:-200])
    repository = publish(training_material, "truncated", tmp_path)
    done = commands.run_program(READER, "layout", repository, "main")
    assert done.returncode == 1
    assert f"Shard train-00000.parquet of {repository} cannot be read" in done.stderr
    assert "dalle-collab data verify" in done.stderr


def test_the_published_laion_layout_of_code_bytes_is_streamed_too(training_material, read, tmp_path):
    codes = np.arange(32)[:, None] + np.arange(16)
    table = pa.table(
        dict(
            caption=pa.array([f"picture number {number}" for number in range(32)]),
            NSFW=pa.array(["UNLIKELY"] * 32),
            original_width=pa.array([256] * 32, pa.int32()),
            original_height=pa.array([256] * 32, pa.int32()),
            code=pa.array([row.astype("<i2").tobytes() for row in codes], pa.binary()),
        )
    )
    pq.write_table(table, tmp_path / "train-00000.parquet")
    records = read(publish(training_material, "laion-layout", tmp_path), 4)
    assert sorted(found for _, found in records) == codes.tolist()


def test_an_error_in_the_reading_thread_reaches_the_trainer_after_the_batches_before_it():
    batch = image_code_batch(torch.zeros(1, 2), torch.zeros(1, 2))

    def two_and_a_failure():
        yield batch
        yield batch
        raise ValueError("the third batch is damaged")

    with prefetched(two_and_a_failure) as batches:
        assert next(batches) is batch and next(batches) is batch
        with pytest.raises(ValueError, match="the third batch is damaged"):
            next(batches)


def test_who_waits_for_a_batch_hears_that_none_is_wanted_any_more():
    is_away, stop, waited = threading.Event(), threading.Event(), threading.Event()

    def none_come():
        is_away.wait()
        yield from ()

    def read():
        with prefetched(none_come, stop=stop) as batches:
            waited.set()
            assert list(batches) == []
            is_away.set()

    reader = threading.Thread(target=read)
    reader.start()
    waited.wait()
    assert reader.is_alive()
    stop.set()
    reader.join(10)
    assert not reader.is_alive()


@pytest.mark.parametrize("grown", [64, 512])
def test_no_more_is_read_ahead_when_batches_grow(grown):
    size, read, is_full = [1], [], threading.Event()

    def without_end():
        while True:
            read.append(size[0])
            if len(read) > NUM_PREFETCHED_SAMPLES:  # it waits for room now, with one more in hand
                is_full.set()
            yield image_code_batch(torch.zeros(size[0]), torch.zeros(size[0]))

    with prefetched(without_end, lambda: size[0]) as batches:
        assert is_full.wait(60)
        size[0] = grown
        drained = [next(batches) for _ in range(NUM_PREFETCHED_SAMPLES)]
        assert sum(len(batch["image_codes"]) for batch in drained) < 2 * NUM_PREFETCHED_SAMPLES
        next(batches)
        num_ahead = len(read) - len(drained) - 1
    assert num_ahead <= max(MIN_PREFETCHED_BATCHES, NUM_PREFETCHED_SAMPLES // grown) + 1


def test_reading_ahead_stops_when_training_does():
    def without_end():
        while True:
            yield image_code_batch(torch.zeros(1), torch.zeros(1))

    before = threading.active_count()
    with prefetched(without_end) as batches:
        next(batches)
        assert threading.active_count() == before + 1
    assert threading.active_count() == before


@pytest.fixture
def blocks(training_material, tmp_path):
    """60 records in shards of 30 in row groups of 10, in a folder."""
    codes = np.arange(60)[:, None] % 32 + np.zeros((60, 16), np.int64)
    for shard in range(2):
        rows = slice(30 * shard, 30 * shard + 30)
        captions = [f"picture number {number}" for number in range(60)[rows]]
        table = image_code_table(captions, codes[rows].astype(np.int16), training_material.layout)
        pq.write_table(table, tmp_path / f"train-{shard:05d}.parquet", row_group_size=10)
    write_shards(tmp_path / "other", training_material.layout, num_records=8)
    next((tmp_path / "other").rglob("*.parquet")).rename(tmp_path / "validation-00000.parquet")
    dataset = find_dataset(str(tmp_path))
    return ShardBlocks(dataset, [shard for shard in dataset.shards if evaluation_split([shard.name]) is None])


class Spans:
    """A source of the given spans."""

    def __init__(self, spans):
        self._left = list(spans)

    def next_span(self, *, is_needed):
        return self._left.pop(0) if self._left else None

    def wait(self):
        return False


def tokens_of(text):
    return {"input_ids": torch.tensor([[int(caption.split()[-1])] for caption in text])}


def numbers_of(batches):
    return [number for batch in batches for number in batch["input_ids"][:, 0].tolist()]


def test_batches_name_the_records_that_they_are_made_of(blocks):
    spans = [Span(0, 1, 2, 3, 10), Span(0, 0, 0, 0, 10), Span(0, 0, 1, 0, 10), Span(0, 1, 0, 0, 7), Span(4, 1, 2, 0, 2)]
    batches = list(stream_batches(blocks, Spans(spans), tokens_of, num_codes=16, batch_size=6, seed=3))
    assert [len(batch["image_codes"]) for batch in batches] == [6] * 6
    for batch in batches:
        named = [
            30 * span.shard + 10 * span.group + row
            for span in batch.spans
            for row in record_order(span.block, 10, seed=3)[span.start : span.stop].tolist()
        ]
        assert sorted(named) == sorted(numbers_of([batch]))
    assert sum(span.num_records for batch in batches for span in batch.spans) == 36, "nothing twice"
    blocks_of = [len({span.block for span in batch.spans}) for batch in batches]
    assert blocks_of[:3] == [1, 2, 3], "the first batch waits for one block"
    assert min(blocks_of[2:5]) >= 3, "neighbours do not meet in a batch"


def test_a_size_that_changes_only_says_where_the_records_are_cut(blocks):
    everything = [Span(0, shard, group, 0, 10) for shard in range(2) for group in range(3)]
    options = dict(num_codes=16, seed=3)
    sizes = itertools.cycle([1, 4, 2, 7, 1])
    batches = list(stream_batches(blocks, Spans(everything), tokens_of, batch_size=lambda: next(sizes), **options))
    assert [len(batch["image_codes"]) for batch in batches] == [1, 4, 2, 7, 1] * 4
    assert sorted(numbers_of(batches)) == list(range(60))
    assert sum(span.num_records for batch in batches for span in batch.spans) == 60, "nothing twice"
    for batch in batches:
        (again,) = read_batches_again(blocks, batch.spans, 1, tokens_of, **options)
        assert numbers_of([again]) == numbers_of([batch]) and torch.equal(again["image_codes"], batch["image_codes"])


def test_held_out_records_are_part_of_a_span_and_of_no_batch(blocks):
    everything = [Span(0, shard, group, 0, 10) for shard in range(2) for group in range(3)]
    options = dict(num_codes=16, batch_size=2, seed=0)
    batches = list(stream_batches(blocks, Spans(everything), tokens_of, **options, held_out_share=0.3))
    codes = np.repeat(np.arange(60)[:, None] % 32, 16, axis=1)
    held_out = set(np.flatnonzero(held_out_mask(codes, 0.3)).tolist())
    assert 5 < len(held_out) < 40 and not held_out & set(numbers_of(batches))
    assert len(numbers_of(batches)) in (60 - len(held_out), 59 - len(held_out))
    assert sum(span.num_records for batch in batches for span in batch.spans) > len(numbers_of(batches))


def test_a_span_of_another_dataset_is_refused_and_one_without_records_ends(blocks):
    with pytest.raises(ValueError, match="has 10 records, expected 12"):
        next(stream_batches(blocks, Spans([Span(0, 0, 0, 0, 12)]), tokens_of, num_codes=16, batch_size=2, seed=0))
    assert list(stream_batches(blocks, Spans([]), tokens_of, num_codes=16, batch_size=2, seed=0)) == []


def test_a_dataset_of_held_out_records_alone_is_refused_at_last(blocks, monkeypatch):
    monkeypatch.setattr("pipelines.tasks.text_to_image.image_code_stream.MOST_SKIPPED", 200)
    source = WholeDataset(BlockOrder(lambda: 2, blocks.sizes, 0))
    options = dict(num_codes=16, batch_size=2, seed=0, held_out_share=1.0)
    with pytest.raises(ValueError, match="None of so many records is one to train on"):
        next(stream_batches(blocks, source, tokens_of, **options))


def test_a_block_is_read_with_its_own_bytes_alone(training_material, commands, tmp_path):
    rows = 4096
    codes = np.random.default_rng(0).integers(0, 32, (rows, 16)).astype(np.int16)
    table = image_code_table([f"a caption of record {n}" for n in range(rows)], codes, training_material.layout)
    pq.write_table(table, tmp_path / "train-00000.parquet", row_group_size=64, compression="none")
    size = (tmp_path / "train-00000.parquet").stat().st_size
    repository = publish(training_material, "many-blocks", tmp_path)
    done = commands.run_program(READER, "bytes", repository, "5")
    read, num_requests = json.loads(done.stdout)
    # A footer, longer than the end that is read first, and of five of 64 row groups the captions and the codes.
    footer = int.from_bytes((tmp_path / "train-00000.parquet").read_bytes()[-8:-4], "little") + 8
    assert read < footer + 5 * size / 64 and num_requests == 7, done.stdout


@pytest.mark.parametrize("batch_size", [1, 3, 4, 6])
@pytest.mark.parametrize("held_out_share", [0.0, 0.3])
def test_batches_are_read_again_from_their_names(blocks, batch_size, held_out_share):
    spans = [Span(0, shard, group, start, start + 5) for group in range(3) for start in (0, 5) for shard in range(2)]
    options = dict(num_codes=16, seed=3, held_out_share=held_out_share)
    batches = list(stream_batches(blocks, Spans(spans), tokens_of, batch_size=batch_size, **options))
    sketch = (0.0,) * 8
    names = [BatchGradient(model_epoch=0, spans=batch.spans, counts=batch.counts, sketch=sketch) for batch in batches]
    together = join_batches(names)
    again = [
        batch
        for name in together
        for batch in read_batches_again(blocks, name.spans, name.num_batches, tokens_of, **options)
    ]
    assert len(again) == len(batches) > len(together) / 2
    for batch, other in zip(batches, again, strict=True):
        assert batch.spans == other.spans and batch.counts == other.counts
        assert batch.keys() == other.keys() and all(torch.equal(batch[name], other[name]) for name in batch)


def test_names_that_no_batches_can_have_are_refused(blocks):
    options = dict(num_codes=16, seed=3)
    with pytest.raises(ValueError, match="Spans of 10, 5 records are not 3 equal batches"):
        list(read_batches_again(blocks, [Span(0, 0, 0, 0, 10), Span(0, 1, 0, 0, 5)], 3, tokens_of, **options))
    with pytest.raises(ValueError, match="has 10 records, expected 20"):
        list(read_batches_again(blocks, [Span(0, 0, 0, 0, 20)], 1, tokens_of, **options))
    for strange in (Span(0, 2, 0, 0, 10), Span(0, 0, 3, 0, 10)):
        with pytest.raises(ValueError, match="The dataset has no block"):
            list(read_batches_again(blocks, [strange], 1, tokens_of, **options))
    with pytest.raises(ValueError, match="are not 1 equal batches"):
        list(read_batches_again(blocks, [Span(0, 0, 0, 4, 4)], 1, tokens_of, **options))
