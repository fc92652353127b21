"""Sequences of tokens: what is masked, how documents are packed, how samples become batches."""

import itertools

import pytest
import torch
from language_material import DOCUMENTS, SEQUENCE_LENGTH, tiny_tokenizer

from pipelines.tasks.language_modeling.documents import pieces
from pipelines.tasks.language_modeling.samples import (
    IGNORED,
    masked_samples,
    packed_samples,
    shuffled,
    to_batch,
    to_batches,
)
from pipelines.tasks.language_modeling.settings import LanguageSettings

SETTINGS = LanguageSettings(sequence_length=SEQUENCE_LENGTH)


@pytest.fixture(scope="module")
def masking():
    return tiny_tokenizer("fill-mask")


@pytest.fixture(scope="module")
def writing():
    return tiny_tokenizer("text-generation")


def masked(tokenizer, documents=DOCUMENTS, seed=1, **settings):
    settings = LanguageSettings(**dict(sequence_length=SEQUENCE_LENGTH) | settings)
    return list(masked_samples(documents, tokenizer, settings, seed))


def plain(sample):
    """Return the ids of a masked sample without its masks."""
    return torch.where(sample["labels"] == IGNORED, sample["input_ids"], sample["labels"]).tolist()


def test_masked_sequences_hold_every_token_of_every_document(masking):
    expected = [masking(text)["input_ids"][1:-1] for text in DOCUMENTS]
    samples = masked(masking)
    assert list(itertools.chain(*(plain(sample)[1:-1] for sample in samples))) == list(itertools.chain(*expected))
    assert all(len(sample["input_ids"]) <= SEQUENCE_LENGTH for sample in samples)


def test_masks_follow_from_the_sequence_and_the_seed_wherever_it_turns_up(masking):
    alone = [masked(masking, [text])[0] for text in DOCUMENTS[::-1]][::-1]
    together = {tuple(plain(sample)): sample for sample in masked(masking)}
    for sample in alone:
        assert torch.equal(together[tuple(plain(sample))]["labels"], sample["labels"])
    other = {tuple(plain(sample)): sample for sample in masked(masking, seed=2)}
    assert any(not torch.equal(other[key]["labels"], sample["labels"]) for key, sample in together.items())


def test_every_sequence_predicts_something_and_never_a_special_token(masking):
    for sample in masked(masking, ["a", "b c", *DOCUMENTS], mask_probability=0.01):
        predicted = sample["labels"][sample["labels"] != IGNORED]
        assert len(predicted) and not set(predicted.tolist()) & set(masking.all_special_ids)


def test_a_share_of_the_tokens_is_masked_as_devlin_et_al_have_it(masking):
    samples = masked(masking, DOCUMENTS * 8, mask_probability=0.15)
    samples += [sample for seed in range(2, 6) for sample in masked(masking, seed=seed)]
    ids = torch.cat([sample["input_ids"] for sample in samples])
    labels = torch.cat([sample["labels"] for sample in samples])
    is_predicted = labels != IGNORED
    assert 0.12 < is_predicted.float().mean() < 0.18
    is_mask, is_same = ids[is_predicted] == masking.mask_token_id, ids[is_predicted] == labels[is_predicted]
    assert 0.7 < is_mask.float().mean() < 0.9 and 0.03 < is_same.float().mean() < 0.2


def test_whole_words_are_masked_together(masking):
    for sample in masked(masking, whole_word_masks=True):
        ids = plain(sample)
        starts = [masking.convert_ids_to_tokens(token).startswith("Ġ") for token in ids]
        is_predicted = (sample["labels"] != IGNORED).tolist()
        for place in range(2, len(ids) - 1):
            if not starts[place]:
                assert is_predicted[place] == is_predicted[place - 1]


def test_sequences_of_special_tokens_alone_are_left_out(masking):
    assert masked(masking, ["<mask><mask>", "</s>"]) == []


def test_packed_sequences_are_the_documents_one_after_another(writing):
    expected = []
    for text in DOCUMENTS:
        expected += [*writing(text, add_special_tokens=False)["input_ids"], writing.eos_token_id]
    samples = list(packed_samples(DOCUMENTS, writing, SETTINGS))
    assert torch.cat([sample["input_ids"] for sample in samples]).tolist() == expected
    assert {len(sample["input_ids"]) for sample in samples[:-1]} == {SEQUENCE_LENGTH}
    for sample in samples:
        assert sample["labels"][0] == IGNORED and torch.equal(sample["labels"][1:], sample["input_ids"][1:])


def test_a_gigantic_document_is_cut_at_white_space_and_nothing_is_lost():
    document = " ".join(f"word{number}" for number in range(5000))
    parts = list(pieces(document, most_characters=1000))
    assert "".join(parts) == document and max(map(len, parts)) <= 1000
    assert all(part.startswith((" ", "word0")) for part in parts)
    unbroken = "x" * 2500
    assert [len(part) for part in pieces(unbroken, most_characters=1000)] == [1000, 1000, 500]


def test_shuffling_yields_every_sample_once_in_an_order_that_the_seed_decides():
    first, again, other = (list(shuffled(range(100), seed, 16)) for seed in (1, 1, 2))
    assert first == again != other and sorted(first) == sorted(other) == list(range(100))
    assert first != list(range(100)) and all(place - value < 100 for place, value in enumerate(first))


def test_batches_are_rectangular_and_padding_is_neither_seen_nor_predicted(masking):
    samples = masked(masking)
    for number, batch in enumerate(to_batches(samples, masking, 4)):
        some = samples[4 * number : 4 * number + 4]
        width = max(len(sample["input_ids"]) for sample in some)
        assert {name: tuple(tensor.shape) for name, tensor in batch.items()} == {
            name: (len(some), width) for name in ("input_ids", "attention_mask", "labels")
        }
        is_padding = batch["attention_mask"] == 0
        assert (batch["input_ids"][is_padding] == masking.pad_token_id).all()
        assert (batch["labels"][is_padding] == IGNORED).all()


def test_a_tokenizer_without_padding_pads_with_its_end_of_sequence(writing):
    writing = tiny_tokenizer("text-generation")
    writing.pad_token = None
    batch = to_batch(list(packed_samples(["a b c d", "e"], writing, LanguageSettings(sequence_length=8))), writing)
    assert batch["input_ids"].shape == batch["labels"].shape
