"""Sampling of image codes: cached, in batches of candidates, each candidate with random numbers of its own.

Axes: prompt, candidate, sample (prompt-major), image, code.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import GenerationConfig

from .cache_dalle_collab import GenerationCache, TextPrefix, read_text
from .inputs_dalle_collab import check_text


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """How one image code is chosen from its logits. Raises `ValueError` for values that mean nothing."""

    top_k: int | None = 256
    """Only so many of the likeliest codes can be chosen; None or 0 for all of them."""
    top_p: float | None = None
    """Only the likeliest codes that together reach this probability can be chosen; None or 1 for all of them."""
    temperature: float = 1.0
    """The logits that are left are divided by it; 0 always takes the likeliest code."""

    def __post_init__(self) -> None:
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


def choose_codes(logits: Tensor, numbers: Tensor, options: SamplingOptions) -> Tensor:
    """Choose one code for each sample: (sample, code) logits and (sample,) numbers in [0, 1) to (sample,) int64.

    The choice walks the codes in the order of their index: rounding differences between batch sizes then only matter
    where a number falls within them of a boundary, not where two codes are about equally likely.
    """
    if options.temperature == 0:
        return logits.argmax(dim=-1)
    kept = keep_likely(logits.float(), options)
    sums = (kept / options.temperature).softmax(dim=-1).double().cumsum(dim=-1)
    chosen = torch.searchsorted(sums, numbers[:, None] * sums[:, -1:], right=True)
    return chosen[:, 0].clamp_(max=logits.shape[-1] - 1)


def candidate_numbers(seed: int, prompts: range, candidates: range, length: int) -> Tensor:
    """Return the random numbers of candidates: (sample, length) float64 in [0, 1).

    Each candidate's come from a digest of (seed, prompt, candidate), so they do not depend on who is in its batch.
    """
    rows = [_numbers(seed, prompt, candidate, length) for prompt in prompts for candidate in candidates]
    return torch.stack(rows)


def _numbers(seed: int, prompt: int, candidate: int, length: int) -> Tensor:
    digest = hashlib.sha256(f"{seed}/{prompt}/{candidate}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
    return torch.rand(length, generator=generator, dtype=torch.float64)


def candidate_batches(num_prompts: int, num_candidates: int, size: int) -> Iterator[tuple[range, list[range]]]:
    """Yield prompts that are read together, each time with the ranges of candidates to sample for all of them.

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


