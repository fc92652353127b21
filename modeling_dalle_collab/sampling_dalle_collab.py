"""How a code is sampled from its logits, and with which random numbers.

Axes: prompt, candidate, sample (prompt-major), code.
"""

import dataclasses
import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

CACHE_IMPLEMENTATIONS = ("dynamic", "static")

FROM_GENERATION_CONFIG = ("top_k", "top_p", "temperature", "guidance_scale", "cache_implementation")
"""What `generate` reads of a `GenerationConfig` to choose a code."""


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """How one image code is chosen from its logits. Raises `ValueError` for invalid values."""

    top_k: int | None = 256
    """Sample from this many likeliest codes; None or 0 for all of them."""
    top_p: float | None = None
    """Sample from the likeliest codes that together reach this probability; None or 1 for all of them."""
    temperature: float = 1.0
    """The remaining logits are divided by it; 0 always takes the likeliest code."""
    guidance_scale: float = 1.0
    """How far the logits move away from those of an empty caption, `null + scale * (caption - null)` (Ho and Salimans,
    2021); 1 leaves them. Needs a model that was trained with `caption_dropout`, and twice the work."""
    num_image_codes: int | None = None
    """Stop after this many codes, counted from the first of the image; None for the whole image."""
    cache_implementation: str = "dynamic"
    """`dynamic` computes what is visible; `static` keeps all sizes equal, as on a GPU, where passes are CUDA graphs."""
    window: int | None = None
    """Codes of a sample that a pass works on: the next one, and guesses behind it, which count if they turn out right.
    None: what is fastest, as measured on the way. The codes are those of 1."""
    compile_step: bool = False
    """Compile the layers' step from code to code (`torch.compile`), with a static cache: half a minute, once."""
    logits_processor: Any = ()
    """One or some of transformers' logits processors, or functions like them: codes so far, (sample, number) int64,
    and logits, (sample, codebook_size) float32, to logits. Called code by code, before top-k: nothing is guessed."""
    stopping_criteria: Any = ()
    """One or some of transformers' stopping criteria: codes so far, and None for scores, to whether each sample may
    end. It ends when all may, so that all are in one batch; called code by code."""

    @classmethod
    def from_mapping(cls, values: Mapping[str, object]) -> "SamplingOptions":
        """Make options from a caller's arguments; raises `TypeError` for an unknown one."""
        if unknown := values.keys() - (known := {field.name for field in dataclasses.fields(cls)}):
            raise TypeError(f"Sampling has no option {', '.join(unknown)}; it has {', '.join(sorted(known))}.")
        make: Callable[..., SamplingOptions] = cls
        return make(**values)

    def __post_init__(self) -> None:
        for name in ("logits_processor", "stopping_criteria"):
            given = getattr(self, name)
            calls = tuple(given) if isinstance(given, list | tuple) else (given,) if given is not None else ()
            if not all(map(callable, calls)):
                raise ValueError(f"{name} holds {calls!r:.80}, expected functions of codes and logits.")
            object.__setattr__(self, name, calls)
            if calls and self.window not in (None, 1):
                raise ValueError(f"window is {self.window}, expected 1: {name} is called code by code. Leave it out.")
            if calls:
                object.__setattr__(self, "window", 1)
        if not math.isfinite(self.guidance_scale):
            raise ValueError(f"guidance_scale is {self.guidance_scale}, expected a finite number; 1 for no guidance.")
        if self.num_image_codes is not None and self.num_image_codes < 1:
            raise ValueError(f"num_image_codes is {self.num_image_codes}, expected at least 1, or None for all.")
        if self.window is not None and self.window < 1:
            raise ValueError(f"window is {self.window}, expected at least 1, or None to find the fastest.")
        if self.cache_implementation not in CACHE_IMPLEMENTATIONS:
            raise ValueError(
                f"cache_implementation is {self.cache_implementation!r}, expected one of "
                f"{', '.join(CACHE_IMPLEMENTATIONS)}."
            )
        if self.top_k is not None and self.top_k < 0:
            raise ValueError(f"top_k is {self.top_k}, expected a count of at least 1, or 0 for no limit.")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}, expected a probability above 0 and up to 1.")
        if not self.temperature >= 0:
            raise ValueError(f"temperature is {self.temperature}, expected a number of at least 0.")


