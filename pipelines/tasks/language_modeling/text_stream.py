"""The reader of text in leased spans: document by document, each named with the batch in which it ends.

Documents of some spans take turns. Sequences are cut from all of them one after another, so that the rest of a span is
not lost: it waits for the next one. A document whose last sequence comes to nothing, because its reader dies, is read
again as a whole; what was lost with an earlier one, whose gradient was refused, is lost for this pass.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import pyarrow as pa
from transformers import PreTrainedTokenizerBase

from hub_tools.waiting.outages import through_outages
from pipelines.core.run.span_source import PassAfterPass, SpanSource
from pipelines.core.run.spans import Span, merged_spans, record_order
from pipelines.core.run.task import BatchSize, NamedBatch, size_of_next
from pipelines.core.run.training_run import TrainingRun, stable_seed
from pipelines.tasks.language_modeling.documents import is_training_document, texts_in
from pipelines.tasks.language_modeling.samples import Sample, masked_samples, packed_with_names, to_batch
from pipelines.tasks.language_modeling.settings import FILL_MASK, LanguageSettings
from pipelines.tasks.text_to_image.image_codes.shard_blocks import ShardBlocks

NUM_OPEN_SPANS = 4
MOST_SKIPPED = 2**20
"""Documents without one to train on among them, after which the stream gives up."""


class NamedDocument(NamedTuple):
    """A document, and the records that end with it: its own, and those before it that nobody trains on."""

    text: str
    spans: tuple[Span, ...]


def stream_text(
    blocks: ShardBlocks,
    spans: SpanSource,
    tokenizer: PreTrainedTokenizerBase,
    run: TrainingRun,
    settings: LanguageSettings,
    batch_size: BatchSize,
) -> Iterator[NamedBatch]:
    """Yield micro-batches of the spans' documents, as long as there come spans.

    Raises:
        ValueError: there is no text to train on.
    """
    documents = read_documents(blocks, spans, run, settings)
    samples: list[Sample] = []
    ended: list[Span] = []
    size = size_of_next(batch_size)
    for sample, names in _samples(documents, tokenizer, run, settings):
        samples.append(sample)
        ended += names
        if len(samples) == size:
            batch = to_batch(samples, tokenizer)
            digest = hashlib.blake2b(batch["input_ids"].numpy().tobytes(), digest_size=8)
            yield NamedBatch(batch, merged_spans(ended), label=digest.hexdigest())
            samples, ended, size = [], [], size_of_next(batch_size)


def _samples(
    documents: Iterable[NamedDocument],
    tokenizer: PreTrainedTokenizerBase,
    run: TrainingRun,
    settings: LanguageSettings,
) -> Iterator[tuple[Sample, Sequence[Span]]]:
    """Sequences, each with the records that end in it."""
    if run.task != FILL_MASK:
        for sample, names in packed_with_names(documents, tokenizer, settings):
            yield sample, [span for spans in names for span in spans]
        return
    ended: list[Span] = []
    for document in documents:
        ended += document.spans
        seed = stable_seed(run.seed, document.spans[-1].pass_number)
        found = list(masked_samples([document.text], tokenizer, settings, seed))
        for number, sample in enumerate(found, 1):
            yield sample, ended if number == len(found) else []
        ended = [] if found else ended


def read_documents(
    blocks: ShardBlocks, spans: SpanSource, run: TrainingRun, settings: LanguageSettings
) -> Iterator[NamedDocument]:
    """Yield the documents to train on, by turns of some spans, which are read at the same time."""
    spans = PassAfterPass(spans)
    opened: list[Iterator[NamedDocument | Span]] = []
    skipped: list[Span] = []
    num_skipped = 0
    while True:
        while len(opened) < NUM_OPEN_SPANS and (span := spans.next_span(is_needed=not opened)) is not None:
            opened.append(_read_span(blocks, span, run, settings))
        if not opened:
            if not spans.wait():
                return
            continue
        for reader in list(opened):
            found = next(reader, None)
            if found is None:
                opened.remove(reader)
            elif isinstance(found, NamedDocument):
                yield NamedDocument(found.text, (*merged_spans(skipped), *found.spans))
                skipped, num_skipped = [], 0
            else:
                skipped, num_skipped = [*skipped, found], num_skipped + 1
        if num_skipped > MOST_SKIPPED:
            raise ValueError(
                f"None of {num_skipped} documents of {run.dataset_repository} is one to train on: they are empty, or "
                "held out."
            )


def _read_span(
    blocks: ShardBlocks, span: Span, run: TrainingRun, settings: LanguageSettings
) -> Iterator[NamedDocument | Span]:
    """A span's documents in the order of their block; of those that nobody trains on the record alone."""
    table: pa.Table = through_outages(partial(blocks.read, span.shard, span.group))
    if span.stop > len(table):
        raise ValueError(
            f"Block {span.group} of shard {blocks.shards[span.shard].name} has {len(table)} documents, expected "
            f"{span.stop}. The dataset is another one than that of the run."
        )
    texts: Mapping[int, str | None] = dict(enumerate(texts_in(table, run, settings)))
    for place, row in enumerate(record_order(span.block, len(table), run.seed)[span.start : span.stop].tolist()):
        own = Span(*span.block, span.start + place, span.start + place + 1)
        text = texts[row]
        yield NamedDocument(text, (own,)) if is_training_document(text, run) else own
