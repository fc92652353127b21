"""The demo's real text and its tokenizer."""

import pyarrow.parquet as pq
import pytest

from pipelines.tools.demo.language.text import docstrings, documents, without_repetitions, write_text_dataset
from pipelines.tools.demo.language.tokenizer import train_text_tokenizer


@pytest.fixture(scope="module")
def texts():
    return tuple(documents())


def test_the_text_is_long_english_and_the_same_every_time(texts):
    assert sum(map(len, texts)) > 10**6 and len(texts) > 300
    assert any("The yield statement" in text or "yield expression" in text for text in texts)
    assert " the " in texts[0]


def test_no_paragraph_occurs_twice(texts):
    paragraphs = [" ".join(paragraph.split()) for text in texts for paragraph in text.split("\n\n")]
    assert len(paragraphs) == len(set(paragraphs))
    long = "This sentence has more than forty characters in it."
    assert list(without_repetitions([f"{long}\n\nshort", f"{long}\n\n{long[::-1]}", long])) == [long, long[::-1]]


def test_docstrings_of_what_is_no_python_are_none(tmp_path):
    (tmp_path / "a.py").write_text('"""A module."""\n\ndef f():\n    """A function."""\n')
    (tmp_path / "b.py").write_text("def f(:\n")
    assert docstrings(tmp_path / "a.py") == "A module.\n\nA function." and docstrings(tmp_path / "b.py") == ""


def test_the_dataset_has_every_document_in_one_of_its_splits(tmp_path):
    texts = [f"document number {number}" for number in range(300)]
    train, validation = write_text_dataset(tmp_path, texts)
    assert sorted(train + validation) == sorted(texts) and 5 < len(validation) < 40
    shards = sorted((tmp_path / "data").glob("train-*.parquet"))
    assert len(shards) == 4
    assert sorted(text for shard in shards for text in pq.read_table(shard)["text"].to_pylist()) == sorted(train)


@pytest.mark.parametrize("fills_masks", [True, False])
def test_nothing_is_unknown_to_the_tokenizer(texts, fills_masks):
    tokenizer = train_text_tokenizer(texts[:40], 400, fills_masks=fills_masks, sequence_length=64)
    assert len(tokenizer) == 400 and (tokenizer.mask_token is not None) == fills_masks
    text = "A naïve façade, 鸟 and\n\ttabs.  "
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert (ids[0] == tokenizer.bos_token_id and ids[-1] == tokenizer.eos_token_id) == fills_masks
    again = train_text_tokenizer(texts[:40], 400, fills_masks=fills_masks, sequence_length=64)
    assert again.get_vocab() == tokenizer.get_vocab()
