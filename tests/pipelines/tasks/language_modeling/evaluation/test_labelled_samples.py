"""Labels meet the right tokens with every kind of tokenizer, and predictions the right words."""

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from pipelines.tasks.language_modeling.evaluation.labelled_samples import (
    labelled_samples,
    labelled_tokens,
    majority_accuracy,
    score,
)
from pipelines.tasks.language_modeling.evaluation.labelled_source import SENTENCES, TOKENS, LabelledSource
from pipelines.tasks.language_modeling.evaluation.labelled_text import Example, LabelledText
from pipelines.tasks.language_modeling.samples import IGNORED
from pipelines.tools.demo.language.tokenizer import train_text_tokenizer

WORDS = ["Émile", "বাংলা", "unbelievable", "x", "東京"]
TAGS = ("B-PER", "O", "O", "B-LOC", "I-LOC")
TEXT = " ".join(WORDS)


def spans(words):
    places, start = [], 0
    for word in words:
        places.append((start, start + len(word)))
        start += len(word) + 1
    return tuple(places)


def wrapped(model, before, trainer, normalizer=None):
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = before
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.train_from_iterator(["the unbelievable x of the believable"] * 3 + [TEXT], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>")


def word_pieces():
    trainer = trainers.WordPieceTrainer(vocab_size=30, special_tokens=["<unk>", "<pad>"], show_progress=False)
    normalizer = normalizers.BertNormalizer(strip_accents=True)
    return wrapped(models.WordPiece(unk_token="<unk>"), pre_tokenizers.BertPreTokenizer(), trainer, normalizer)


def metaspaces():
    trainer = trainers.UnigramTrainer(
        vocab_size=60, special_tokens=["<unk>", "<pad>"], unk_token="<unk>", show_progress=False
    )
    tokenizer = wrapped(models.Unigram(), pre_tokenizers.Metaspace(), trainer)
    tokenizer.backend_tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def bytes_of_text(fills_masks):
    return train_text_tokenizer([TEXT], 270, fills_masks=fills_masks, sequence_length=64)


TOKENIZERS = {
    "word pieces": word_pieces,
    "metaspaces": metaspaces,
    "bytes": lambda: bytes_of_text(False),
    "bytes, framed": lambda: bytes_of_text(True),
}


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("at_first", [True, False])
def test_a_word_has_its_label_at_one_token_of_its_own(name, at_first):
    tokenizer = TOKENIZERS[name]()
    offsets = tokenizer(TEXT, return_offsets_mapping=True)["offset_mapping"]
    places = labelled_tokens(spans(WORDS), offsets, at_first=at_first)
    assert list(places) == list(range(len(WORDS)))
    for word, place in places.items():
        begin, end = offsets[place]
        start, stop = spans(WORDS)[word]
        assert TEXT[begin:end].strip() in WORDS[word] and TEXT[begin:end].strip()
        # The first token begins where the word begins, or at the space before it; the last one ends where it ends.
        assert begin in (start - 1, start) if at_first else end == stop
    assert len(offsets) > len(WORDS), "some word has several tokens"


def as_text(kind, train, test, classes):
    return LabelledText(
        source=LabelledSource(kind=kind, repository="org/x"), classes=classes, parts=dict(train=train, test=test)
    )


def test_all_other_tokens_are_ignored_and_cut_words_are_missed():
    example, classes = Example(TEXT, TAGS, spans(WORDS)), ("B-LOC", "B-PER", "I-LOC", "O")
    text, tokenizer = as_text(TOKENS, (example,), (example,), classes), bytes_of_text(True)
    (whole,) = labelled_samples(text, tokenizer, max_tokens=64, sees_both_sides=True)["test"]
    labels = whole.features["labels"]
    assert [label for label in labels if label != IGNORED] == [1, 3, 3, 0, 2] and whole.words == (0, 1, 2, 3, 4)
    assert [labels[0], labels[-1]] == [IGNORED, IGNORED], "the tokens that frame a sequence"
    assert score(TOKENS, classes, [whole], [[1, 3, 3, 0, 2]]) == 1.0
    place = labels.index(0)
    (cut,) = labelled_samples(text, tokenizer, max_tokens=place + 1, sees_both_sides=True)["test"]
    assert cut.words == (0, 1, 2) and len(cut.features["labels"]) == place + 1
    assert score(TOKENS, classes, [cut], [[1, 3, 3]]) == pytest.approx(2 * 1 / (2 + 1)), "the second entity is missed"


def test_a_causal_model_is_asked_at_the_last_token_without_frame():
    example = Example(TEXT, TAGS, spans(WORDS))
    text, tokenizer = as_text(TOKENS, (example,), (example,), tuple(sorted(set(TAGS)))), bytes_of_text(True)
    (sample,) = labelled_samples(text, tokenizer, max_tokens=64, sees_both_sides=False)["test"]
    assert sample.features["labels"][-1] != IGNORED
    assert sample.features["input_ids"][0] != tokenizer.bos_token_id


def test_a_sentence_has_one_label_and_the_commonest_class_is_the_baseline():
    train = tuple(Example(f"text {n}", ("a" if n % 3 else "b",)) for n in range(9))
    test = (Example("one", ("b",)), Example("two", ("a",)), Example("three", ("b",)), Example("four", ("c",)))
    text = as_text(SENTENCES, train, test, ("a", "b", "c"))
    samples = labelled_samples(text, bytes_of_text(True), max_tokens=16, sees_both_sides=True)["test"]
    assert [sample.features["labels"] for sample in samples] == [[1], [0], [1], [2]]
    assert score(SENTENCES, text.classes, samples, [[1], [1], [1], [0]]) == 0.5
    assert majority_accuracy(text) == 0.25