class ImageCodeGeneration:
    """Generation for a model that has `config`, `model` (with `token_embedding`, `stack`, `norm`) and `output_bias`."""

    def set_generation_defaults(self) -> None:
        """Store the paper's sampling in `generation_config`, which is saved with the model."""
        self.generation_config = GenerationConfig(
            do_sample=True, top_k=256, max_new_tokens=self.config.num_image_codes, num_return_sequences=1
        )

    @torch.no_grad()
    def generate_image_codes(
        self,
        input_ids: Tensor,
        *,
        num_candidates: int = 1,
        top_k: int | None = 256,
        top_p: float | None = None,
        temperature: float = 1.0,
        seed: int = 0,
        candidate_batch_size: int = 64,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> Tensor:
        """Sample images for captions: (batch, text) int64 to (batch, num_candidates, image) int64 codes.

        A candidate depends on (seed, its caption's row, its own number) alone, whatever `candidate_batch_size`.
        Memory grows with `candidate_batch_size`; speed, too, until the cores are busy. `on_progress` gets the number of
        codes sampled so far and in all. Raises `ValueError` for captions of another shape or range and for sampling
        options that mean nothing.
        """
        options = SamplingOptions(top_k=top_k, top_p=top_p, temperature=temperature)
        _check_counts(num_candidates, candidate_batch_size)
        check_text(input_ids, self.config, self.model.token_embedding.weight.device)
        total = len(input_ids) * num_candidates * self.config.num_image_codes
        report = _Progress(total, on_progress)
        was_training = self.training
        self.eval()
        try:
            rows = [
                torch.cat(
                    [
                        self._sample(
                            prefix, candidate_numbers(seed, prompts, part, self.config.num_image_codes), options, report
                        )
                        for part in parts
                    ],
                    dim=1,
                )
                for prompts, parts in candidate_batches(len(input_ids), num_candidates, candidate_batch_size)
                for prefix in [self.read_text(input_ids[prompts.start : prompts.stop])]
            ]
        finally:
            self.train(was_training)
        return torch.cat(rows)

    def generate(self, input_ids: Tensor, generation_config: GenerationConfig | None = None, **options) -> Tensor:
        """Sample as `generation_config` says: (batch, text) to (batch * num_return_sequences, image) int64 codes.

        `options` override the configuration (`top_k`, `top_p`, `temperature`, `do_sample`, `num_return_sequences`) or
        are those of `generate_image_codes`. Without `seed` one is drawn from torch's global generator.
        """
        settings = generation_config or self.generation_config
        greedy = not options.pop("do_sample", settings.do_sample)
        sampling = {name: options.pop(name, getattr(settings, name)) for name in ("top_k", "top_p", "temperature")}
        if greedy or sampling["temperature"] is None:
            sampling["temperature"] = 0.0 if greedy else 1.0
        num_candidates = options.pop("num_return_sequences", settings.num_return_sequences) or 1
        seed = options.pop("seed", None)
        seed = int(torch.randint(2**62, ())) if seed is None else seed
        return self.generate_image_codes(
            input_ids, num_candidates=num_candidates, seed=seed, **sampling, **options
        ).flatten(0, 1)

    def read_text(self, input_ids: Tensor) -> TextPrefix:
        """Run the captions (prompt, text) through the layers once, for any number of candidates."""
        return read_text(self.model.stack, self.model.token_embedding(self.model.text_block_ids(input_ids)))

    def _sample(self, prefix: TextPrefix, numbers: Tensor, options: SamplingOptions, report: "_Progress") -> Tensor:
        num_prompts, device = len(prefix.hidden), prefix.hidden.device
        cache = GenerationCache(self.model.stack, prefix, num_candidates=len(numbers) // num_prompts)
        numbers = numbers.to(device)
        logits = self.next_code_logits(cache.first_hidden())
        if not logits.isfinite().all():
            raise ValueError(
                "The model's logits are not finite, expected numbers: its weights are damaged. "
                "Load an earlier revision of the checkpoint."
            )
        codes = []
        for place in range(numbers.shape[1]):
            codes.append(choose_codes(logits, numbers[:, place], options))
            report.add(len(numbers))
            if place + 1 < numbers.shape[1]:
                logits = self.next_code_logits(cache.step(self.embed_codes(codes[-1]), place))
        return torch.stack(codes, dim=1).unflatten(0, (num_prompts, -1))

    def embed_codes(self, codes: Tensor) -> Tensor:
        """Return the embeddings of image codes: (sample,) int64 to (sample, hidden)."""
        return self.model.token_embedding(codes + self.config.num_text_ids)

    def next_code_logits(self, hidden: Tensor) -> Tensor:
        """Return the logits of the next image code alone: (sample, hidden) to (sample, codebook_size)."""
        first = self.config.num_text_ids
        weight, bias = self.model.token_embedding.weight[first:], self.output_bias[first:]
        return F.linear(self.model.norm(hidden), weight, bias)


def _check_counts(num_candidates: int, candidate_batch_size: int) -> None:
    for name, value in (("num_candidates", num_candidates), ("candidate_batch_size", candidate_batch_size)):
        if value < 1:
            raise ValueError(f"{name} is {value}, expected at least 1.")


class _Progress:
    """Counts sampled codes and tells the caller."""

    def __init__(self, total: int, tell: Callable[[int, int], None] | None) -> None:
        self.done, self.total, self.tell = 0, total, tell

    def add(self, count: int) -> None:
        self.done += count
        if self.tell is not None:
            self.tell(self.done, self.total)
