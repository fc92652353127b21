"""How far drawn codes are from what the model, the prompt and the seed make of them: one pass for each candidate.

A code is right if its candidate's random number lies in the code's interval of the cumulative probabilities; the
distance from that interval is 0 for an honest server up to rounding. The mean over a candidate's places is its
*excess*.
"""

import torch
from torch import Tensor

from modeling_dalle_collab import DalleCollabForConditionalGeneration
from modeling_dalle_collab.sampling_dalle_collab import SamplingOptions, choose_codes, keep_likely
from pipelines.serving.draw.requests import Wish


@torch.no_grad()
def excesses(
    model: DalleCollabForConditionalGeneration, wish: Wish, numbers: Tensor, codes: Tensor, *, batch_size: int = 16
) -> Tensor:
    """Return how far candidates are from what was wished for: (candidate,) float64.

    `numbers`, (candidate, image) float64, are those of `Wish.numbers`; `codes`, (candidate, places) int64, are all
    codes of each candidate, given ones included. The model must be the wish's own, in float32.
    """
    parts = []
    for some_codes, some_numbers in zip(codes.split(batch_size), numbers.split(batch_size), strict=True):
        logits = logits_behind(model, wish, some_codes)  # (candidate, place, code)
        places = slice(wish.num_given, codes.shape[1])
        distances = distances_from(
            logits[:, places].flatten(0, 1),
            some_numbers[:, places].flatten().to(logits.device),
            some_codes[:, places].flatten().to(logits.device),
            wish.options,
        )
        parts.append(distances.view(len(some_codes), -1).mean(dim=1).cpu())
    return torch.cat(parts)


@torch.no_grad()
def logits_behind(model: DalleCollabForConditionalGeneration, wish: Wish, codes: Tensor) -> Tensor:
    """Return the logits from which each place's code was chosen, guided if wished: (candidate, place, code) float32."""
    missing = model.config.num_image_codes - codes.shape[1]
    whole = torch.nn.functional.pad(codes, (0, missing)).to(model.device)
    text = wish.input_ids.to(model.device).expand(len(codes), -1)

    def image_logits(input_ids: Tensor) -> Tensor:
        hidden = model.model(input_ids, whole).last_hidden_state
        return model.block_logits(hidden)[1][:, : codes.shape[1]].float()

    logits, scale = image_logits(text), wish.options.guidance_scale
    if scale == 1:
        return logits
    null = image_logits(torch.full_like(text, model.config.pad_token_id))
    return null + (logits - null) * scale


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


@torch.no_grad()
def honest_excesses(
    exact: DalleCollabForConditionalGeneration,
    rounded: DalleCollabForConditionalGeneration,
    wish: Wish,
    numbers: Tensor,
    codes: Tensor,
) -> Tensor:
    """Return the excess of an honest server that computes with `rounded`, estimated on given candidates: (candidate,).

    At every place, after the same codes, it chooses by its own logits; that is one pass, where drawing takes hundreds.
    """
    places = slice(wish.num_given, codes.shape[1])
    drawn = numbers[:, places].flatten().to(exact.device)
    chosen = choose_codes(logits_behind(rounded, wish, codes)[:, places].flatten(0, 1), drawn, wish.options)
    logits = logits_behind(exact, wish, codes)[:, places].flatten(0, 1)
    return distances_from(logits, drawn, chosen, wish.options).view(len(codes), -1).mean(dim=1).cpu()
