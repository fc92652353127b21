"""Reads the samples of several sources in spans, and can go on from any position."""

from collections.abc import Iterator, Sequence

from pipelines.tasks.text_to_image.data_preparation.preparation_manifest import InputPosition
from pipelines.tasks.text_to_image.data_preparation.sources.sample import CaptionImage, CaptionImageSource, SourceDamage


class SpanReader:
    """Reads samples across sources and tracks its position; can resume from any position."""

    def __init__(self, sources: Sequence[CaptionImageSource]):
        self.sources = sources
        self.position = InputPosition()
        self.damages: list[SourceDamage] = []
        self._samples: Iterator[CaptionImage | SourceDamage] | None = None
        self._bytes_of_source = 0

    def is_at_end(self) -> bool:
        """Whether every source was read to its end."""
        return self.position.source >= len(self.sources)

    @property
    def bytes_read(self) -> int:
        """Bytes of the sources read so far; of the one being read, those of its pictures."""
        done = sum(source.num_bytes for source in self.sources[: self.position.source])
        if self.is_at_end():
            return done
        return done + min(self.sources[self.position.source].num_bytes, self._bytes_of_source)

    def skip_to(self, position: InputPosition) -> None:
        """Resume from a position; the sources before it are not opened."""
        self.position, self._samples, self.damages, self._bytes_of_source = position, None, [], 0

    def read_span(self, num_samples: int, end: InputPosition | None = None) -> Iterator[CaptionImage]:
        """At most num_samples more samples, up to `end`; damage found on the way is appended to `damages`."""
        self.damages = []
        while num_samples > 0 and not self.is_at_end() and self.position != end:
            sample = next(self._open(), None)
            if sample is None:
                self._next_source()
            elif isinstance(sample, SourceDamage):
                self.damages.append(sample)
            else:
                self.position = InputPosition(source=self.position.source, sample=self.position.sample + 1)
                self._bytes_of_source += len(sample.image_bytes or b"")
                num_samples -= 1
                yield sample

    def _open(self) -> Iterator[CaptionImage | SourceDamage]:
        if self._samples is None:
            self._samples = self.sources[self.position.source].samples(self.position.sample)
        return self._samples

    def _next_source(self) -> None:
        self.position, self._samples = InputPosition(source=self.position.source + 1), None
        self._bytes_of_source = 0
