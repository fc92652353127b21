"""One part of a preparation: N jobs with the same output, each with its own part, make all of its shards."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from pipelines.tasks.text_to_image.data_preparation.engines.part import Part
from pipelines.tasks.text_to_image.data_preparation.engines.spans import (
    InputSpan,
    count_samples,
    make_span,
    plan_spans,
    uncounted_sources,
)
from pipelines.tasks.text_to_image.data_preparation.preparation_manifest import FinishedShard
from pipelines.tasks.text_to_image.data_preparation.shard_records import (
    load_count,
    load_record,
    save_count,
    save_record,
)
from pipelines.tasks.text_to_image.data_preparation.shard_writing import (
    Preparation,
    PreparationProgress,
    PreparationResult,
    ProgressCounter,
    begin_preparation,
    finish_preparation,
    remove_leftovers,
)
from pipelines.tasks.text_to_image.data_preparation.span_reader import SpanReader


@dataclass(frozen=True, kw_only=True)
class PartResult:
    """What one job has done."""

    num_shards: int
    """Shards of the part, all of them finished."""
    missing: tuple[InputSpan, ...]
    """Shards that other parts have not finished yet."""
    whole: PreparationResult | None
    """The folder put together, if nothing is missing."""


def prepare_part(
    preparation: Preparation,
    part: Part,
    *,
    on_progress: Callable[[PreparationProgress], None] = lambda progress: None,
) -> PartResult:
    """Make every N-th shard; who finds all shards finished puts the folder together, as if one process had made it.

    Jobs may run at the same time or one after another, and a part again, but not one part twice at a time.
    """
    known = begin_preparation(preparation)
    spans = _all_spans(preparation, known, part)
    own = spans[part.index - 1 :: part.num_parts]
    num_made = _make_missing(preparation, own, known | _records(preparation, own), on_progress)
    # In this order: another job may put the folder together meanwhile, and remove the records.
    records = _records(preparation, spans)
    finished = begin_preparation(preparation) | records
    missing = tuple(span for span in spans if not span.is_finished(finished))
    if missing:
        return PartResult(num_shards=len(own), missing=missing, whole=None)
    remove_leftovers(preparation.output, ".train-*.partial")  # another job may be writing the manifest
    whole = finish_preparation(preparation, finished, on_progress)
    whole = dataclasses.replace(whole, num_shards_kept=len(spans) - num_made)
    return PartResult(num_shards=len(own), missing=(), whole=whole)


def _all_spans(preparation: Preparation, known: dict[int, FinishedShard], part: Part) -> list[InputSpan]:
    """All spans. Sources that nobody has counted are counted, those of the own part first: others may do the rest."""
    output, sources = preparation.output, preparation.sources
    wanted = uncounted_sources(known, len(sources))
    first = len(wanted) * (part.index - 1) // part.num_parts
    counts: dict[int, int] = {}
    for index in (*wanted[first:], *wanted[:first]):
        num_samples = load_count(output, index)
        if num_samples is None:
            num_samples = count_samples(sources[index])
            save_count(output, index, num_samples)
        counts[index] = num_samples
    return list(plan_spans(known, counts, len(sources), preparation.options.shard_size))


def _make_missing(
    preparation: Preparation,
    spans: list[InputSpan],
    known: dict[int, FinishedShard],
    on_progress: Callable[[PreparationProgress], None],
) -> int:
    """Make the shards of these spans that are not whole, and return their number."""
    reader = SpanReader(preparation.sources)
    progress = ProgressCounter(reader, on_progress)
    num_made = 0
    with preparation.shard_maker() as maker:
        for num_shards, span in enumerate(spans, 1):
            if span.is_kept(known, preparation.output):
                progress.add_earlier(known[span.number].report.seen, num_shards)
                continue
            shard = make_span(preparation, maker, reader, span, progress.add)
            save_record(preparation.output, span.number, shard)
            num_made += 1
            progress.add(0, num_shards)
    return num_made


def _records(preparation: Preparation, spans: list[InputSpan]) -> dict[int, FinishedShard]:
    found = ((span.number, load_record(preparation.output, span.number)) for span in spans)
    return {number: shard for number, shard in found if shard is not None}
