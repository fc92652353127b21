"""Texts: a causal language model writes tokens behind a prompt, until one that ends the text or as many as wished.

A candidate has as many places as tokens were wished for; behind the token that ends it, that token is repeated.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from hub_tools.checks import check_loaded
from hub_tools.foreign.json_texts import read_json
from hub_tools.run_files import RUN_STATE_FILE
from modeling_dalle_collab.sampling_dalle_collab import SamplingOptions, choose_codes
from pipelines.features.serving.draw.modalities.modality import Modality

if TYPE_CHECKING:
    from pipelines.features.serving.draw.requests import DrawRequest, SamplingRequest

EVERY = 8
USUAL_TOKENS = 64
BYTES = 4
VALUES_OF_A_POSITION = 16
"""Times the hidden size: what reading a prompt holds for each position besides keys and values."""

NEEDED_SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings")


@dataclass(frozen=True, kw_only=True)
class WritingContext:
    """What turns a prompt into a text; on one device."""

    name: str
    model: PreTrainedModel
    processor: PreTrainedTokenizerFast
    epoch: int | None = None


class Texts(Modality[PreTrainedModel, PreTrainedTokenizerFast]):
    """See `Modality`."""

    product, unit = "text", "tokens"

    def check(self, ids: Tensor, given: Tensor | None, options: SamplingOptions, config: PretrainedConfig) -> None:
        if given is not None or options.guidance_scale != 1:
            raise ValueError("A text has neither an image prompt nor guidance.")
        if ids.dtype not in (torch.int32, torch.int64) or not ids.shape[1]:
            raise ValueError(
                f"input_ids is {ids.dtype} of shape {tuple(ids.shape)}, expected at least one whole number."
            )
        if int(ids.min()) < 0 or int(ids.max()) >= config.vocab_size:
            raise ValueError(f"input_ids has ids outside of 0 to {config.vocab_size - 1}.")
        new, most = options.num_image_codes, config.max_position_embeddings
        if new is None:
            raise ValueError("num_image_codes is missing: how many tokens a text may have.")
        if ids.shape[1] + new > most:
            raise ValueError(
                f"The prompt has {ids.shape[1]} tokens and {new} more are wished for; this model reads {most} in all."
            )

    def usual_options(self, config: PretrainedConfig) -> SamplingOptions:
        """See `Modality`: half of what the model can read is for the prompt."""
        return SamplingOptions(num_image_codes=min(USUAL_TOKENS, config.max_position_embeddings // 2))

    def num_places(self, options: SamplingOptions, config: PretrainedConfig) -> int:
        assert options.num_image_codes is not None, "see `check`"
        return options.num_image_codes

    def num_numbers(self, options: SamplingOptions, config: PretrainedConfig) -> int:
        """See `Modality`: a generator's first numbers do not depend on how many are drawn."""
        return self.num_places(options, config)

    def num_symbols(self, config: PretrainedConfig) -> int:
        return config.vocab_size

    def every(self, config: PretrainedConfig) -> int:
        return EVERY

    def needed_bytes(self, asked: "DrawRequest", config: PretrainedConfig) -> int:
        num_text, number = asked.sampling.input_ids.shape[1], len(asked.candidates)
        return _needed_bytes(config, num_text, number, self.num_places(asked.sampling.options, config))

    def most_bytes_of_one(self, config: PretrainedConfig) -> int:
        return _needed_bytes(config, config.max_position_embeddings, 1, 0)

    def ids_of(self, processor: PreTrainedTokenizerFast, prompt: str) -> Tensor:
        return torch.tensor([processor(prompt, verbose=False)["input_ids"]], dtype=torch.int64)

    def rules_of(self, processor: PreTrainedTokenizerFast) -> str:
        return processor.backend_tokenizer.to_str()

    def read(self, folder: Path) -> tuple[PreTrainedTokenizerFast, PretrainedConfig]:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        if missing := [name for name in NEEDED_SIZES if not isinstance(getattr(config, name, None), int)]:
            raise ValueError(
                f"A model of type {config.model_type[:40]} cannot be served: its configuration lacks {missing[0]}."
            )
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        if not isinstance(tokenizer, PreTrainedTokenizerFast):
            raise ValueError(f"The tokenizer is {type(tokenizer).__name__}; expected one with a file tokenizer.json.")
        return tokenizer, config

    def load(self, folder: Path, *, precision: str, device: str) -> WritingContext:
        tokenizer, _ = self.read(folder)
        kind: Any = AutoModelForCausalLM  # transformers does not declare what it returns with the loading info
        model, found = kind.from_pretrained(
            folder, dtype=torch.float32, trust_remote_code=False, output_loading_info=True
        )
        check_loaded(model, found, str(folder))
        model = model.to(device).eval()
        self.rounded(model, precision)
        state = folder / RUN_STATE_FILE
        epoch = read_json(state).get("epoch") if state.is_file() else None
        return WritingContext(name=str(folder), model=model, processor=tokenizer, epoch=epoch)

    def rounded(self, model: PreTrainedModel, precision: str) -> None:
        if precision == "int8":
            raise ValueError("int8 is for runs that draw pictures; a language model is served in float32 or bfloat16.")
        if precision == "bfloat16":
            model.bfloat16()

    def stream(
        self, model: PreTrainedModel, samplings: Sequence["SamplingRequest"], numbers: Tensor, num_candidates: int
    ) -> Iterator[Tensor]:
        options, every = samplings[0].options, samplings[0].every
        input_ids = torch.cat([sampling.input_ids for sampling in samplings])
        length, tokens = self.num_places(options, model.config), list[Tensor]()
        for token in _written(model, input_ids, numbers, options, num_candidates, ends_of(model.config)):
            tokens.append(token)
            if len(tokens) % every == 0 and len(tokens) < length:
                yield torch.stack(tokens, dim=1).view(len(samplings), num_candidates, -1)
        tokens += [tokens[-1]] * (length - len(tokens))
        yield torch.stack(tokens, dim=1).view(len(samplings), num_candidates, -1)

    def measuring(self, model: PreTrainedModel, num_candidates: int) -> Iterator[int]:
        """See `Modality`: texts that nothing ends."""
        length = model.config.max_position_embeddings - 1
        input_ids, numbers = torch.zeros(1, 1, dtype=torch.int64), torch.rand(num_candidates, length).double()
        options = SamplingOptions(num_image_codes=length)
        for place, _ in enumerate(_written(model, input_ids, numbers, options, num_candidates, ends=()), start=1):
            yield place

    @torch.no_grad()
    def logits_behind(self, model: PreTrainedModel, sampling: "SamplingRequest", codes: Tensor) -> Tensor:
        prompt = sampling.input_ids.expand(len(codes), -1)
        whole = torch.cat([prompt, codes[:, :-1]], dim=1).to(model.device)
        logits = model(whole, use_cache=False, logits_to_keep=codes.shape[1]).logits
        return logits.float()

    def means(self, distances: Tensor, codes: Tensor, config: PretrainedConfig) -> Tensor:
        """See `Modality`: places up to the end of the text count; something else behind it is as wrong as can be."""
        counts, last = counted(codes, config)
        counts, last = counts.to(distances.device), last.to(distances.device)
        is_false = ~counts & (codes.to(distances.device) != last[:, None])
        return (distances * counts + is_false).sum(dim=1) / counts.sum(dim=1)


