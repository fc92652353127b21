"""Captions become text ids as the run made them; the processor remembers the run's codec and CLIP."""

import json

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import AutoProcessor, PreTrainedTokenizerFast

from modeling_dalle_collab import DalleCollabProcessor

WORDS = ["<unk>", "</s>", "a", "red", "blue", "circle", "square", "small"]


@pytest.fixture
def tokenizer():
    inner = Tokenizer(WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<unk>"))
    inner.pre_tokenizer = Whitespace()
    inner.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])  # as T5's
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", eos_token="</s>", pad_token="</s>")


def test_captions_are_padded_on_the_right_without_special_tokens(tokenizer):
    processor = DalleCollabProcessor(tokenizer, text_sequence_length=5)
    output = processor(text=["a red circle", "blue"])
    assert output["input_ids"].tolist() == [[2, 3, 5, 1, 1], [4, 1, 1, 1, 1]]
    assert output.input_ids.dtype == torch.int64 and set(output) == {"input_ids"}


def test_long_captions_lose_their_end_and_one_string_is_a_batch_of_one(tokenizer):
    processor = DalleCollabProcessor(tokenizer, text_sequence_length=3)
    assert processor(text="a small blue square").input_ids.tolist() == [[2, 7, 4]]
    assert processor(text=[]).input_ids.shape == (0, 3)


def test_padding_is_the_processors_id_whatever_the_tokenizer_pads_with(tokenizer):
    processor = DalleCollabProcessor(tokenizer, text_sequence_length=3, pad_token_id=0)
    assert processor(text=["red", ""]).input_ids.tolist() == [[3, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize("loader", [DalleCollabProcessor, AutoProcessor])
def test_a_processor_survives_saving_with_its_codec_and_clip(tokenizer, tmp_path, loader):
    processor = DalleCollabProcessor(
        tokenizer,
        image_codec_repository="org/codec",
        image_codec_revision="v1",
        image_codec_fingerprint="00ff",
        clip_repository="org/clip",
        text_sequence_length=4,
        pad_token_id=1,
    )
    processor.save_pretrained(tmp_path)
    loaded = loader.from_pretrained(tmp_path)
    assert type(loaded) is DalleCollabProcessor
    stored = json.loads((tmp_path / "processor_config.json").read_text())
    expected = {"image_codec_repository": "org/codec", "image_codec_revision": "v1", "clip_repository": "org/clip"}
    expected |= {"image_codec_fingerprint": "00ff", "text_sequence_length": 4, "pad_token_id": 1}
    assert stored.items() >= expected.items()
    assert {name: getattr(loaded, name) for name in expected} == expected
    captions = ["a red circle", "a small blue square in a red circle"]
    assert torch.equal(loaded(text=captions).input_ids, processor(text=captions).input_ids)


@pytest.mark.parametrize("caption", [None, 3, ["red"]])
def test_captions_that_are_not_strings_are_refused(tokenizer, caption):
    processor = DalleCollabProcessor(tokenizer, text_sequence_length=3)
    with pytest.raises(ValueError, match=r"Caption 1 is .*, expected a string\. Drop records"):
        processor(text=["red", caption])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"text_sequence_length": 0}, "text_sequence_length is 0, expected at least 1"),
        ({"pad_token_id": 8}, "pad_token_id is 8, expected an id of the tokenizer, which has 8"),
    ],
)
def test_sizes_that_do_not_fit_the_tokenizer_are_refused(tokenizer, options, message):
    with pytest.raises(ValueError, match=message):
        DalleCollabProcessor(tokenizer, **options)
