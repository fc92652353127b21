"""A small tokenizer for the demo's language models: byte-level BPE, so that nothing is unknown to it."""

from collections.abc import Iterable

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

PAD, EOS, BOS, MASK = "<pad>", "</s>", "<s>", "<mask>"


def train_text_tokenizer(
    texts: Iterable[str], vocab_size: int, *, fills_masks: bool, sequence_length: int
) -> PreTrainedTokenizerFast:
    """Return a tokenizer of at most `vocab_size` tokens; equal texts give an equal one.

    fills_masks: whether it has a mask token and puts sequences between `<s>` and `</s>`, as RoBERTa's does.
    """
    mask = AddedToken(MASK, lstrip=True, special=True)
    special = [PAD, EOS, *((BOS, mask) if fills_masks else ())]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=vocab_size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        ),
    )
    # Trimmed offsets tell words apart, which whole-word masks need.
    processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=True)
    tokenizer.post_processor = processors.Sequence([processor, _frame(tokenizer)]) if fills_masks else processor
    names = dict(pad_token=PAD, eos_token=EOS)
    if fills_masks:
        names |= dict(bos_token=BOS, cls_token=BOS, sep_token=EOS, mask_token=mask)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=sequence_length, **names)


def _frame(tokenizer: Tokenizer) -> processors.TemplateProcessing:
    return processors.TemplateProcessing(
        single=f"{BOS} $A {EOS}",
        pair=f"{BOS} $A {EOS} $B {EOS}",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (BOS, EOS)],
    )
