"""Servers that do not draw what they are asked for, each in its own way, and honest ones of other precisions."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor

from modeling_dalle_collab import DalleCollabForConditionalGeneration
from pipelines.features.serving.draw.requests import SamplingRequest
from pipelines.tools.chaos.serving.false_server import with_noise

Draw = Callable[[DalleCollabForConditionalGeneration, SamplingRequest, int], Tensor]
"""Returns the first candidates of a sampling request, (candidate, image) int64."""


def honest(
    model: DalleCollabForConditionalGeneration, sampling: SamplingRequest, number: int, **changes: object
) -> Tensor:
    """Draw with this model; `changes` are options that a liar takes instead of those wished for."""
    options = vars(sampling.options) | dict(seed=sampling.seed) | changes
    return model.generate_image_codes(sampling.input_ids, num_candidates=number, **options)[0]


def in_bfloat16(model: DalleCollabForConditionalGeneration) -> DalleCollabForConditionalGeneration:
    """Return the model as a bfloat16 server has it."""
    return copy.deepcopy(model).bfloat16()


def in_int8(model: DalleCollabForConditionalGeneration) -> DalleCollabForConditionalGeneration:
    """Return the model as an int8 server has it."""
    rounded = copy.deepcopy(model)
    rounded.use_int8_weights()
    return rounded


def replace_a_row(codes: Tensor, model: DalleCollabForConditionalGeneration, seed: int) -> Tensor:
    """Return drawn codes with one row of each candidate replaced by arbitrary codes."""
    size, generator = model.config.image_grid_size, torch.Generator().manual_seed(seed)
    row, replaced = seed % size, codes.clone()
    replaced[:, row * size : (row + 1) * size] = torch.randint(
        0, model.config.codebook_size, (len(codes), size), generator=generator
    )
    return replaced


def drawings_of_liars(
    model: DalleCollabForConditionalGeneration, sampling: SamplingRequest, number: int, seed: int
) -> dict[str, Tensor]:
    """Return what each kind of liar draws for a sampling request."""
    return {
        "other temperature": honest(model, sampling, number, temperature=0.7 * sampling.options.temperature),
        "other seed": honest(model, sampling, number, seed=sampling.seed + 1),
        "10 % noise": honest(with_noise(model, 0.1, seed), sampling, number),
        "one replaced row": replace_a_row(honest(model, sampling, number), model, seed),
    }
