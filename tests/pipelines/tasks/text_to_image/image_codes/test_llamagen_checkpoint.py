"""LlamaGen's tokenizers: the same codes and pictures as its own code gives, and what does not fit is named.

`llamagen_vq16.safetensors` was made by LlamaGen's own classes (github.com/FoundationVision/LlamaGen at commit ce98ec4,
tokenizer/tokenizer_image/vq_model.py, torch on a CPU in float32): a `VQModel` of VQ-16's layout with 512 codes of 8
dimensions, whose `Encoder` and `Decoder` have ch=32 and z_channels=24. Its weights are those of `drawn`, in
evaluation mode. `codes` are the indices that `encode` gave for the pictures of `drawn`, moved to [-1, 1]; `pictures`
is what `decode_code` made of them. The two best codes of a position differ by at least 1e-3 of a cosine. The metadata
has the names and shapes of this model's tensors and, under `published_shapes`, of `VQ_16()`, the published one.
"""

import subprocess

import numpy as np
import pytest
import torch
from llamagen_material import GOLDEN, drawn_weights, golden_shapes
from safetensors import safe_open

from pipelines.tasks.text_to_image.data_preparation.device_encoding import encode_pixels
from pipelines.tasks.text_to_image.image_codes.checkpoints.llamagen_checkpoint import NOT_USED, read_llamagen_codec
from pipelines.tasks.text_to_image.image_codes.vqgan_codec import CodecLoadError, VQGANCodec, VQGANConfig


def golden(name):
    with safe_open(GOLDEN, "pt") as file:
        return file.get_tensor(name)


@pytest.fixture(scope="module")
def drawn():
    """The golden model's weights, and the pictures it saw; the numbers of RandomState never change."""
    random = np.random.RandomState(0)
    return drawn_weights(random), torch.from_numpy(random.random_sample((2, 3, 64, 64)).astype(np.float32))


@pytest.fixture
def convert(drawn, tmp_path):
    """Return what saves a checkpoint with changed weights, and reads it."""

    def convert(part="model", image_size=64, changes=None, **extra):
        weights = {name: value for name, value in {**drawn[0], **(changes or {})}.items() if value is not None}
        torch.save({part: weights, "steps": 3, **extra}, tmp_path / "vq.pt")
        return read_llamagen_codec(tmp_path / "vq.pt", image_size)

    return convert


def test_codes_and_pictures_are_those_of_llamagens_own_code(convert, drawn):
    codec = convert()
    codes = codec.encode(drawn[1])
    assert torch.equal(codes, golden("codes").long()) and len(codes.unique()) > 20
    expected = (golden("pictures") + 1) / 2
    torch.testing.assert_close(codec.decode(codes), expected.clamp(0, 1), rtol=0, atol=1e-5)


def test_sizes_follow_from_the_tensors_and_the_codebook_has_length_one(convert):
    codec = convert()
    assert codec.config == VQGANConfig(
        image_size=64,
        codebook_size=512,
        embedding_dim=8,
        z_channels=24,
        channels=32,
        channel_multipliers=(1, 1, 2, 2, 4),
        attention_resolutions=(4,),
        quantizer="cosine",
    )
    assert (codec.config.downsampling_factor, codec.config.num_codes) == (16, 16)
    torch.testing.assert_close(codec.codebook.norm(dim=1), torch.ones(512))
    assert not codec.training


def test_larger_pictures_have_more_codes(convert):
    assert convert(image_size=96).encode(torch.rand(1, 3, 96, 96)).shape == (1, 36)


def test_the_moving_average_is_preferred_and_what_training_left_is_not_loaded(convert, drawn):
    plain = convert(optimizer={"state": {}})
    changed = {name: torch.zeros_like(value) for name, value in drawn[0].items()}
    assert convert("ema", model=changed).fingerprint == plain.fingerprint
    assert convert(changes={next(iter(NOT_USED)): None}).fingerprint == plain.fingerprint


def test_the_converted_codec_comes_back_from_its_folder_with_its_fingerprint(convert, drawn, tmp_path):
    codec = convert()
    loaded = VQGANCodec.from_pretrained(codec.save_pretrained(tmp_path / "codec"))
    assert loaded.fingerprint == codec.fingerprint
    pixels = (255 * drawn[1].permute(0, 2, 3, 1).numpy()).round().astype(np.uint8)
    assert np.array_equal(encode_pixels(loaded, list(pixels), 2), golden("codes").numpy())


def test_the_published_sizes_are_256_codes_out_of_16384(tmp_path):
    # One value stands for each tensor, so that the file is small; it is read as the published one is.
    weights = {name: torch.ones(1).expand(shape) for name, shape in golden_shapes("published_shapes").items()}
    torch.save({"model": weights}, tmp_path / "vq_ds16_t2i.pt")
    codec = read_llamagen_codec(tmp_path / "vq_ds16_t2i.pt", 256)
    assert codec.config == VQGANConfig(
        codebook_size=16384,
        embedding_dim=8,
        channel_multipliers=(1, 1, 2, 2, 4),
        attention_resolutions=(16,),
        quantizer="cosine",
    )
    assert (codec.config.grid_size, codec.config.num_codes) == (16, 256)
    assert sum(parameter.numel() for parameter in codec.parameters()) == 71_883_403


class Attack:
    def __init__(self, argument):
        self.argument = argument

    def __reduce__(self):
        return subprocess.check_call, (["touch", self.argument],)


def test_code_hidden_in_a_checkpoint_does_not_run(convert, tmp_path):
    convert(args=Attack(str(tmp_path / "trace")))
    assert not (tmp_path / "trace").exists()


BLOCK = "encoder.conv_blocks.0.res.1.conv1.weight"
WIDEST = "encoder.conv_blocks.4.res.0.conv2.weight"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {BLOCK: None},
            rf"is no whole image tokenizer of LlamaGen: {BLOCK} is absent, expected \(32, 32, 3, 3\)",
        ),
        ({BLOCK: torch.ones(32, 32)}, rf"{BLOCK} is of shape \(32, 32\), expected \(32, 32, 3, 3\) \(1 such\)"),
        ({WIDEST: torch.ones(1).expand(10**6, 1, 1, 1)}, r"expected \(1000000, 64, 3, 3\)"),
        ({"encoder.conv_in.weight": None}, "is no image tokenizer of LlamaGen: encoder.conv_in.weight is absent"),
        ({"quantize.embedding.weight": torch.tensor(1.0)}, r"quantize.embedding.weight is of shape \(\)\. "),
        ({"encoder.conv_blocks.0.res.0.conv2.weight": None}, "encoder.conv_blocks.0.res.0.conv2.weight is absent"),
        ({"encoder.gate.weight": torch.ones(1)}, r"has encoder.gate.weight, which .* do not have \(1 such\)"),
    ],
)
def test_what_is_absent_unknown_or_of_another_shape_is_named_in_one_line(convert, changes, message):
    with pytest.raises(CodecLoadError, match=message) as caught:
        convert(changes=changes)
    assert "\n" not in str(caught.value)


def test_a_checkpoint_of_taming_is_sent_to_its_description(tmp_path):
    torch.save({"state_dict": {"encoder.down.0.block.0.conv1.weight": torch.ones(1)}}, tmp_path / "last.ckpt")
    with pytest.raises(CodecLoadError, match=r"a taming checkpoint is converted with its .yaml"):
        read_llamagen_codec(tmp_path / "last.ckpt", 256)


def test_pictures_that_cannot_be_cut_into_16_pixels_are_refused(convert):
    with pytest.raises(ValueError, match="image_size 100 is not a multiple of the downsampling factor 16"):
        convert(image_size=100)