@dataclass(frozen=True, kw_only=True)
class FinishedText:
    """What the tokens of a candidate say."""

    text: str
    num_tokens: int
    """The one that ends it included."""

    has_ended: bool
    """False: it is as long as it may be."""


def finished_text(tokenizer: PreTrainedTokenizerFast, tokens: Tensor, config: PretrainedConfig) -> FinishedText:
    """Return the text of (place,) tokens."""
    number = int(counted(tokens[None], config)[0].sum())
    text = tokenizer.decode(tokens[:number].tolist(), skip_special_tokens=True)
    return FinishedText(text=str(text), num_tokens=number, has_ended=int(tokens[number - 1]) in ends_of(config))


def ends_of(config: PretrainedConfig) -> tuple[int, ...]:
    """Return the tokens that end a text."""
    ends = config.eos_token_id
    return () if ends is None else tuple(ends) if isinstance(ends, list | tuple) else (ends,)


def counted(codes: Tensor, config: PretrainedConfig) -> tuple[Tensor, Tensor]:
    """Return which of (candidate, place) tokens belong to the texts, ends included, and each text's last one."""
    is_end = torch.isin(codes, torch.tensor(ends_of(config), dtype=codes.dtype, device=codes.device))
    counts = is_end.cumsum(dim=1) - is_end.int() == 0
    last = codes.gather(1, counts.sum(dim=1, keepdim=True) - 1)[:, 0]
    return counts, last


@torch.no_grad()
def _written(
    model: PreTrainedModel,
    input_ids: Tensor,
    numbers: Tensor,
    options: SamplingOptions,
    num_candidates: int,
    ends: Sequence[int],
) -> Iterator[Tensor]:
    """Yield the next token of all samples, (sample,) int64, until all texts have ended or are as long as wished.

    `input_ids: (job, text)`, all of one length; `numbers: (sample, place)`.
    """
    device = model.device
    numbers, ending = numbers.to(device), torch.tensor(ends, dtype=torch.int64, device=device)
    read = model(input_ids.to(device), use_cache=True, logits_to_keep=1)
    cache, logits = read.past_key_values, read.logits[:, -1].repeat_interleave(num_candidates, dim=0)
    cache.batch_repeat_interleave(num_candidates)
    token = torch.zeros(len(logits), dtype=torch.int64, device=device)
    has_ended = torch.zeros_like(token, dtype=torch.bool)
    for place in range(options.num_image_codes or 0):
        if not bool(logits.isfinite().all()):
            raise ValueError("The model's logits are not finite: the checkpoint is damaged.")
        token = torch.where(has_ended, token, choose_codes(logits.float(), numbers[:, place], options))
        has_ended |= torch.isin(token, ending)
        yield token
        if bool(has_ended.all()) or place + 1 == options.num_image_codes:
            return
        logits = model(token[:, None], past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]


def _needed_bytes(config: PretrainedConfig, num_text: int, number: int, num_new: int) -> int:
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    kept = 2 * config.num_hidden_layers * heads * size * (num_text + num_new) * BYTES
    logits = 6 * config.vocab_size * 8  # sorted and summed in float64
    return number * (kept + logits) + num_text * VALUES_OF_A_POSITION * config.hidden_size * BYTES


TEXTS = Texts()
