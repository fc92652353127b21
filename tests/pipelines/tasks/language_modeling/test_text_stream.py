"""Text read span by span: which batch names which documents."""

import itertools

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from language_material import ALBERT, DOCUMENTS, GPT2, SEQUENCE_LENGTH, language_run, tiny_tokenizer

from pipelines.core.run.block_order import BlockOrder
from pipelines.core.run.span_source import WholeDataset
from pipelines.core.run.spans import Span, by_block, record_order
from pipelines.tasks.language_modeling import text_stream
from pipelines.tasks.language_modeling.documents import texts_in
from pipelines.tasks.language_modeling.samples import IGNORED
from pipelines.tasks.language_modeling.settings import LanguageSettings
from pipelines.tasks.language_modeling.text_stream import read_documents, stream_text
from pipelines.tasks.streaming import is_held_out
from pipelines.tasks.text_to_image.image_codes.dataset_shards import find_dataset
from pipelines.tasks.text_to_image.image_codes.shard_blocks import ShardBlocks

FILL, WRITE = "fill-mask", "text-generation"
SETTINGS = LanguageSettings(sequence_length=SEQUENCE_LENGTH)
BLOCK = 12
NUM_BLOCKS = 5


class Spans:
    """A source of the given spans."""

    def __init__(self, spans):
        self._left = list(spans)

    def next_span(self, *, is_needed):
        return self._left.pop(0) if self._left else None

    def wait(self):
        return False


@pytest.fixture
def texts():
    return [DOCUMENTS[number % len(DOCUMENTS)] if number % 5 else ["", None, " "][number % 3] for number in range(60)]


@pytest.fixture
def blocks(texts, tmp_path):
    """60 documents in five blocks, a fifth of them empty."""
    pq.write_table(pa.table({"text": texts}), tmp_path / "train-00000.parquet", row_group_size=BLOCK)
    dataset = find_dataset(str(tmp_path))
    return ShardBlocks(dataset, dataset.shards, lambda names: names)


def everything(pass_number=0):
    return [Span(pass_number, 0, group, 0, BLOCK) for group in range(NUM_BLOCKS)]


def covered(spans):
    return {block: list(held) for block, held in by_block(spans).items()}


@pytest.mark.parametrize(("task", "model"), [(FILL, ALBERT), (WRITE, GPT2)])
@pytest.mark.parametrize("batch_size", [1, 4])
def test_each_document_is_named_once_by_the_batch_in_which_it_ends(blocks, texts, task, model, batch_size):
    run = language_run(task, model, held_out_share=0.2)
    tokenizer = tiny_tokenizer(task)
    spans = everything()
    batches = list(stream_text(blocks, Spans([*spans, *everything(1)]), tokenizer, run, SETTINGS, batch_size))
    named = [span for batch in batches for span in batch.spans]
    assert sum(span.num_records for span in named) == sum(len(held) for held in by_block(named).values()), "once each"
    first_pass = {block: held for block, held in covered(named).items() if block.pass_number == 0}
    assert first_pass == covered(spans), "empty ones and held-out ones are named with their neighbours"
    assert all(len(batch["input_ids"]) == batch_size and not batch.can_be_read_again for batch in batches)
    assert len({batch.seed(run) for batch in batches}) > 0.9 * len(batches)


def test_a_size_that_changes_only_says_where_the_sequences_are_cut(blocks):
    run, tokenizer = language_run(WRITE, GPT2), tiny_tokenizer(WRITE)
    sizes = itertools.cycle([1, 3, 2])
    one_by_one = list(stream_text(blocks, Spans(everything()), tokenizer, run, SETTINGS, 1))
    batches = list(stream_text(blocks, Spans(everything()), tokenizer, run, SETTINGS, lambda: next(sizes)))
    assert [len(batch["input_ids"]) for batch in batches][:4] == [1, 3, 2, 1]
    rows = [row.tolist() for batch in batches for row in batch["input_ids"]]
    assert len(rows) > 6 and rows == [batch["input_ids"][0].tolist() for batch in one_by_one][: len(rows)]


