"""Text to image: image codes that follow a caption, as in *Training Transformers Together*."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path

import torch
from PIL.Image import Image

from hub_tools.waiting.outages import through_outages
from modeling_dalle_collab import DalleCollabConfig, DalleCollabForConditionalGeneration, DalleCollabProcessor
from pipelines.core.run.block_order import BlockOrder
from pipelines.core.run.span_source import SpanSource, WholeDataset
from pipelines.core.run.spans import Span
from pipelines.core.run.task import Batch, BatchSize, NamedBatch, num_samples, size_of_next
from pipelines.core.run.training_run import TrainingRun, stable_seed
from pipelines.features.memory_estimate.estimate import count_parameters, estimate_training_memory
from pipelines.features.memory_estimate.model_presets import ModelSizes
from pipelines.features.memory_estimate.run_memory import run_sizes
from pipelines.features.memory_estimate.settings import MemoryEstimate, MemorySettings
from pipelines.features.publishing.card.run_card import run_card
from pipelines.features.publishing.publishable_task import CheckpointFacts, PublishableTask
from pipelines.tasks.text_to_image.gallery_drawing import GalleryDrawer
from pipelines.tasks.text_to_image.held_out_evaluation import held_out_batches
from pipelines.tasks.text_to_image.image_code_stream import (
    check_size,
    dataset_layout,
    image_code_batch,
    read_batches_again,
    stream_batches,
    training_blocks,
)
from pipelines.tasks.text_to_image.image_codes.codec_code import copy_codec_code
from pipelines.tasks.text_to_image.image_codes.image_code_record import ImageCodeLayout
from pipelines.tasks.text_to_image.image_codes.shard_blocks import ShardBlocks
from pipelines.tasks.text_to_image.model import initial_model, model_configuration, read_processor
from pipelines.tasks.text_to_image.model_card import card_parts
from pipelines.tasks.text_to_image.run_creation import check_codec_fits, check_dataset_fits


class TextToImageTask(PublishableTask):
    """Trains `DalleCollabForConditionalGeneration` on a dataset of image codes; see `TrainingTask`."""

    sample_weight = 1.0
    device_program = "pipelines.tasks.device_program"

    def __init__(self, run: TrainingRun, place: str, revision: str | None = None) -> None:
        self.run, self._place, self._revision = run, place, revision

    @cached_property
    def config(self) -> DalleCollabConfig:
        """The model's sizes."""
        return model_configuration(self.run)

    @cached_property
    def processor(self) -> DalleCollabProcessor:
        """The run's tokenizer, with the names of its codec and its CLIP."""
        return read_processor(self._place, self._revision)

    @cached_property
    def layout(self) -> ImageCodeLayout:
        """Which codec made the dataset's codes."""
        return dataset_layout(self.run.dataset_repository, self.run.dataset_revision)

    def check(self) -> None:
        check_codec_fits(self.layout, self.processor.image_codec_fingerprint, self.run.dataset_repository)
        check_dataset_fits(self.run, self.layout)

    def new_model(self) -> DalleCollabForConditionalGeneration:
        return initial_model(self.run)

    def compiling_pays(self) -> bool:
        """See `TrainingTask.compiling_pays`: layers share what is compiled, and all sequences have one length."""
        return True

    @cached_property
    def blocks(self) -> ShardBlocks:
        """The dataset's blocks."""
        return through_outages(partial(training_blocks, self.run.dataset_repository, self.run.dataset_revision))

    def block_order(self, *labels: object) -> BlockOrder:
        return BlockOrder(lambda: len(self.blocks.shards), self._sizes, stable_seed(self.run.seed, *labels))

    def _sizes(self, shard: int) -> Sequence[int]:
        return through_outages(partial(self.blocks.sizes, shard))

    def batches(
        self, *, batch_size: BatchSize, seed: int, shuffle_buffer_size: int, spans: SpanSource | None = None
    ) -> Iterator[Batch]:
        through_outages(partial(check_size, self.blocks, self.run.dataset_repository, size_of_next(batch_size)))
        return stream_batches(
            self.blocks,
            spans or WholeDataset(self.block_order(seed)),
            self.processor,
            num_codes=self.layout.num_codes,
            batch_size=batch_size,
            seed=self.run.seed,
            held_out_share=self.run.held_out_share,
        )

    def read_again(self, spans: Sequence[Span], num_batches: int) -> Iterator[NamedBatch]:
        return read_batches_again(
            self.blocks,
            spans,
            num_batches,
            self.processor,
            num_codes=self.layout.num_codes,
            seed=self.run.seed,
            held_out_share=self.run.held_out_share,
        )

    def held_out_batches(self) -> Sequence[Batch]:
        return held_out_batches(self.run, self.processor, self.config.num_image_codes)

    def made_up_batch(self, size: int) -> Batch:
        input_ids = torch.ones(size, self.config.text_sequence_length, dtype=torch.int64)
        return image_code_batch(input_ids, torch.zeros(size, self.config.num_image_codes, dtype=torch.int64))

    def loss(self, model: torch.nn.Module, batch: Batch) -> tuple[torch.Tensor, int]:
        """Return the sum over samples of each one's mean loss, and their number."""
        number = num_samples(batch)
        return model(**batch, return_logits=False).loss * number, number

    def save(self, folder: Path, model: torch.nn.Module) -> None:
        model.save_pretrained(folder)
        self.processor.save_pretrained(folder)
        copy_codec_code(folder)

    def companions(self) -> Mapping[str, tuple[str, str | None]]:
        """Return the codec, which is needed to turn the model's codes into pictures."""
        return {"codec": (self.processor.image_codec_repository, self.processor.image_codec_revision)}

    def card(self, facts: CheckpointFacts) -> str:
        return run_card(self.run, facts, card_parts(self.run, self.config, facts))

    def draw(self, model: torch.nn.Module, prompts: Sequence[str]) -> Image:
        """See `PublishableTask.draw`: one row of pictures for each prompt."""
        return self._drawer.draw(model, prompts)

    @cached_property
    def _drawer(self) -> GalleryDrawer:
        return GalleryDrawer(self.processor)

    def memory(self, settings: MemorySettings) -> MemoryEstimate:
        return estimate_training_memory(self._model_sizes, settings.replace(recompute=self.config.recompute))

    def num_parameters(self) -> int:
        return count_parameters(self._model_sizes)

    @property
    def _model_sizes(self) -> ModelSizes:
        return run_sizes(self.run)
