"""Which span of the input each shard holds, known beforehand, so that shards can be made in any order."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipelines.tasks.text_to_image.data_preparation.preparation_manifest import (
    FinishedShard,
    InputPosition,
    PreparationError,
)
from pipelines.tasks.text_to_image.data_preparation.shard_maker import ShardMaker
from pipelines.tasks.text_to_image.data_preparation.shard_writing import Preparation
from pipelines.tasks.text_to_image.data_preparation.sources.sample import CaptionImage, CaptionImageSource
from pipelines.tasks.text_to_image.data_preparation.span_reader import SpanReader


@dataclass(frozen=True, kw_only=True)
class InputSpan:
    """The input of one shard."""

    number: int
    """Of the shard."""
    begin: InputPosition
    """Where it begins."""
    end: InputPosition
    """Where the next one begins."""

    def is_finished(self, shards: Mapping[int, FinishedShard]) -> bool:
        """Whether one of the shards, by number, was made of this span."""
        shard = shards.get(self.number)
        return shard is not None and (shard.begin, shard.end) == (self.begin, self.end)

    def is_kept(self, shards: Mapping[int, FinishedShard], folder: Path) -> bool:
        """Whether one of the shards was made of this span and is in the folder as it was written."""
        return self.is_finished(shards) and shards[self.number].is_whole(folder)

    def describe(self, sources: Sequence[CaptionImageSource]) -> str:
        """The shard and its input for people: `train-00007.parquet (from sample 120 of 00001.tar)`."""
        return f"train-{self.number:05d}.parquet (from sample {self.begin.sample} of {sources[self.begin.source].name})"


def count_samples(source: CaptionImageSource) -> int:
    """How many samples a source has, good or bad. It is read for that."""
    return sum(isinstance(sample, CaptionImage) for sample in source.samples())


def uncounted_sources(known: Mapping[int, FinishedShard], num_sources: int) -> range:
    """The sources whose samples have to be counted to plan what comes after the known shards, by index."""
    position, number = InputPosition(), 0
    while (shard := known.get(number)) is not None and shard.begin == position:
        position, number = shard.end, number + 1
    return range(position.source, num_sources)


def plan_spans(
    known: Mapping[int, FinishedShard], counts: Mapping[int, int], num_sources: int, shard_size: int
) -> Iterator[InputSpan]:
    """The spans of all shards; those that are known keep their ends. counts: samples by index of the source."""
    position, number = InputPosition(), 0
    while position.source < num_sources:
        shard = known.get(number)
        is_known = shard is not None and shard.begin == position
        end = shard.end if is_known else _end_of_span(position, counts, num_sources, shard_size)
        yield InputSpan(number=number, begin=position, end=end)
        position, number = end, number + 1


def make_span(
    preparation: Preparation,
    maker: ShardMaker,
    reader: SpanReader,
    span: InputSpan,
    on_samples: Callable[[int], None] = lambda num_samples: None,
) -> FinishedShard:
    """Make the shard of a span; PreparationError if its sources have other samples than were counted."""
    reader.skip_to(span.begin)
    shard = maker.make(span.number, reader, on_samples, span.end)
    if shard.end != span.end:
        raise PreparationError(
            f"{span.describe(preparation.sources)} ends at {shard.end}, and by what was counted at {span.end}: "
            f"sources have changed. Choose another --output, or delete {preparation.output}."
        )
    return shard


def _end_of_span(begin: InputPosition, counts: Mapping[int, int], num_sources: int, shard_size: int) -> InputPosition:
    """Where `SpanReader` stands when it has read a span: at a source's end it does not look for the next one."""
    source, sample = begin.source, begin.sample
    while source < num_sources:
        if counts[source] - sample >= shard_size:
            return InputPosition(source=source, sample=sample + shard_size)
        shard_size -= counts[source] - sample
        source, sample = source + 1, 0
    return InputPosition(source=num_sources)
