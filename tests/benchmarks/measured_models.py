"""Training steps of known models and of ours, counted tensor by tensor; what the memory estimate is held against."""

import contextlib

import torch
from memory_measurement import MeasuredStep, measure_step
from torch._subclasses import FakeTensorMode
from transformers import (
    AlbertForMaskedLM,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    BertForMaskedLM,
    PreTrainedModel,
)

from modeling_dalle_collab import DalleCollabConfig, DalleCollabForConditionalGeneration
from pipelines.features.memory_estimate.model_presets import ModelSizes

NO_DROPOUT = dict.fromkeys(
    (
        *("attn_pdrop", "resid_pdrop", "embd_pdrop", "hidden_dropout_prob", "attention_probs_dropout_prob"),
        *("dropout_rate", "attention_dropout", "dropout"),
    ),
    0.0,
)
"""On a CPU the masks of dropout take four bytes a value, on a GPU, which is what the estimate describes, one."""

KINDS = {"albert": AutoModelForMaskedLM, "bert": AutoModelForMaskedLM}
KINDS |= {"bart": AutoModelForSeq2SeqLM, "t5": AutoModelForSeq2SeqLM}


def without_dropout(sizes: ModelSizes) -> ModelSizes:
    """Return the same model without dropout."""
    known = AutoConfig.for_model(**sizes.values).to_dict()
    return ModelSizes.of(sizes.values | {name: rate for name, rate in NO_DROPOUT.items() if name in known})


def build_known_model(sizes: ModelSizes) -> PreTrainedModel:
    """Return transformers' model of these sizes, without dropout."""
    config = AutoConfig.for_model(**without_dropout(sizes).values)
    return KINDS.get(config.model_type, AutoModelForCausalLM).from_config(config)


def measure_known_model(model: PreTrainedModel, *, batch: int, sequence: int, autocast: bool = False) -> MeasuredStep:
    """Count the tensors of a step; under `FakeTensorMode` a model of any size."""
    ids = torch.zeros(batch, sequence, dtype=torch.long)
    options = {} if isinstance(model, (AlbertForMaskedLM, BertForMaskedLM)) else dict(use_cache=False)
    if model.config.is_encoder_decoder:
        options["decoder_input_ids"] = ids

    def loss() -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            return model(input_ids=ids, labels=ids, **options).loss

    return measure_step(model, loss)


def measure_our_model(
    sizes: dict, *, batch: int, recompute: str, precision: str = "fp32", fake: bool = False
) -> MeasuredStep:
    """Count the tensors of our model's step; fake ones have no values, so that large models need no memory."""
    config = DalleCollabConfig(**sizes, recompute=recompute if recompute != "checkpoint" else "none")
    half = torch.bfloat16
    torch.set_default_dtype(half if precision.startswith("pure") else torch.float32)
    try:
        with FakeTensorMode() if fake else contextlib.nullcontext():
            model = DalleCollabForConditionalGeneration(config)
            if recompute == "checkpoint":
                model.activation_checkpointing_enable()
            text = torch.zeros(batch, config.text_sequence_length, dtype=torch.long)
            codes = torch.zeros(batch, config.num_image_codes, dtype=torch.long)

            def loss() -> torch.Tensor:
                with torch.autocast("cpu", dtype=half, enabled=precision == "bf16"):
                    return model(input_ids=text, image_codes=codes, return_logits=False).loss

            return measure_step(model, loss)
    finally:
        torch.set_default_dtype(torch.float32)
