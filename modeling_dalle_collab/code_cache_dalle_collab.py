"""What the layers have read of captions and the first codes of their images, for a sampling loop of one's own.

Axes: sample, step (neighbouring places of a sample, read together), hidden.
"""

from typing import Any

import torch
from torch import Tensor

from .cache_dalle_collab import GenerationCache
from .generation_dalle_collab import ImageCodeGeneration
from .guessing_dalle_collab import WINDOWS
from .inputs_dalle_collab import check_attention_mask, check_image_prompt, check_text, require_ids


class ImageCodeCache:
    """The `past_key_values` of a model: each pass with it reads more codes, and changes it.

    To try several continuations, take a copy for each before: `select(rows)`, or `copy.deepcopy`.
    """

    def __init__(self, cache: GenerationCache, input_ids: Tensor, num_codes: int) -> None:
        self._cache, self.input_ids, self.num_codes = cache, input_ids, num_codes

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return how many image codes have been read: the same in every layer."""
        return self.num_codes

    def select(self, rows: Tensor) -> "ImageCodeCache":
        """Return a copy that goes on with these samples, (row,) int64, some perhaps repeatedly, as beams do."""
        return ImageCodeCache(self._cache.select(rows), self.input_ids[rows], self.num_codes)

    def __deepcopy__(self, memo: dict[int, Any]) -> "ImageCodeCache":
        return self.select(torch.arange(len(self.input_ids), device=self.input_ids.device))

    def read(self, x: Tensor) -> Tensor:
        """Read the next codes, embedded, (sample, step, hidden); return the states behind each, in the same shape."""
        num_places, parts = len(self._cache.neighbours), []
        if not x.shape[1] or self.num_codes + x.shape[1] >= num_places:
            raise ValueError(
                f"{self.num_codes} codes have been read and {x.shape[1]} more are given, expected 1 to "
                f"{num_places - 1 - self.num_codes}: nothing is predicted behind the last code of an image."
            )
        for part in x.split(self._cache.window, dim=1):
            places = self.num_codes + torch.arange(part.shape[1], device=x.device)
            parts.append(self._cache.step(part, places.expand(len(x), -1)))
            self.num_codes += part.shape[1]
        return torch.cat(parts, dim=1)


@torch.no_grad()
def read_codes(
    model: ImageCodeGeneration,
    input_ids: Tensor | None,
    image_codes: Tensor | None,
    past: ImageCodeCache | None = None,
    attention_mask: Tensor | None = None,
) -> tuple[Tensor, ImageCodeCache]:
    """Read captions with the first codes of their images, or more codes; return the next codes' logits.

    The logits, (sample, number, codebook_size), are those behind the last of the first codes, or behind each of the
    others; `past` is changed, and returned. No gradients. Raises `ValueError` for other shapes or ranges, or where no
    code is left to predict.
    """
    config, device = model.config, model.model.token_embedding.weight.device
    if past is None:
        check_text(require_ids("input_ids", input_ids), config, device)
    elif not isinstance(past, ImageCodeCache):
        raise ValueError(
            f"past_key_values is a {type(past).__name__}, expected what a pass with use_cache=True has returned."
        )
    elif input_ids is not None and not torch.equal(input_ids, past.input_ids):
        raise ValueError(
            "input_ids differ from those that past_key_values has read, expected the same or none. "
            "Start without past_key_values, or reorder them with past_key_values.select(rows)."
        )
    ids = require_ids("input_ids", input_ids if past is None else past.input_ids)
    codes = ids.new_zeros(len(ids), 0) if image_codes is None else image_codes
    check_image_prompt(codes, config, device, batch=len(ids))
    if attention_mask is not None:
        check_attention_mask(attention_mask, ids, config)
    with model.in_evaluation_mode():
        if past is not None:
            return model.next_code_logits(past.read(model.embed_codes(codes.long()))), past
        prefix = model.read_text(ids, codes)
        cache = model.generation_layers().open(prefix, 1, window=max(WINDOWS), static=False, compiled=False)
        return model.next_code_logits(cache.first_hidden())[:, None], ImageCodeCache(cache, ids, codes.shape[1])
