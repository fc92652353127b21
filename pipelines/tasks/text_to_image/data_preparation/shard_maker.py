"""Makes single shards: spans of the input, decoded, encoded and written."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Self

from hub_tools.atomic_files import file_digest
from pipelines.tasks.text_to_image.data_preparation.device_encoding import Encoders
from pipelines.tasks.text_to_image.data_preparation.encoding import EncodedSamples, encode_samples
from pipelines.tasks.text_to_image.data_preparation.filtering import damage_report, sum_reports
from pipelines.tasks.text_to_image.data_preparation.pictures.decoding_pool import DecodingPool
from pipelines.tasks.text_to_image.data_preparation.pictures.dropped_pictures import DroppedPictures
from pipelines.tasks.text_to_image.data_preparation.pictures.picture_options import DecodingSettings
from pipelines.tasks.text_to_image.data_preparation.preparation_manifest import FinishedShard, InputPosition
from pipelines.tasks.text_to_image.data_preparation.span_reader import SpanReader
from pipelines.tasks.text_to_image.image_codes.image_code_record import (
    ImageCodeLayout,
    image_code_table,
    write_image_code_shard,
)
from pipelines.tasks.text_to_image.image_codes.vqgan_codec import VQGANCodec

if TYPE_CHECKING:
    from pipelines.tasks.text_to_image.data_preparation.shard_writing import PreparationOptions


class ShardMaker:
    """Makes shards with a pool of decoders and the codec on its devices, which live as long as it does."""

    def __init__(self, codec: VQGANCodec, layout: ImageCodeLayout, output: Path, options: "PreparationOptions"):
        self.layout, self.output, self.shard_size = layout, output, options.shard_size
        settings = DecodingSettings(side=codec.config.image_size, policy=options.policy, options=options.pictures)
        self.pool = DecodingPool(settings, options.num_workers)
        self.encoders = Encoders(
            codec,
            devices=options.devices,
            precision=options.precision,
            num_threads=options.num_workers,
            batch_size=options.batch_size,
        )
        self.dropped = DroppedPictures(output, self.pool)
        self._contexts = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._contexts.enter_context(self.pool)
        self._contexts.enter_context(self.encoders)
        return self

    def __exit__(self, *exception: object) -> None:
        self._contexts.close()

    def make(
        self, number: int, reader: SpanReader, on_samples: Callable[[int], None], end: InputPosition | None = None
    ) -> FinishedShard:
        """The next shard of the input, up to `end`, written."""
        begin = reader.position
        self.dropped.begin_shard(number)
        encoded = encode_samples(
            reader.read_span(self.shard_size, end),
            self.pool,
            self.encoders,
            on_samples=on_samples,
            on_drop=self.dropped.keep,
        )
        name = _write(encoded, self.layout, self.output / f"train-{number:05d}.parquet")
        return FinishedShard(
            name=name,
            num_rows=len(encoded.captions),
            num_bytes=(self.output / name).stat().st_size if name else 0,
            sha256=file_digest(self.output / name) if name else "",
            begin=begin,
            end=reader.position,
            report=sum_reports([encoded.report, *map(damage_report, reader.damages)]),
        )


def _write(encoded: EncodedSamples, layout: ImageCodeLayout, path: Path) -> str | None:
    if not encoded.captions:
        return None
    write_image_code_shard(path, image_code_table(encoded.captions, encoded.image_codes, layout, encoded.scalars))
    return path.name
