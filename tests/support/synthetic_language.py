"""A language of made-up words whose kinds only their company tells: who has read much of it knows them.

A person is followed by what persons do, a town by what towns are. Labelled sentences name persons and towns without
that, and those of the test are other ones than those of the training.
"""

import itertools
import random

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    DataCollatorForLanguageModeling,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from pipelines.tools.demo.language.tokenizer import train_text_tokenizer

SEQUENCE_LENGTH, NUM_NAMES = 32, 12
SYLLABLES = [first + second for first in "bdfgklmnprst" for second in "aiou"]
WORDS = [first + second for first, second in itertools.product(SYLLABLES, SYLLABLES) if first != second]
random.Random(1).shuffle(WORDS)
PERSONS, TOWNS, DEEDS, VIEWS = (WORDS[start : start + NUM_NAMES] for start in range(0, 4 * NUM_NAMES, NUM_NAMES))
BERT = dict(model_type="bert", intermediate_size=128)
LLAMA = dict(model_type="llama", intermediate_size=128, num_key_value_heads=2, tie_word_embeddings=True)


def pretraining_texts(number: int = 1200) -> list[str]:
    """Return sentences, in which every kind of name has its own company."""
    draw = random.Random(2)
    kinds = [(PERSONS, DEEDS), (TOWNS, VIEWS)]
    texts = []
    for _ in range(number):
        names, company = draw.choice(kinds)
        texts.append(" ".join(word for _ in range(3) for word in (draw.choice(names), draw.choice(company))))
    return texts


def tagged_sentences(number: int, *, are_new: bool) -> list[tuple[list[str], list[str]]]:
    """Return words and their tags; `are_new` ones name the other half of all persons and towns."""
    draw = random.Random(3 + are_new)
    half = slice(NUM_NAMES // 2, None) if are_new else slice(0, NUM_NAMES // 2)
    made = []
    for _ in range(number):
        words, tags = [], []
        for _ in range(draw.randint(2, 3)):
            kind, names = draw.choice([("PER", PERSONS[half]), ("LOC", TOWNS[half])])
            several = draw.randint(1, 2)
            words += [*draw.sample(names, several), draw.choice(["and", "or"])]
            tags += [*[f"B-{kind}", f"I-{kind}"][:several], "O"]
        made.append((words, tags))
    return made


def sorted_sentences(number: int, *, are_new: bool) -> list[tuple[str, str]]:
    """Return texts about persons or about towns, with their class."""
    draw = random.Random(5 + are_new)
    half = slice(NUM_NAMES // 2, None) if are_new else slice(0, NUM_NAMES // 2)
    kinds = [("people", PERSONS[half]), ("places", TOWNS[half])]
    made = []
    for _ in range(number):
        kind, names = draw.choice(kinds)
        made.append((" ".join(draw.choice(names) for _ in range(draw.randint(2, 4))), kind))
    return made


def trained_model(sizes: dict, num_steps: int = 250) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Return a small model that has read much of the language, and its tokenizer."""
    fills_masks, texts = sizes is BERT, pretraining_texts()
    tokenizer = train_text_tokenizer(texts, 500, fills_masks=fills_masks, sequence_length=SEQUENCE_LENGTH)
    common = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=2, max_position_embeddings=64)
    config = AutoConfig.for_model(vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, **common, **sizes)
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = (AutoModelForMaskedLM if fills_masks else AutoModelForCausalLM).from_config(config)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        collator = DataCollatorForLanguageModeling(tokenizer, mlm=fills_masks, mlm_probability=0.3)
        encoded = [{"input_ids": ids} for ids in tokenizer(texts)["input_ids"]]
        order = random.Random(8)
        for _ in range(num_steps):
            model(**collator(order.sample(encoded, 16))).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return model.eval(), tokenizer