def test_tokens_of_a_batch_up_to_its_documents_ends_are_those_of_its_names(blocks, texts):
    run, tokenizer = language_run(WRITE, GPT2, held_out_share=0.0), tiny_tokenizer(WRITE)
    num_tokens = {
        number: len(tokenizer(text, add_special_tokens=False)["input_ids"]) + 1
        for number, text in enumerate(texts)
        if text and not text.isspace()
    }
    seen = 0
    named = 0
    for batch in stream_text(blocks, Spans(everything()), tokenizer, run, SETTINGS, 2):
        seen += int(batch["attention_mask"].sum())
        for span in batch.spans:
            rows = record_order(span.block, BLOCK, run.seed)[span.start : span.stop].tolist()
            named += sum(num_tokens.get(BLOCK * span.group + row, 0) for row in rows)
        assert named <= seen < named + max(num_tokens.values()) + 2 * SEQUENCE_LENGTH


def test_masks_are_those_of_the_pass(blocks):
    run, tokenizer = language_run(FILL, ALBERT, held_out_share=0.0), tiny_tokenizer(FILL)

    def predicted(pass_number, spans):
        found = {}
        for batch in stream_text(blocks, Spans(spans), tokenizer, run, SETTINGS, 1):
            whole = torch.where(batch["labels"] == IGNORED, batch["input_ids"], batch["labels"])
            found[tuple(whole[0].tolist())] = tuple((batch["labels"][0] != IGNORED).tolist())
        return found

    first, again = predicted(0, everything()), predicted(0, everything()[::-1])
    assert first == again != predicted(1, everything(1))


def test_held_out_documents_are_not_trained_on(blocks, texts):
    run = language_run(FILL, ALBERT, held_out_share=0.3)
    found = [document.text for document in read_documents(blocks, Spans(everything()), run, SETTINGS)]
    expected = [text for text in texts if text and not text.isspace() and not is_held_out(text.encode(), 0.3)]
    assert sorted(found) == sorted(expected) and len(found) < 48


def test_a_pass_is_read_before_the_next_one(blocks):
    run = language_run(FILL, ALBERT, held_out_share=0.0)
    source = WholeDataset(BlockOrder(lambda: 1, blocks.sizes, 0))
    documents = read_documents(blocks, source, run, SETTINGS)
    passes = [next(documents).spans[-1].pass_number for _ in range(120)]
    assert passes == sorted(passes) and set(passes) == {0, 1, 2}


def test_a_span_of_another_dataset_and_one_without_text_are_refused(blocks, tmp_path, monkeypatch):
    run, tokenizer = language_run(FILL, ALBERT), tiny_tokenizer(FILL)
    with pytest.raises(ValueError, match="has 12 documents, expected 13"):
        next(stream_text(blocks, Spans([Span(0, 0, 0, 0, 13)]), tokenizer, run, SETTINGS, 1))
    monkeypatch.setattr(text_stream, "MOST_SKIPPED", 30)
    (tmp_path / "empty").mkdir()
    pq.write_table(pa.table({"text": [" "] * 20}), tmp_path / "empty" / "train-00000.parquet")
    dataset = find_dataset(str(tmp_path / "empty"))
    empty = ShardBlocks(dataset, dataset.shards, lambda names: names)
    with pytest.raises(ValueError, match="documents of org/tiny-text is one to train on"):
        next(stream_text(empty, WholeDataset(BlockOrder(lambda: 1, empty.sizes, 0)), tokenizer, run, SETTINGS, 1))
    other = ShardBlocks(dataset, dataset.shards, lambda names: names)
    assert list(texts_in(pa.table({"Body": ["a"]}), run, LanguageSettings(text_column="body"))) == ["a"]
    body = LanguageSettings(text_column="body")
    with pytest.raises(ValueError, match="has no column body; it has text"):
        next(stream_text(other, Spans([Span(0, 0, 0, 0, 20)]), tokenizer, run, body, 1))
