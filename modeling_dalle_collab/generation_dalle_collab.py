"""Generation of image codes: with a cache, in batches of candidates, from captions and image prompts.

Axes: prompt, candidate, sample (prompt-major), image (the places of all codes), code.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationConfig

from .cache_dalle_collab import GenerationCache, GenerationLayers, Prefix
from .captured_dalle_collab import CapturedStep
from .configuration_dalle_collab import DalleCollabConfig
from .guessing_dalle_collab import WINDOWS, Guesses, WindowChoice
from .inputs_dalle_collab import check_attention_mask, check_image_prompt, check_text, refuse_effects, require_ids
from .linear_dalle_collab import Products, multiply, product_of, use_products
from .offloaded_dalle_collab import with_offloaded_weights
from .packed_dalle_collab import can_pack, packed_product, replace_by_int8
from .sampling_dalle_collab import (
    FROM_GENERATION_CONFIG,
    SamplingOptions,
    candidate_batches,
    candidate_numbers,
    choose_codes,
    process_logits,
)
from .table_dalle_collab import table_rows

if TYPE_CHECKING:
    from .modeling_dalle_collab import DalleCollabModel


# What `generate` takes of a `GenerationConfig`, and what it passes on to `generate_image_codes`.
_COUNTS = ("do_sample", "max_new_tokens", "num_return_sequences")
_PASSED_ON = {item.name for item in fields(SamplingOptions)} | {
    *("seed", "image_prompt", "null_input_ids", "candidate_batch_size", "on_progress")
}


class ImageCodeGeneration(nn.Module):
    """Generation for a model with these parts."""

    if TYPE_CHECKING:  # transformers resolves all other annotations
        model: DalleCollabModel
    config: DalleCollabConfig
    output_bias: nn.Parameter
    generation_config: GenerationConfig

    def set_generation_defaults(self) -> None:
        """Store the paper's sampling in `generation_config`, which is saved with the model."""
        self.generation_config = GenerationConfig(
            do_sample=True, top_k=256, max_new_tokens=self.config.num_image_codes, num_return_sequences=1
        )

    @torch.no_grad()
    @with_offloaded_weights
    def generate_image_codes(
        self,
        input_ids: Tensor,
        *,
        num_candidates: int = 1,
        seed: int = 0,
        image_prompt: Tensor | None = None,
        null_input_ids: Tensor | None = None,
        candidate_batch_size: int = 64,
        on_progress: Callable[[int, int], None] | None = None,
        **sampling: object,
    ) -> Tensor:
        """Sample images for captions: (batch, text) int64 to (batch, num_candidates, image) int64 codes.

        `image_prompt`, (batch, given) int64, are the first codes of each image, which is completed from there.
        `sampling` are the fields of `SamplingOptions`: `top_k` (256), `top_p`, `temperature`, `guidance_scale`,
        `num_image_codes`, `cache_implementation`, `window`, `compile_step`, `logits_processor`, `stopping_criteria`,
        after which there may be fewer codes. `null_input_ids`, (1, text), is the caption
        that guidance moves away from; padding if None.

        A candidate depends only on (seed, its caption's row, its own number), whatever `candidate_batch_size` and
        `window`, but for codes of which two are about equally good: rounding may decide otherwise. A `window` of 1,
        which guesses nothing and is slower, rounds nearly the same whatever the batch.
        Memory grows with `candidate_batch_size`; speed too, until the cores are busy. `on_progress` gets the number of
        codes sampled so far and in all. Raises `ValueError` for captions or image prompts of another shape or range and
        for invalid options.
        """
        options = SamplingOptions.from_mapping(sampling)
        _check_counts(num_candidates, candidate_batch_size)
        self._check_prompts(input_ids, image_prompt, null_input_ids)
        num_given, length = self._places(image_prompt, options)
        if options.stopping_criteria and len(input_ids) * num_candidates > candidate_batch_size:
            raise ValueError(
                f"candidate_batch_size is {candidate_batch_size}, expected at least the "
                f"{len(input_ids) * num_candidates} samples: stopping_criteria end them together."
            )
        report = _Progress(len(input_ids) * num_candidates * max(0, length - num_given), on_progress)
        rows = []
        with self.in_evaluation_mode():
            products = self._packed(options)
            for prompts, parts in candidate_batches(len(input_ids), num_candidates, candidate_batch_size):
                rows_of = slice(prompts.start, prompts.stop)
                given = None if image_prompt is None else image_prompt[rows_of]
                with use_products(products):
                    prefix = self._read_prompts(input_ids[rows_of], given, null_input_ids, options)
                batches = []
                for part in parts:
                    numbers = candidate_numbers(seed, prompts, part, self.config.num_image_codes)
                    for guesses, num_new in self._sample_codes(prefix, given, numbers, options, products):  # noqa: B007
                        report.add(num_new)
                    batches.append(self._finished(guesses, min(length, *guesses.known), len(prompts)))
                rows.append(torch.cat(batches, dim=1))
        return torch.cat(rows)

    @torch.no_grad()
    @with_offloaded_weights
    def stream_image_codes(
        self,
        input_ids: Tensor,
        *,
        every: int = 32,
        num_candidates: int = 1,
        first_candidate: int = 0,
        seed: int = 0,
        numbers: Tensor | None = None,
        image_prompt: Tensor | None = None,
        null_input_ids: Tensor | None = None,
        **sampling: object,
    ) -> Iterator[Tensor]:
        """Yield the codes so far, (batch, num_candidates, number) int64, at multiples of `every` and at the end.

        The last ones equal those of `generate_image_codes` with the same arguments; all candidates are one batch. To
        draw many in smaller batches, start each with `first_candidate` where the previous one ended. `numbers`,
        (batch * num_candidates, image) float64, are those of `candidate_numbers` for samples of several seeds, in
        place of `seed` and `first_candidate`. Stop when you have seen enough: the rest is not computed.
        """
        options = SamplingOptions.from_mapping(sampling)
        _check_counts(num_candidates, every, names=("num_candidates", "every"))
        self._check_prompts(input_ids, image_prompt, null_input_ids)
        if numbers is None:
            candidates = range(first_candidate, first_candidate + num_candidates)
            numbers = candidate_numbers(seed, range(len(input_ids)), candidates, self.config.num_image_codes)
        expected = (len(input_ids) * num_candidates, self.config.num_image_codes)
        if tuple(numbers.shape) != expected:
            raise ValueError(f"numbers has shape {tuple(numbers.shape)}, expected {expected}: one row for a sample.")
        shown = 0
        with self.in_evaluation_mode():
            products = self._packed(options)
            with use_products(products):
                prefix = self._read_prompts(input_ids, image_prompt, null_input_ids, options)
            length = self._places(image_prompt, options)[1]
            for guesses, _ in self._sample_codes(prefix, image_prompt, numbers, options, products):
                done = min(length, *guesses.known)
                done -= done % every if done < length else 0
                if done > shown:
                    shown = done
                    yield self._finished(guesses, done, len(input_ids))
            if (done := min(length, *guesses.known)) > shown:  # stopped before
                yield self._finished(guesses, done, len(input_ids))

    @torch.no_grad()
    @with_offloaded_weights
    def generate(
        self,
        input_ids: Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        logits_processor: Any = (),
        stopping_criteria: Any = (),
        *,
        inputs: Tensor | None = None,
        attention_mask: Tensor | None = None,
        **options: Any,
    ) -> Tensor:
        """Sample as `generation_config` says: (batch, text) to (batch * num_return_sequences, image) int64 codes.

        `options` override the configuration (`top_k`, `top_p`, `temperature`, `do_sample`, `num_return_sequences`,
        `guidance_scale`, `max_new_tokens`, `cache_implementation`) or are those of `generate_image_codes`. Without
        `seed` one is drawn from torch's global generator. transformers' other arguments and settings may be there if
        they change nothing; `attention_mask` may hide padding alone. Raises `ValueError` for one that would.
        """
        settings = generation_config or self.generation_config
        input_ids = require_ids("input_ids", inputs if input_ids is None else input_ids)
        check_text(input_ids, self.config, self.model.token_embedding.weight.device)
        if attention_mask is not None:
            check_attention_mask(attention_mask, input_ids, self.config)
        known = {*FROM_GENERATION_CONFIG, *_COUNTS}
        unknown = {name: value for name, value in vars(settings).items() if name not in known}
        unknown |= {name: options.pop(name) for name in set(options) - known - _PASSED_ON}
        refuse_effects(
            "generate", unknown, "Leave it out; a logits_processor or stopping_criteria can sample another way."
        )
        greedy = not options.pop("do_sample", settings.do_sample)
        sampling = {name: options.pop(name, getattr(settings, name, None)) for name in FROM_GENERATION_CONFIG}
        sampling |= {"logits_processor": logits_processor, "stopping_criteria": stopping_criteria}
        if greedy:
            sampling["temperature"] = 0.0
        defaults = {"temperature": 1.0, "guidance_scale": 1.0, "cache_implementation": "dynamic"}
        sampling |= {name: value for name, value in defaults.items() if sampling[name] is None}
        new_codes = options.pop("max_new_tokens", settings.max_new_tokens)
        new_codes = self.config.num_image_codes if new_codes is None else new_codes
        given = 0 if options.get("image_prompt") is None else options["image_prompt"].shape[1]
        sampling["num_image_codes"] = min(new_codes + given, self.config.num_image_codes)
        num_candidates = options.pop("num_return_sequences", settings.num_return_sequences)
        num_candidates = 1 if num_candidates is None else num_candidates
        seed = options.pop("seed", None)
        seed = int(torch.randint(2**62, ())) if seed is None else seed
        return self.generate_image_codes(
            input_ids, num_candidates=num_candidates, seed=seed, **sampling | options
        ).flatten(0, 1)

    def read_text(self, input_ids: Tensor, image_prompt: Tensor | None = None) -> Prefix:
        """Run captions (prompt, text), and codes (prompt, given), through the layers once, for all candidates."""
        ids = self.model.text_block_ids(input_ids)
        if image_prompt is None or not image_prompt.shape[1]:
            return self.generation_layers().read(self.model.token_embedding(ids), 0)
        num_places = image_prompt.shape[1]
        # Layers work on whole rows of the image; earlier codes do not see what fills up the last one.
        rows = F.pad(image_prompt.long(), (0, -num_places % self.config.image_grid_size))
        ids = torch.cat([ids, rows + self.config.num_text_ids], dim=1)
        return self.generation_layers().read(self.model.token_embedding(ids), num_places)

    def _read_prompts(
        self, input_ids: Tensor, image_prompt: Tensor | None, null_input_ids: Tensor | None, options: SamplingOptions
    ) -> Prefix:
        """Read the prompts and, if guidance needs them, as many empty ones after them."""
        prefix = self.read_text(input_ids, image_prompt)
        if options.guidance_scale == 1:
            return prefix
        if null_input_ids is None:
            shape = (1, self.config.text_sequence_length)
            null_input_ids = torch.full(shape, self.config.pad_token_id, device=input_ids.device)
        return prefix.join(self.read_text(null_input_ids.expand(len(input_ids), -1), image_prompt))

    def _sample_codes(
        self, prefix: Prefix, given: Tensor | None, numbers: Tensor, options: SamplingOptions, products: Products
    ) -> Iterator[tuple[Guesses, int]]:
        """Yield the codes after each pass, and how many of all samples became final in it.

        With `logits_processor` or `stopping_criteria`, whose window is 1, all samples are equally long.
        """
        num_prompts = len(prefix.hidden) // (1 if options.guidance_scale == 1 else 2)
        num_candidates, (num_given, length) = len(numbers) // num_prompts, self._places(given, options)
        numbers = numbers.to(prefix.hidden.device)
        rows = [[] for _ in numbers] if given is None else given.long().repeat_interleave(num_candidates, 0).tolist()
        guesses = Guesses(rows, self.config.image_grid_size)
        if num_given >= length:
            yield guesses, 0
            return
        predict = _Predictor(self, prefix, num_candidates, options)
        choice = WindowChoice(predict.windows)
        with use_products(products):  # not around a yield, where the caller goes on
            logits = predict.first()
        first = choose_codes(self._processed(logits, guesses, options), numbers[:, num_given], options)
        yield guesses, sum(guesses.learn(first[:, None].tolist(), length))
        may_end = torch.zeros(len(numbers), dtype=torch.bool, device=numbers.device)
        while min(guesses.known) < length:
            for criterion in options.stopping_criteria:
                may_end |= torch.as_tensor(criterion(self._so_far(guesses), None), device=may_end.device)
            if may_end.all():
                return
            started, window = time.perf_counter(), choice.next()
            codes = torch.tensor(guesses.ahead(window, length), device=numbers.device)  # (sample, step)
            places = torch.tensor(guesses.known, device=numbers.device)[:, None] + torch.arange(
                window, device=numbers.device
            )
            with use_products(products):
                logits = predict.after(codes, places - 1)  # (sample, step, code)
            drawn = numbers.gather(1, places.clamp(max=numbers.shape[1] - 1))
            logits = self._processed(logits.flatten(0, 1), guesses, options)
            chosen = choose_codes(logits, drawn.flatten(), options)
            news = guesses.learn(chosen.view_as(codes).tolist(), length)
            choice.learn(window, time.perf_counter() - started, news)
            yield guesses, sum(news)

    def _processed(self, logits: Tensor, guesses: Guesses, options: SamplingOptions) -> Tensor:
        """Return (sample, code) logits as processors leave them, if there are any."""
        return process_logits(logits, self._so_far(guesses), options) if options.logits_processor else logits

    def _so_far(self, guesses: Guesses) -> Tensor:
        """Return the codes of samples that are equally long: (sample, number) int64."""
        return self._finished(guesses, min(guesses.known), 1)[0]

    def _finished(self, guesses: Guesses, number: int, num_prompts: int) -> Tensor:
        """Return the first codes of all samples: (prompt, candidate, number) int64."""
        device = self.model.token_embedding.weight.device
        codes = torch.tensor([row[:number] for row in guesses.rows], dtype=torch.int64, device=device)
        return codes.view(num_prompts, len(codes) // num_prompts, number)

    def _places(self, image_prompt: Tensor | None, options: SamplingOptions) -> tuple[int, int]:
        """Return how many codes are given, and how many to produce."""
        given = 0 if image_prompt is None else image_prompt.shape[1]
        return given, min(options.num_image_codes or self.config.num_image_codes, self.config.num_image_codes)

    def _check_prompts(self, input_ids: Tensor, image_prompt: Tensor | None, null_input_ids: Tensor | None) -> None:
        device = self.model.token_embedding.weight.device
        check_text(input_ids, self.config, device)
        if image_prompt is not None:
            check_image_prompt(image_prompt, self.config, device, batch=len(input_ids))
        if null_input_ids is not None:
            check_text(null_input_ids, self.config, device)

    @contextmanager
    def in_evaluation_mode(self) -> Iterator[None]:
        was_training = self.training
        self.eval()
        try:
            yield
        finally:
            self.train(was_training)

    def generation_layers(self) -> GenerationLayers:
        """Return what reads prompts and codes with the layers: those of this model unless a subclass has others."""
        return GenerationLayers(self.model.stack)

    def embed_codes(self, codes: Tensor) -> Tensor:
        """Return the embeddings of image codes: (...) int64 to (..., hidden)."""
        return self.model.token_embedding(codes + self.config.num_text_ids)

    def next_code_logits(self, hidden: Tensor) -> Tensor:
        """Return only the next image code's logits: (..., hidden) to (..., codebook_size)."""
        first = self.config.num_text_ids
        hidden = self.model.norm(hidden)
        if (product := product_of(self.model.token_embedding)) is not None:
            return product(hidden)
        return multiply(hidden, self._code_rows(hidden.device), self.output_bias[first:])

    def _code_rows(self, device: torch.device) -> Tensor:
        return table_rows(self.model.token_embedding, range(self.config.num_text_ids, self.config.vocab_size), device)

    def use_int8_weights(self) -> None:
        """Compute with weights of 8 bits in all layers from now on, to draw faster on a CPU; the table stays as it is.

        Such a model cannot be trained, saved, copied or moved, and says so. Raises `ValueError` unless it is float32 on
        a CPU.
        """
        replace_by_int8(self.model.stack)

    def _packed(self, options: SamplingOptions) -> Products:
        """Return the products that a generation computes with; compiled code has its own.

        Packed ones round differently with the number of rows; a window of 1 means codes that no batch size changes.
        """
        weight = self.model.token_embedding.weight
        if options.compile_step or options.window == 1 or not can_pack(weight):
            return {}
        head = packed_product(self._code_rows(weight.device), self.output_bias[self.config.num_text_ids :])
        return {self.model.token_embedding: head, **self.generation_layers().packed()}


class _Predictor:
    """Gives the logits of next codes, guided or not, for all samples of a batch."""

    def __init__(
        self, model: ImageCodeGeneration, prefix: Prefix, num_candidates: int, options: SamplingOptions
    ) -> None:
        self.model, self.options = model, options
        static = options.compile_step or options.cache_implementation == "static"
        self.windows = WINDOWS if options.window is None and not static else (options.window or 1,)
        layers = model.generation_layers()
        is_captured = layers.can_be_captured()
        self.cache = layers.open(
            prefix, num_candidates, window=max(self.windows), static=static or is_captured,
            compiled=options.compile_step,
        )  # fmt: skip
        self.step: Callable[[Tensor, Tensor], Tensor] = partial(_step, model, self.cache)
        if is_captured:
            self.step = CapturedStep(self.step, prefix.hidden.device)

    def first(self) -> Tensor:
        """Return the logits behind the prefix: (sample, code)."""
        logits = self.model.next_code_logits(self.cache.first_hidden())
        if not logits.isfinite().all():
            raise ValueError(
                "The model's logits are not finite, expected numbers: its weights are damaged. "
                "Load an earlier revision of the checkpoint."
            )
        return self._guided(logits)

    def after(self, codes: Tensor, places: Tensor) -> Tensor:
        """Read codes, (sample, step), of neighbouring image places; return the logits behind each, (..., code)."""
        if self.options.guidance_scale != 1:  # the same codes after the caption and after the empty one
            codes, places = codes.repeat(2, 1), places.repeat(2, 1)
        return self._guided(self.step(codes, places.clamp(max=self.model.config.num_image_codes - 1)))

    def _guided(self, logits: Tensor) -> Tensor:
        if self.options.guidance_scale == 1:
            return logits
        logits, null = logits.chunk(2)
        return null + (logits - null) * self.options.guidance_scale


def _step(model: ImageCodeGeneration, cache: GenerationCache, codes: Tensor, places: Tensor) -> Tensor:
    return model.next_code_logits(cache.step(model.embed_codes(codes), places))


def _check_counts(*values: int, names: tuple[str, str] = ("num_candidates", "candidate_batch_size")) -> None:
    for name, value in zip(names, values, strict=True):
        if value < 1:
            raise ValueError(f"{name} is {value}, expected at least 1.")


class _Progress:
    """Counts sampled codes and reports them to the caller."""

    def __init__(self, total: int, tell: Callable[[int, int], None] | None) -> None:
        self.done, self.total, self.tell = 0, total, tell

    def add(self, count: int) -> None:
        self.done += count
        if self.tell is not None:
            self.tell(self.done, self.total)
