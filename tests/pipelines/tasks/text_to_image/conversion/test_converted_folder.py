"""A converted model is a folder that the auto classes load and the Hub takes; it is written whole or not at all."""

import hashlib
from pathlib import Path

import pytest
import torch
import yaml
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import AutoModel, AutoProcessor, PreTrainedTokenizerFast

import modeling_dalle_collab
from modeling_dalle_collab import DalleCollabConfig, DalleCollabForConditionalGeneration
from pipelines.tasks.text_to_image.conversion.checkpoint_sizes import UnseenSettings, infer_config
from pipelines.tasks.text_to_image.conversion.converted_folder import convert_checkpoint
from pipelines.tasks.text_to_image.conversion.dalle_pytorch_checkpoint import DallePytorchCheckpoint, build_model
from pipelines.tasks.text_to_image.image_codes.codec_code import CODEC_CODE_FILES

UNSEEN = UnseenSettings(codebook_size=24, conv_window="corner")
NOT_THE_MODELS = {"__init__.py", "processing_dalle_collab.py"}
CODE = {path.name for path in Path(modeling_dalle_collab.__file__).parent.glob("*.py")} - NOT_THE_MODELS
CODE |= set(CODEC_CODE_FILES)
MODEL_FILES = {"config.json", "generation_config.json", "model.safetensors", "README.md"}


@pytest.fixture
def checkpoint(ancestor, tmp_path):
    torch.save(ancestor().state_dict(), tmp_path / "dalle.pt")
    return tmp_path / "dalle.pt"


def word_tokenizer(num_pieces):
    words = {"<unk>": 0, "</s>": 1} | {f"word{index}": index for index in range(2, num_pieces)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="</s>")


def test_the_folder_holds_the_model_its_code_and_a_card(checkpoint, tmp_path):
    convert_checkpoint(checkpoint, tmp_path / "new" / "model", UNSEEN)
    names = {path.name for path in (tmp_path / "new" / "model").iterdir()}
    assert names == CODE | MODEL_FILES
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"model"}


def test_the_loaded_model_is_the_checkpoints(checkpoint, tmp_path):
    convert_checkpoint(checkpoint, tmp_path / "model", UNSEEN)
    loaded, report = AutoModel.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert type(loaded) is DalleCollabForConditionalGeneration
    assert not report["missing_keys"] and not report["unexpected_keys"]
    read = DallePytorchCheckpoint.read(checkpoint)
    expected = build_model(read, infer_config(read, UNSEEN))
    for name in DalleCollabConfig.__annotations__:
        assert getattr(loaded.config, name) == getattr(expected.config, name)
    text = torch.randint(2, 40, (2, 7))
    codes = loaded.generate_image_codes(text, num_candidates=2, seed=3)
    assert torch.equal(codes, expected.generate_image_codes(text, num_candidates=2, seed=3))


def test_a_tokenizer_becomes_the_runs_processor(checkpoint, tmp_path):
    convert_checkpoint(checkpoint, tmp_path / "model", UNSEEN, tokenizer=word_tokenizer(40))
    processor = AutoProcessor.from_pretrained(tmp_path / "model")
    assert processor(text=["word5 word6"]).input_ids.tolist() == [[5, 6, 1, 1, 1, 1, 1]]
    model = AutoModel.from_pretrained(tmp_path / "model")
    assert model.generate_image_codes(**processor(text="word7"), num_candidates=1).shape == (1, 1, 16)


@pytest.mark.parametrize("num_pieces", [39, 41])
def test_a_tokenizer_of_another_size_is_refused(checkpoint, tmp_path, num_pieces):
    message = (
        rf"tokenizer has {num_pieces} pieces, expected 40: the checkpoint's 71 ids without 7 padding ids and 24 im"
    )
    with pytest.raises(ValueError, match=message):
        convert_checkpoint(checkpoint, tmp_path / "model", UNSEEN, tokenizer=word_tokenizer(num_pieces))
    assert [path.name for path in tmp_path.iterdir()] == ["dalle.pt"]


def test_the_card_says_where_the_model_comes_from_and_what_it_is(checkpoint, tmp_path):
    conversion = convert_checkpoint(checkpoint, tmp_path / "my-model", UNSEEN)
    card = (tmp_path / "my-model" / "README.md").read_text()
    assert yaml.safe_load(card.split("---")[1])["library_name"] == "transformers"
    parameters = AutoModel.from_pretrained(tmp_path / "my-model").num_parameters()
    assert conversion.num_parameters == parameters
    for fact in (
        *("# my-model", "`dalle.pt`", hashlib.sha256(checkpoint.read_bytes()).hexdigest(), f"{parameters:,}"),
        *("dalle-pytorch 1.4.0 to 1.6.6", "7, with 5 sets", "32, 2 heads of 18", "40 text pieces, 24 image codes"),
        *("7 text tokens, 4 x 4 image codes", "row, column, row, row; the last layer convolutional"),
        *("side 5, ending at the query", "text id 1", "AutoModel.from_pretrained", "draws noise"),
    ):
        assert fact in card
    assert str(tmp_path) not in card
    assert "AutoProcessor" not in card and "vae" not in card


def test_the_card_shows_the_processor_and_what_was_left_out(ancestor, tmp_path):
    torch.save(ancestor().state_dict() | {"vae.weight": torch.ones(1)}, tmp_path / "dalle.pt")
    convert_checkpoint(tmp_path / "dalle.pt", tmp_path / "model", UNSEEN, tokenizer=word_tokenizer(40))
    card = (tmp_path / "model" / "README.md").read_text()
    assert "AutoProcessor.from_pretrained" in card and "1 tensors of a codec (`vae.*`) were left out" in card


def test_an_empty_folder_is_filled_and_another_is_refused(checkpoint, tmp_path):
    (tmp_path / "model").mkdir()
    convert_checkpoint(checkpoint, tmp_path / "model", UNSEEN)
    before = {path: path.read_bytes() for path in (tmp_path / "model").iterdir()}
    for existing in (tmp_path / "model", checkpoint):
        with pytest.raises(ValueError, match=rf"{existing} already exists, expected a new or an empty folder"):
            convert_checkpoint(checkpoint, existing, UNSEEN)
    assert {path: path.read_bytes() for path in (tmp_path / "model").iterdir()} == before


def test_a_refused_checkpoint_leaves_nothing_behind(ancestor, tmp_path):
    torch.save(ancestor(reversible=False).state_dict(), tmp_path / "dalle.pt")
    with pytest.raises(ValueError, match=r"reversible=False"):
        convert_checkpoint(tmp_path / "dalle.pt", tmp_path / "model", UNSEEN)
    with pytest.raises(ValueError, match=r"There is no file .*absent\.pt, expected a checkpoint"):
        convert_checkpoint(tmp_path / "absent.pt", tmp_path / "model", UNSEEN)
    assert [path.name for path in tmp_path.iterdir()] == ["dalle.pt"]
