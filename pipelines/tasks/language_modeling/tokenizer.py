"""The tokenizer of a language run, and whether it fits the model."""

import itertools

from transformers import AutoTokenizer, PretrainedConfig, PreTrainedTokenizerBase

from hub_tools.foreign.downloads import folder_of
from hub_tools.hub_client import is_outage
from hub_tools.one_line_errors import explain_error
from hub_tools.run_files import PROCESSOR_FILES
from pipelines.tasks.language_modeling.model import num_positions
from pipelines.tasks.language_modeling.settings import FILL_MASK, LanguageSettings

MOST_UNUSED_ROWS = 1024
"""Embeddings that a model may have beyond the vocabulary: sizes are rounded up for GPUs."""


def read_tokenizer(place: str, revision: str | None = None) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a repository, at a commit, or of a folder; custom code is not run.

    Raises:
        ValueError: there is none, it needs custom code, or it is not one of the Rust library `tokenizers`.
    """
    try:
        folder = folder_of(place, revision=revision, patterns=PROCESSOR_FILES)
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:
        if is_outage(error):
            raise
        raise ValueError(
            f"{place} has no tokenizer that transformers can read without custom code: {explain_error(error)}"
        ) from error
    if not tokenizer.is_fast:
        raise ValueError(
            f"The tokenizer of {place} is {type(tokenizer).__name__}, which is written in Python; expected one of the "
            "library tokenizers (a file tokenizer.json), which can cut documents into sequences."
        )
    return tokenizer


def check_tokenizer_fits(
    tokenizer: PreTrainedTokenizerBase, config: PretrainedConfig, task: str, settings: LanguageSettings
) -> None:
    """Raise ValueError unless tokenizer, model, task and sequence length match."""
    size = len(tokenizer)
    if not size <= config.vocab_size <= size + MOST_UNUSED_ROWS:
        raise ValueError(
            f"The tokenizer has {size} tokens and the model {config.vocab_size}: they do not match. "
            f"Choose the model's own tokenizer, or set vocab_size={size} in the model's settings."
        )
    positions = num_positions(config)
    if positions is not None and settings.sequence_length > positions:
        raise ValueError(
            f"sequence_length is {settings.sequence_length}, but the model has positions for {positions} tokens. "
            f"Cure: --set sequence_length={positions}"
        )
    if task == FILL_MASK and tokenizer.mask_token_id is None:
        raise ValueError("The tokenizer has no mask token, which fill-mask needs. Choose another tokenizer or task.")
    if task == FILL_MASK and settings.whole_word_masks and not _shows_words(tokenizer):
        raise ValueError(
            "whole_word_masks is on, but the tokenizer counts the space before a word among its characters, so that "
            "words cannot be told apart. Cure: --set whole_word_masks=false, or trim_offsets in the tokenizer"
        )
    if task != FILL_MASK and tokenizer.eos_token_id is None:
        raise ValueError(
            "The tokenizer has no end-of-sequence token (EOS), which text-generation puts between documents. "
            "Choose another tokenizer, or give this one an eos_token."
        )
    if task == FILL_MASK and settings.sequence_length <= tokenizer.num_special_tokens_to_add():
        raise ValueError(f"sequence_length is {settings.sequence_length}; special tokens alone need as many.")


def _shows_words(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Tell whether tokens of neighbouring words do not touch: transformers' collator finds words by the gap."""
    (offsets,) = tokenizer(["a b"], add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    return any(end < start for (_, end), (start, _) in itertools.pairwise(offsets))
