"""Language models: masked ones as BERT and ALBERT, causal ones as GPT-2 and Llama.

sahajBERT, which volunteers trained together in 2021, is an ALBERT whose loss also asked for the order of two segments
(sentence order prediction). Here only masked tokens are predicted: any `AutoModelForMaskedLM` can be trained this
way, on any text, without knowing where its sentences end.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path

import torch
from PIL.Image import Image
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from hub_tools.waiting.outages import through_outages
from pipelines.core.run.block_order import BlockOrder
from pipelines.core.run.span_source import SpanSource, WholeDataset
from pipelines.core.run.spans import Span
from pipelines.core.run.task import Batch, BatchSize, NamedBatch, size_of_next
from pipelines.core.run.training_run import TrainingRun, stable_seed
from pipelines.features.memory_estimate.estimate import count_parameters, estimate_training_memory
from pipelines.features.memory_estimate.model_presets import ModelSizes
from pipelines.features.memory_estimate.settings import MemoryEstimate, MemorySettings
from pipelines.features.publishing.card.run_card import run_card
from pipelines.features.publishing.publishable_task import CheckpointFacts, PublishableTask
from pipelines.tasks.language_modeling.documents import (
    check_dataset,
    held_out_documents,
    open_dataset,
    training_blocks,
    training_documents,
)
from pipelines.tasks.language_modeling.model import initial_model, model_configuration
from pipelines.tasks.language_modeling.model_card import card_parts
from pipelines.tasks.language_modeling.samples import (
    IGNORED,
    Sample,
    masked_samples,
    packed_samples,
    shuffled,
    to_batch,
    to_batches,
)
from pipelines.tasks.language_modeling.settings import FILL_MASK, LanguageSettings
from pipelines.tasks.language_modeling.text_stream import stream_text
from pipelines.tasks.language_modeling.tokenizer import check_tokenizer_fits, read_tokenizer
from pipelines.tasks.streaming import check_pass, passes_through_outages
from pipelines.tasks.text_to_image.image_codes.shard_blocks import ShardBlocks

EVALUATION_BATCH_SIZE = 8


class LanguageModelingTask(PublishableTask):
    """Trains a masked or a causal language model on a dataset of text; see `TrainingTask`.

    Weights, and so the target batch, count predicted tokens: all but the first of a sequence of `text-generation`,
    those that are masked of `fill-mask`.
    """

    device_program = "pipelines.tasks.device_program"

    def __init__(self, run: TrainingRun, place: str, revision: str | None = None) -> None:
        self.run, self._place, self._revision = run, place, revision
        self._fills_masks = run.task == FILL_MASK

    @cached_property
    def settings(self) -> LanguageSettings:
        """Where the text is, and how it becomes sequences."""
        return LanguageSettings.from_mapping(self.run.task_settings)

    @cached_property
    def config(self) -> PretrainedConfig:
        """The model's sizes."""
        return model_configuration(self.run.model_config, self.run.task)

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The run's tokenizer."""
        return read_tokenizer(self._place, self._revision)

    @property
    def sample_weight(self) -> float:
        """Predicted tokens of a full-length sequence."""
        return self.settings.sample_weight(self.run.task)

    def check(self) -> None:
        check_tokenizer_fits(self.tokenizer, self.config, self.run.task, self.settings)
        check_dataset(self.run, self.settings)

    def new_model(self) -> PreTrainedModel:
        return initial_model(self.run, self.settings)

    def compiling_pays(self) -> bool:
        """True if all sequences have one length: `torch.compile` recompiles for each new shape."""
        return not self._fills_masks

    @cached_property
    def blocks(self) -> ShardBlocks | None:
        """The dataset's blocks; None: it has none."""
        return through_outages(partial(training_blocks, self.run, self.settings))

    def block_order(self, *labels: object) -> BlockOrder | None:
        """See `TrainingTask.block_order`: of documents in Parquet files."""
        if (blocks := self.blocks) is None:
            return None
        seed = stable_seed(self.run.seed, *labels)
        return BlockOrder(lambda: len(blocks.shards), lambda shard: through_outages(partial(blocks.sizes, shard)), seed)

    def batches(
        self, *, batch_size: BatchSize, seed: int, shuffle_buffer_size: int, spans: SpanSource | None = None
    ) -> Iterator[Batch]:
        """See `TrainingTask.batches`. A sequence's masks follow from the run's seed and the pass, not from `seed`."""
        if self.blocks is not None and (order := self.block_order(seed)) is not None:
            source = spans or WholeDataset(order)
            return stream_text(self.blocks, source, self.tokenizer, self.run, self.settings, batch_size)
        return self._streamed_batches(batch_size, seed, shuffle_buffer_size)

    def _streamed_batches(self, batch_size: BatchSize, seed: int, shuffle_buffer_size: int) -> Iterator[Batch]:
        """The same of a dataset without blocks."""
        source = open_dataset(self.run, self.settings)["train"]

        def one_pass(number: int) -> Iterator[Batch]:
            documents = training_documents(self.run, self.settings, source, seed=seed, number=number)
            order = stable_seed(seed, number, "samples")
            samples = iter(shuffled(self._samples(documents, number), order, shuffle_buffer_size))
            num_batches, size = 0, size_of_next(batch_size)
            while len(some := list(itertools.islice(samples, size))) == size:
                yield to_batch(some, self.tokenizer)
                num_batches, size = num_batches + 1, size_of_next(batch_size)
            if number == 0:
                check_pass(num_batches, self.run.dataset_repository, size, "sequences")
            elif some and not num_batches:  # the size has grown beyond all there is
                yield to_batch(some, self.tokenizer)

        return passes_through_outages(one_pass)

    def read_again(self, spans: Sequence[Span], num_batches: int) -> Iterator[NamedBatch]:
        """See `TrainingTask.read_again`: documents do not tell how they were cut into sequences."""
        raise ValueError("Batches of text cannot be read again: their names are those of the documents that end there.")

    def held_out_batches(self) -> Sequence[Batch]:
        """Read the first `num_evaluation_records` sequences of held-out documents, masked in one fixed way."""
        samples = self._samples(held_out_documents(self.run, self.settings), "evaluation")
        found = [sample for sample, _ in zip(samples, range(self.run.num_evaluation_records), strict=False)]
        return list(to_batches(found, self.tokenizer, EVALUATION_BATCH_SIZE))

    def _samples(self, documents: Iterable[str], number: object) -> Iterator[Sample]:
        if self._fills_masks:
            return masked_samples(documents, self.tokenizer, self.settings, stable_seed(self.run.seed, number))
        return packed_samples(documents, self.tokenizer, self.settings)

    def made_up_batch(self, size: int) -> Batch:
        """See `TrainingTask.made_up_batch`: sequences of full length."""
        input_ids = torch.full((self.settings.sequence_length,), self.config.vocab_size // 2)
        labels = input_ids.clone()
        labels[: -math.ceil(self.sample_weight)] = IGNORED
        sample = dict(input_ids=input_ids, attention_mask=torch.ones_like(input_ids), labels=labels)
        return {name: tensor.repeat(size, 1) for name, tensor in sample.items()}

    def loss(self, model: torch.nn.Module, batch: Batch) -> tuple[torch.Tensor, int]:
        """Return the cross-entropy summed over predicted tokens, float32, and the number of those tokens."""
        inputs, labels = {name: tensor for name, tensor in batch.items() if name != "labels"}, batch["labels"]
        if self._fills_masks:
            logits = model(**inputs).logits
        else:
            logits, labels = model(**inputs, use_cache=False).logits[:, :-1], labels[:, 1:]
        total = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED, reduction="sum"
        )
        return total, int((labels != IGNORED).sum())

    def save(self, folder: Path, model: PreTrainedModel) -> None:
        """See `PublishableTask.save`: safetensors and tokenizer, which transformers loads without further code."""
        model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    def companions(self) -> Mapping[str, tuple[str, str | None]]:
        """Return nothing: no other repositories are needed."""
        return {}

    def card(self, facts: CheckpointFacts) -> str:
        return run_card(self.run, facts, card_parts(self.run, self.settings, facts))

    def draw(self, model: torch.nn.Module, prompts: Sequence[str]) -> Image | None:
        """Return None: a language model draws nothing."""
        return None

    def memory(self, settings: MemorySettings) -> MemoryEstimate:
        settings = settings.replace(sequence_length=settings.sequence_length or self.settings.sequence_length)
        return estimate_training_memory(self._model_sizes, settings)

    def num_parameters(self) -> int:
        return count_parameters(self._model_sizes)

    @property
    def _model_sizes(self) -> ModelSizes:
        model_configuration(self.run.model_config, self.run.task)  # refuses what cannot be trained
        return ModelSizes.of(self.run.model_config)
