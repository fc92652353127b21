"""Spans are planned as a reader finds them, whatever the sources hold."""

import random

import pytest

from pipelines.tasks.text_to_image.data_preparation.engines.spans import (
    InputSpan,
    count_samples,
    make_span,
    plan_spans,
    uncounted_sources,
)
from pipelines.tasks.text_to_image.data_preparation.filtering import FilterReport
from pipelines.tasks.text_to_image.data_preparation.preparation_manifest import (
    FinishedShard,
    InputPosition,
    PreparationError,
)
from pipelines.tasks.text_to_image.data_preparation.shard_writing import Preparation, PreparationOptions
from pipelines.tasks.text_to_image.data_preparation.sources.finding import find_sources
from pipelines.tasks.text_to_image.data_preparation.sources.sample import CaptionImage, SourceDamage
from pipelines.tasks.text_to_image.data_preparation.span_reader import SpanReader


class Samples:
    """A source in memory, damaged at its end or not."""

    path = None

    def __init__(self, name: str, num_samples: int, is_damaged: bool = False):
        self.name, self.num_bytes = name, num_samples
        self.num_samples, self.is_damaged = num_samples, is_damaged

    def samples(self, begin=0):
        for number in range(begin, self.num_samples):
            yield CaptionImage(key=str(number), source=self.name, caption="a caption", image_bytes=b"x")
        if self.is_damaged:
            yield SourceDamage(source=self.name, reason="cut", num_samples_read=self.num_samples)


def spans_of_reader(sources, shard_size):
    reader, spans = SpanReader(sources), []
    while not reader.is_at_end():
        begin = reader.position
        list(reader.read_span(shard_size))
        spans.append(InputSpan(number=len(spans), begin=begin, end=reader.position))
    return spans


def finished(span):
    return FinishedShard(
        name=None, num_rows=0, num_bytes=0, sha256="", begin=span.begin, end=span.end, report=FilterReport()
    )


@pytest.mark.parametrize("seed", range(200))
def test_the_plan_is_what_a_reader_finds(seed):
    choose = random.Random(seed)
    sources = [
        Samples(f"{number}.tar", choose.choice((0, 1, 3, 4, 8, choose.randrange(30))), choose.random() < 0.3)
        for number in range(choose.randrange(6))
    ]
    shard_size = choose.randrange(1, 10)
    counts = {index: count_samples(source) for index, source in enumerate(sources)}
    spans = list(plan_spans({}, counts, len(sources), shard_size))
    assert spans == spans_of_reader(sources, shard_size)
    # What is known needs no counting, and keeps its ends.
    known = {span.number: finished(span) for span in spans[: choose.randrange(len(spans) + 1)]}
    wanted = uncounted_sources(known, len(sources))
    assert list(plan_spans(known, {index: counts[index] for index in wanted}, len(sources), shard_size)) == spans


def test_a_shard_that_ended_with_fewer_sources_keeps_its_end():
    (short,) = plan_spans({}, {0: 5}, 1, 8)
    spans = list(plan_spans({0: finished(short)}, {1: 8}, 2, 8))
    assert [span.begin for span in spans] == [
        InputPosition(),
        InputPosition(source=1),
        InputPosition(source=1, sample=8),
    ]


def test_sources_that_changed_since_they_were_counted_are_noticed(codec, tmp_path, make_tar):
    make_tar(tmp_path / "a.tar", range(10))
    preparation = Preparation(
        sources=find_sources([tmp_path / "a.tar"]),
        codec=codec,
        output=tmp_path,
        options=PreparationOptions(shard_size=16, num_workers=1),
    )
    (span,) = plan_spans({}, {0: 10}, 1, 16)
    make_tar(tmp_path / "a.tar", range(20))
    with (
        preparation.shard_maker() as maker,
        pytest.raises(
            PreparationError, match=r"train-00000.parquet \(from sample 0 of a.tar\) ends at .* have changed"
        ),
    ):
        make_span(preparation, maker, SpanReader(preparation.sources), span)