def keep_likely(logits: Tensor, options: SamplingOptions) -> Tensor:
    """Return (sample, code) `logits` with -inf where top-k or, after it, top-p rules a code out."""
    if options.top_k and options.top_k < logits.shape[-1]:
        lowest_kept = logits.topk(options.top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < lowest_kept, -torch.inf)
    if options.top_p is not None and options.top_p < 1:
        ordered = logits.sort(dim=-1, descending=True).values
        probabilities = ordered.softmax(dim=-1)
        before = probabilities.cumsum(dim=-1) - probabilities
        # The code that crosses the threshold is kept, so at least one always is.
        lowest_kept = ordered.masked_fill(before >= options.top_p, torch.inf).amin(dim=-1, keepdim=True)
        logits = logits.masked_fill(logits < lowest_kept, -torch.inf)
    return logits


def process_logits(logits: Tensor, codes: Tensor, options: SamplingOptions) -> Tensor:
    """Return (sample, code) `logits` as the processors leave them, after the (sample, number) `codes`.

    Raises `ValueError` if they have another shape, are not numbers, or rule out all codes of a sample.
    """
    processed = logits.to(torch.float32, copy=True)
    for processor in options.logits_processor:
        processed = processor(codes, processed)
    if processed.shape != logits.shape or not processed.amax(dim=-1).isfinite().all():
        raise ValueError(
            f"logits_processor left nothing to choose after {codes.shape[1]} codes: shape {tuple(processed.shape)}, "
            f"expected {tuple(logits.shape)} with a finite largest number for each sample. Rule out fewer codes."
        )
    return processed


def choose_codes(logits: Tensor, numbers: Tensor, options: SamplingOptions) -> Tensor:
    """Choose one code for each sample: (sample, code) logits and (sample,) numbers in [0, 1) to (sample,) int64.

    The choice walks the codes in the order of their index: rounding differences between batch sizes then only matter
    where a number falls within them of a boundary, not where two codes are about equally likely. Guesses turn out right
    as often as with the largest sum of logit and Gumbel noise: 0.190 passes a code each (tests/benchmarks/decoding.py).
    """
    if options.temperature == 0:
        return logits.argmax(dim=-1)
    kept = keep_likely(logits.float(), options)
    sums = (kept / options.temperature).softmax(dim=-1).double().cumsum(dim=-1)
    chosen = torch.searchsorted(sums, numbers[:, None] * sums[:, -1:], right=True)
    return chosen[:, 0].clamp_(max=logits.shape[-1] - 1)


def candidate_numbers(seed: int, prompts: range, candidates: range, length: int) -> Tensor:
    """Return the random numbers of candidates: (sample, length) float64 in [0, 1).

    Each candidate's come from a digest of (seed, prompt, candidate), so they do not depend on the rest of its batch.
    """
    rows = [_numbers(seed, prompt, candidate, length) for prompt in prompts for candidate in candidates]
    return torch.stack(rows)


def _numbers(seed: int, prompt: int, candidate: int, length: int) -> Tensor:
    digest = hashlib.sha256(f"{seed}/{prompt}/{candidate}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
    return torch.rand(length, generator=generator, dtype=torch.float64)


def candidate_batches(num_prompts: int, num_candidates: int, size: int) -> Iterator[tuple[range, list[range]]]:
    """Yield prompts to read together, each time with the ranges of candidates to sample for all of them.

    No product of prompts and candidates is above `size`; candidates of one prompt stay together while they fit.
    """
    prompts_at_once = max(1, size // num_candidates)
    candidates_at_once = min(num_candidates, size)
    parts = [
        range(start, min(start + candidates_at_once, num_candidates))
        for start in range(0, num_candidates, candidates_at_once)
    ]
    for start in range(0, num_prompts, prompts_at_once):
        yield range(start, min(start + prompts_at_once, num_prompts)), parts
