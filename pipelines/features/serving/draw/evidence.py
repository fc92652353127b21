"""How far drawn codes are from what the model, the prompt and the seed make of them: one pass for each candidate.

A code is right if its candidate's random number lies in the code's interval of the cumulative probabilities; the
distance from that interval is 0 for an honest server up to rounding. The mean over a candidate's places is its
*excess*. Tokens of a text are codes as well.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from modeling_dalle_collab.sampling_dalle_collab import SamplingOptions, choose_codes, keep_likely
from pipelines.features.serving.draw.modalities.choice import modality_of
from pipelines.features.serving.draw.requests import SamplingRequest

MOST_LOGITS = 2**27
"""Of one pass: half a gigabyte, and the same a few times more where they are sorted and summed."""


@torch.no_grad()
def excesses(
    model: PreTrainedModel,
    sampling: SamplingRequest,
    candidates: Sequence[int],
    codes: Tensor,
    *,
    rounded: PreTrainedModel | None = None,
    batch_size: int | None = None,
) -> Tensor:
    """Return how far candidates are from what was wished for, by their numbers: (candidate,) float64.

    `codes`, (candidate, place) int64, are all codes of each candidate, given ones included. The model must be the
    request's own, in float32. With `rounded` it is the excess of an honest server that computes with that: at every
    place, after the same codes, it chooses by its own logits; that is one pass, where drawing takes hundreds.
    """
    modality, numbers, parts = modality_of(model.config), sampling.numbers(candidates, model.config), []
    batch_size = batch_size or max(1, MOST_LOGITS // (codes.shape[1] * modality.num_symbols(model.config)))
    places = slice(sampling.num_given, codes.shape[1])
    for some_codes, some_numbers in zip(codes.split(batch_size), numbers.split(batch_size), strict=True):
        logits = modality.logits_behind(model, sampling, some_codes)[:, places].flatten(
            0, 1
        )  # (candidate and place, code)
        drawn, new = some_numbers[:, places].flatten().to(logits.device), some_codes[:, places]
        chosen = new.flatten().to(logits.device)
        if rounded is not None:
            own = modality.logits_behind(rounded, sampling, some_codes)[:, places].flatten(0, 1)
            chosen = choose_codes(own, drawn, sampling.options)
        distances = distances_from(logits, drawn, chosen, sampling.options).view(new.shape)
        parts.append(modality.means(distances, new, model.config).cpu())
    return torch.cat(parts)


def distances_from(logits: Tensor, numbers: Tensor, codes: Tensor, options: SamplingOptions) -> Tensor:
    """Return each number's distance from its code's interval: (sample, code) logits, (sample,) numbers and codes.

    At temperature 0 it is by how much the code is less probable than the likeliest one.
    """
    if options.temperature == 0:
        shares = logits.double().softmax(dim=-1)
        return shares.amax(dim=-1) - shares.gather(1, codes[:, None])[:, 0]
    kept = keep_likely(logits.float(), options)
    sums = (kept / options.temperature).softmax(dim=-1).double().cumsum(dim=-1)
    sums = sums / sums[:, -1:]
    ends = sums.gather(1, codes[:, None])[:, 0]
    starts = sums.gather(1, (codes - 1).clamp(min=0)[:, None])[:, 0].masked_fill(codes == 0, 0.0)
    return torch.maximum(starts - numbers, numbers - ends).clamp(min=0.0)


def drawn_here(
    model: PreTrainedModel, sampling: SamplingRequest, candidates: range, *, reads_once: bool = True
) -> Tensor:
    """Return what an honest server draws that computes as this model does: (candidate, place) int64.

    `reads_once`: candidates share what was read of the prompt; a model whose layers are elsewhere cannot copy it.
    """
    numbers, number = sampling.numbers(candidates, model.config), len(candidates)
    samplings, each = ([sampling], number) if reads_once else ([sampling] * number, 1)
    *_, codes = modality_of(model.config).stream(model, samplings, numbers, each)
    return codes.flatten(0, 1).cpu()
