"""How a code is sampled from its logits, and with which random numbers.

Axes: prompt, candidate, sample (prompt-major), code.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

CACHE_IMPLEMENTATIONS = ("dynamic", "static")


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
    """`dynamic` computes what is visible; `static` keeps all sizes equal, for compiled code and CUDA graphs."""
    window: int | None = None
    """Codes of a sample that a pass works on: the next one, and guesses behind it, which count if they turn out right.
    None: what is fastest, as measured on the way. The codes are those of 1."""
    compile_step: bool = False
    """Compile the step from code to code (`torch.compile`), with a static cache: minutes once, for many images."""

    @classmethod
    def from_mapping(cls, values: Mapping[str, object]) -> "SamplingOptions":
        """Make options from a caller's arguments; raises `TypeError` for an unknown one."""
        make: Callable[..., SamplingOptions] = cls
        return make(**values)

    def __post_init__(self) -> None:
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


def likely_codes(logits: Tensor, options: SamplingOptions) -> tuple[Tensor, Tensor]:
    """Return the logits that top-k leaves of (sample, code), -inf where top-p, after it, rules a code out, and the codes.

    Both (sample, kept): float32, the largest first if anything is ruled out, and int64.
    """
    logits, size = logits.float(), logits.shape[-1]
    is_cut = options.top_p is not None and options.top_p < 1
    if not is_cut and not 0 < (options.top_k or 0) < size:
        return logits, torch.arange(size, device=logits.device).expand_as(logits)
    kept, codes = logits.topk(min(options.top_k or size, size), dim=-1)
    if is_cut:
        probabilities = kept.softmax(dim=-1)
        before = probabilities.cumsum(dim=-1) - probabilities
        # The code that crosses the threshold is kept, so at least one always is.
        kept = kept.masked_fill(before >= options.top_p, -torch.inf)
    return kept, codes


def choose_codes(logits: Tensor, keys: Tensor, places: Tensor, options: SamplingOptions) -> Tensor:
    """Choose one code for each row: (row, code) logits, (row,) keys of candidates and image places to (row,) int64.

    The code is the one whose tempered logit plus its own Gumbel noise is largest: distributed as the softmax, and for
    another, similar distribution most likely the same (the coupling of "Gumbel-max", Maddison et al., 2014). Rounding
    differences between batch sizes only matter where two of these sums are within them of each other.
    """
    if options.temperature == 0:
        return logits.argmax(dim=-1)
    kept, codes = likely_codes(logits, options)
    noise = gumbel_noise(keys[:, None], places[:, None] * logits.shape[-1] + codes)
    return codes.gather(-1, (kept / options.temperature + noise).argmax(dim=-1, keepdim=True))[:, 0]


def gumbel_noise(keys: Tensor, indices: Tensor) -> Tensor:
    """Return the numbers of a standard Gumbel distribution at some indices of the streams of keys, float64.

    Both int64, broadcast. The streams are those of SplitMix64 (Steele et al., 2014), seeded with the keys: any number is
    computed alone, so that it depends on nothing else in the batch, nor on the device.
    """
    bits = keys + (indices + 1) * _signed(0x9E3779B97F4A7C15)
    bits = (bits ^ _shifted(bits, 30)) * _signed(0xBF58476D1CE4E5B9)
    bits = (bits ^ _shifted(bits, 27)) * _signed(0x94D049BB133111EB)
    uniform = (_shifted(bits ^ _shifted(bits, 31), 12).double() + 0.5) * 2.0**-52
    return -(-uniform.log()).log()


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


def _shifted(bits: Tensor, count: int) -> Tensor:
    """Shift to the right, with zeros from the left."""
    return (bits >> count) & ((1 << (64 - count)) - 1)


def candidate_keys(seed: int, prompts: range, candidates: range) -> Tensor:
    """Return what candidates draw their numbers by: (sample,) int64.

    Each is a digest of (seed, prompt, candidate), so that it does not depend on the rest of its batch.
    """
    return torch.tensor([_key(seed, prompt, candidate) for prompt in prompts for candidate in candidates])


def _key(seed: int, prompt: int, candidate: int) -> int:
    digest = hashlib.sha256(f"{seed}/{prompt}/{candidate}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


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
