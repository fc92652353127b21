"""How much memory a language run's model takes, also if the calculator does not know its family."""

import dataclasses

from transformers import PretrainedConfig

from pipelines.memory_estimate.estimate import estimate_training_memory
from pipelines.memory_estimate.hub_config import KNOWN_MODEL_TYPES, sizes_from_config
from pipelines.memory_estimate.models.transformer_sizes import TransformerSizes
from pipelines.memory_estimate.settings import MemoryEstimate, MemorySettings, MemorySplit
from pipelines.training.run.training_run import TrainingRun
from pipelines.training.tasks.language_modeling.model import model_configuration, num_parameters, num_positions
from pipelines.training.tasks.language_modeling.settings import FILL_MASK, LanguageSettings

OF_PARAMETERS = ("weights", "gradients", "optimizer", "buffers")
"""What depends only on the number of parameters."""


def language_memory(run: TrainingRun, language: LanguageSettings, settings: MemorySettings) -> MemoryEstimate:
    """Estimate what training takes, with sequences of the run's length unless the settings say another."""
    config = model_configuration(run.model_config, run.task)
    settings = settings.replace(sequence_length=settings.sequence_length or language.sequence_length)
    if config.model_type in KNOWN_MODEL_TYPES:
        return estimate_training_memory(sizes_from_config(config.to_dict()), settings)
    estimate = estimate_training_memory(_nearest_sizes(config, run.task, settings), settings)
    number = num_parameters(config, run.task)
    factor = number / estimate.num_parameters
    return MemoryEstimate(
        gpu=_rescaled(estimate.gpu, factor), ram=_rescaled(estimate.ram, factor), num_parameters=number
    )


def _nearest_sizes(config: PretrainedConfig, task: str, settings: MemorySettings) -> TransformerSizes:
    """Return the sizes of a BERT or a GPT-2 with the model's own numbers, as far as they have the usual names."""
    hidden, heads = config.hidden_size, config.num_attention_heads
    return TransformerSizes(
        family="bert" if task == FILL_MASK else "gpt2",
        vocab_size=config.vocab_size,
        hidden_size=hidden,
        num_layers=config.num_hidden_layers,
        num_heads=heads,
        head_size=getattr(config, "head_dim", None) or max(1, hidden // heads),
        wide_size=getattr(config, "intermediate_size", None) or 4 * hidden,
        max_sequence_length=num_positions(config) or settings.sequence_length,
        has_slow_gelu=False,
        has_tied_table=bool(config.tie_word_embeddings),
    )


def _rescaled(split: MemorySplit, factor: float) -> MemorySplit:
    return dataclasses.replace(split, **{name: round(getattr(split, name) * factor) for name in OF_PARAMETERS})
