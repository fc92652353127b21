"""A task without features: the text-to-image model of a tiny run, without data and without a repository."""

from collections.abc import Iterator, Sequence

import torch

from modeling_dalle_collab import DalleCollabForConditionalGeneration
from pipelines.core.run.block_order import BlockOrder
from pipelines.core.run.span_source import SpanSource
from pipelines.core.run.spans import Span
from pipelines.core.run.task import Batch, BatchSize, NamedBatch, TrainingTask, num_samples
from pipelines.core.run.training_run import TrainingRun
from pipelines.tasks.text_to_image.image_code_stream import image_code_batch
from pipelines.tasks.text_to_image.model import initial_model


class ModelTask(TrainingTask):
    """See `TrainingTask`. Batches come from the test."""

    sample_weight = 1.0
    device_program = "pipelines.tasks.device_program"  # with several devices alone: a feature

    def __init__(self, run: TrainingRun) -> None:
        self.run = run

    def check(self) -> None:
        pass

    def new_model(self) -> DalleCollabForConditionalGeneration:
        return initial_model(self.run)

    def compiling_pays(self) -> bool:
        return True

    def batches(
        self, *, batch_size: BatchSize, seed: int, shuffle_buffer_size: int, spans: SpanSource | None = None
    ) -> Iterator[Batch]:
        raise NotImplementedError

    def block_order(self, *labels: object) -> BlockOrder | None:
        return None

    def read_again(self, spans: Sequence[Span], num_batches: int) -> Iterator[NamedBatch]:
        raise NotImplementedError

    def held_out_batches(self) -> Sequence[Batch]:
        return ()

    def made_up_batch(self, size: int) -> Batch:
        sizes = self.run.model_config
        input_ids = torch.ones(size, sizes["text_sequence_length"], dtype=torch.int64)
        return image_code_batch(input_ids, torch.zeros(size, sizes["image_grid_size"] ** 2, dtype=torch.int64))

    def loss(self, model: torch.nn.Module, batch: Batch) -> tuple[torch.Tensor, int]:
        """Return the sum over samples of each one's mean loss, and their number."""
        number = num_samples(batch)
        return model(**batch, return_logits=False).loss * number, number
