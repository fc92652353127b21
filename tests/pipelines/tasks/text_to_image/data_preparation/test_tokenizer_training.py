"""The small tokenizer: T5's special ids, lower case, round trips, and the same again."""

import numpy as np
import pytest
from transformers import AutoTokenizer

from pipelines.tasks.text_to_image.data_preparation.tokenizer_training import captions_of, train_tokenizer
from pipelines.tasks.text_to_image.image_codes.image_code_record import (
    ImageCodeLayout,
    image_code_table,
    write_image_code_shard,
)

CAPTIONS = [f"a {size} {colour} star" for size in ("small", "large") for colour in ("red", "blue", "green")] * 5
LAYOUT = ImageCodeLayout(codec_fingerprint="a", codebook_size=4, grid_size=1)


def test_special_ids_are_those_of_t5_with_padding_by_end_of_text(tmp_path):
    train_tokenizer(iter(CAPTIONS), 64).save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.convert_ids_to_tokens([0, 1, 2]) == ["<pad>", "</s>", "<unk>"]
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id) == (1, 1, 2)
    assert len(tokenizer) <= 64


def test_captions_are_lower_cased_and_frequent_words_are_one_token():
    tokenizer = train_tokenizer(iter(CAPTIONS), 64)
    ids = tokenizer("A small RED star").input_ids
    assert ids == tokenizer("a small red star").input_ids and len(ids) == 4
    assert tokenizer.decode(ids) == "a small red star"
    assert tokenizer("漢").input_ids[-1] == 2


def test_equal_captions_give_an_equal_tokenizer():
    first, second = (train_tokenizer(iter(CAPTIONS), 40) for _ in range(2))
    assert first.get_vocab() == second.get_vocab()


def test_captions_come_from_a_folder_of_shards(tmp_path):
    for number, part in enumerate((CAPTIONS[:20], CAPTIONS[20:])):
        table = image_code_table(part, np.zeros((len(part), 1)), LAYOUT)
        write_image_code_shard(tmp_path / f"train-{number:05d}.parquet", table)
    assert list(captions_of(str(tmp_path))) == CAPTIONS


def test_nothing_to_learn_from_is_refused(tmp_path):
    with pytest.raises(ValueError, match="There are no captions to learn from"):
        train_tokenizer(iter(()), 64)
    with pytest.raises(ValueError, match="A vocabulary of 3 has no room for letters"):
        train_tokenizer(iter(CAPTIONS), 3)
    with pytest.raises(ValueError, match="has no Parquet shards"):
        list(captions_of(str(tmp_path)))
    with pytest.raises(ValueError, match=r"There is no folder .*absent. Expected a folder of shards or a dataset"):
        list(captions_of(str(tmp_path / "absent")))
