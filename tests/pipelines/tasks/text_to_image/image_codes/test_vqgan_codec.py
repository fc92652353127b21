"""The codec: shapes, ranges, storage, agreement with taming's own quantizers, and its errors."""

import json
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from taming.modules.vqvae.quantize import GumbelQuantize, VectorQuantizer2

from pipelines.tasks.text_to_image.image_codes.vqgan_codec import CodecLoadError, VQGANCodec, VQGANConfig

SIZES = dict(
    image_size=16,
    codebook_size=12,
    embedding_dim=8,
    z_channels=8,
    channels=32,
    channel_multipliers=(1, 1),
    num_residual_blocks=1,
    attention_resolutions=(8,),
)
GUMBEL = VQGANConfig(**SIZES, quantizer="gumbel")
NEAREST = VQGANConfig(**SIZES, quantizer="nearest")
COSINE = VQGANConfig(**{**SIZES, "z_channels": 16}, quantizer="cosine")
SMALL = VQGANConfig(
    **{**SIZES, "channel_multipliers": (1,), "num_residual_blocks": 0},
    quantizer="nearest",
    patch_size=4,
    normalisation="position",
    middle_attention=False,
    linear_encoder=True,
)


def some_codec(config: VQGANConfig) -> VQGANCodec:
    torch.manual_seed(0)
    codec = VQGANCodec(config).eval().requires_grad_(False)
    codec.codebook.normal_()
    return codec


def some_images(num_images: int = 3) -> torch.Tensor:
    return torch.rand(num_images, 3, 16, 16, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("config", [GUMBEL, NEAREST, COSINE, SMALL], ids=["gumbel", "nearest", "cosine", "small"])
def test_pictures_become_codes_and_codes_become_pictures(config):
    codec = some_codec(config)
    codes = codec.encode(some_images())
    assert codes.shape == (3, config.num_codes) and codes.dtype == torch.int64
    assert codes.min() >= 0 and codes.max() < 12 and len(codes.unique()) > 1
    pictures = codec.decode(codes)
    assert pictures.shape == (3, 3, 16, 16) and pictures.dtype == torch.float32
    assert pictures.min() >= 0 and pictures.max() <= 1


@pytest.mark.parametrize("config", [GUMBEL, COSINE, SMALL], ids=["gumbel", "cosine", "small"])
def test_equal_pictures_have_equal_codes_in_any_batch(config):
    codec = some_codec(config)
    together = codec.encode(some_images(4))
    assert torch.equal(together, torch.cat([codec.encode(image[None]) for image in some_images(4)]))


def test_sizes_follow_from_the_configuration():
    assert (GUMBEL.downsampling_factor, GUMBEL.grid_size, GUMBEL.num_codes) == (2, 8, 64)
    assert (SMALL.downsampling_factor, SMALL.grid_size, SMALL.num_codes) == (4, 4, 16)
    published = VQGANConfig()
    assert (published.downsampling_factor, published.grid_size, published.num_codes) == (8, 32, 1024)


def tamings_quantizer(codec: VQGANCodec) -> torch.nn.Module:
    is_gumbel = codec.config.quantizer == "gumbel"
    quantizer = GumbelQuantize(8, 8, n_embed=12) if is_gumbel else VectorQuantizer2(12, 8, beta=0.25, legacy=False)
    quantizer.load_state_dict(codec.quantize.state_dict())
    return quantizer.eval()


def test_nearest_codes_are_those_of_tamings_quantizer():
    codec = some_codec(NEAREST)
    _, _, (_, _, expected) = tamings_quantizer(codec)(codec.latents(some_images()))
    assert torch.equal(codec.encode(some_images()).flatten(), expected.flatten())


def test_cosine_codes_are_the_nearest_of_directions_whatever_the_latents_length():
    codec = some_codec(COSINE)
    codec.codebook.copy_(F.normalize(codec.codebook, dim=1))
    latents = codec.latents(some_images())
    directions = F.normalize(latents, dim=1).permute(0, 2, 3, 1).flatten(0, 2)
    expected = torch.cdist(directions, codec.codebook).argmin(dim=1)
    for length in (1e-4, 1, 1e4):
        assert torch.equal(codec.nearest_codes(length * latents).flatten(), expected)


def test_gumbel_codes_are_the_ones_that_tamings_noisy_quantizer_chooses_most_often():
    codec = some_codec(GUMBEL)
    codec.quantize["proj"].weight.mul_(20)
    latents, quantizer = codec.latents(some_images(1)), tamings_quantizer(codec)
    draws = torch.stack([quantizer(latents)[2][2].flatten() for _ in range(50)])
    assert (draws.mode(0).values == codec.encode(some_images(1)).flatten()).float().mean() > 0.9


@pytest.mark.parametrize("config", [GUMBEL, NEAREST], ids=["gumbel", "nearest"])
def test_decoding_looks_up_what_tamings_quantizer_does(config):
    codec = some_codec(config)
    codes = codec.encode(some_images())
    entries = tamings_quantizer(codec).get_codebook_entry(codes.flatten(), (3, 8, 8, 8))
    expected = (codec.decoder(codec.post_quant_conv(entries)) + 1) / 2
    torch.testing.assert_close(codec.decode(codes), expected.clamp(0, 1))


def test_a_saved_codec_comes_back_with_the_same_fingerprint_codes_and_pictures(tmp_path):
    codec = some_codec(SMALL)
    codec.save_pretrained(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["vqgan.safetensors", "vqgan_config.json"]
    loaded = VQGANCodec.from_pretrained(tmp_path)
    assert loaded.config == SMALL and not loaded.training
    assert loaded.fingerprint == codec.fingerprint and len(codec.fingerprint) == 16
    codes = codec.encode(some_images())
    assert torch.equal(loaded.encode(some_images()), codes)
    assert torch.equal(loaded.decode(codes), codec.decode(codes))


def test_a_rounded_codec_keeps_its_fingerprint_in_half_the_bytes(tmp_path):
    codec = some_codec(SMALL).round_to_half()
    codec.save_pretrained(tmp_path / "half", half_precision=True)
    codec.save_pretrained(tmp_path / "full")
    sizes = [(tmp_path / name / "vqgan.safetensors").stat().st_size for name in ("half", "full")]
    assert sizes[0] < 0.6 * sizes[1]
    assert VQGANCodec.from_pretrained(tmp_path / "half").fingerprint == codec.fingerprint


def test_the_fingerprint_changes_with_one_weight_and_with_the_configuration():
    codec = some_codec(SMALL)
    before = codec.fingerprint
    codec.codebook[0, 0] += 1e-3
    assert codec.fingerprint != before
    assert some_codec(GUMBEL).fingerprint != some_codec(NEAREST).fingerprint


def test_with_position_norm_a_far_change_leaves_a_code_alone():
    codec = some_codec(VQGANConfig(**{**SMALL.__dict__, "image_size": 96}))
    images = torch.rand(1, 3, 96, 96, generator=torch.Generator().manual_seed(2))
    changed = images.clone()
    changed[..., 64:, :] = 0
    before, after = (codec.encode(picture).view(24, 24) for picture in (images, changed))
    assert torch.equal(before[:8], after[:8])
    assert not torch.equal(before[16:], after[16:])


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.rand(2, 3, 12, 16), r"Pictures have shape \(2, 3, 12, 16\), this codec takes \(batch, 3, 16, 16\)"),
        (torch.rand(3, 16, 16), "Crop and resize them to 16x16 first"),
        (torch.zeros(1, 3, 16, 16, dtype=torch.uint8), "Pictures are torch.uint8, this codec takes floats"),
        (torch.full((1, 3, 16, 16), 255.0), r"Pictures hold values from 255 to 255, this codec takes \[0, 1\]"),
        (torch.full((1, 3, 16, 16), torch.nan), r"Pictures hold values from nan to nan"),
    ],
)
def test_pictures_of_another_size_or_range_are_refused(images, message):
    with pytest.raises(ValueError, match=message):
        some_codec(SMALL).encode(images)


def test_codes_of_another_number_or_outside_the_codebook_are_refused():
    codec = some_codec(SMALL)
    with pytest.raises(
        ValueError, match=r"Codes have shape \(1, 15\) and dtype torch\.int64, this codec decodes \(batch, 16\)"
    ):
        codec.decode(torch.zeros(1, 15, dtype=torch.int64))
    with pytest.raises(ValueError, match="Codes go from 0 to 12, this codec's codebook has 0 to 11"):
        codec.decode(torch.arange(16)[None].clamp(max=12))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"quantizer": "lfq"}, "Unknown quantizer 'lfq'; this codec knows gumbel, nearest, cosine"),
        ({"normalisation": "batch"}, "Unknown normalisation 'batch'"),
        ({"codebook_size": 40000}, "codebook_size is 40000; int16 codes allow 2 to 32768"),
        ({"channels": 48}, "channels is 48; taming's normalisation needs a multiple of 32"),
        ({"image_size": 17}, "image_size 17 is not a multiple of the downsampling factor 2"),
        ({"z_channels": 16}, "z_channels 16 and embedding_dim 8 differ"),
    ],
)
def test_sizes_that_make_no_codec_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        VQGANConfig(**{**GUMBEL.__dict__, **change})


def test_a_folder_without_a_codec_says_how_to_make_one(tmp_path):
    with pytest.raises(CodecLoadError, match=r"has no vqgan_config.json; .*dalle-collab codec train"):
        VQGANCodec.from_pretrained(tmp_path)
    with pytest.raises(CodecLoadError, match="There is no codec folder"):
        VQGANCodec.from_pretrained(tmp_path / "absent")


def test_a_pickle_in_place_of_safetensors_is_refused_with_the_converter(tmp_path):
    codec = some_codec(SMALL)
    codec.save_pretrained(tmp_path)
    torch.save(codec.state_dict(), tmp_path / "vqgan.safetensors")
    with pytest.raises(CodecLoadError, match=r"is a pickle, expected safetensors .*dalle-collab codec convert"):
        VQGANCodec.from_pretrained(tmp_path)


def test_a_truncated_weight_file_is_refused(tmp_path):
    some_codec(SMALL).save_pretrained(tmp_path)
    weights = tmp_path / "vqgan.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    with pytest.raises(CodecLoadError, match="is damaged, expected safetensors"):
        VQGANCodec.from_pretrained(tmp_path)


def test_weights_of_another_configuration_are_refused_by_name(tmp_path):
    some_codec(SMALL).save_pretrained(tmp_path)
    config = tmp_path / "vqgan_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "codebook_size": 24}))
    with pytest.raises(CodecLoadError, match=r"quantize.embedding.weight is of shape \(12, 8\), expected \(24, 8\)"):
        VQGANCodec.from_pretrained(tmp_path)


def test_an_unknown_field_in_the_configuration_is_refused(tmp_path):
    some_codec(SMALL).save_pretrained(tmp_path)
    config = tmp_path / "vqgan_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "colour": "red"}))
    with pytest.raises(CodecLoadError, match=r"is not a codec configuration of this version: .*colour"):
        VQGANCodec.from_pretrained(tmp_path)


def test_building_a_codec_prints_nothing_and_imports_only_torch_and_what_transformers_has():
    program = (
        "import sys; from pipelines.tasks.text_to_image.image_codes.vqgan_codec import VQGANCodec, VQGANConfig; "
        f"VQGANCodec(VQGANConfig(**{SMALL.__dict__!r})); "
        "assert not {'taming', 'torchvision', 'einops', 'pytorch_lightning', 'transformers'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""


def test_a_codec_of_an_older_version_is_loaded_and_keeps_its_fingerprint_but_for_one_that_cannot_be_built(tmp_path):
    codec = some_codec(NEAREST)
    codec.save_pretrained(tmp_path)
    values = json.loads((tmp_path / "vqgan_config.json").read_text())
    del values["linear_encoder"], values["linear_decoder"]
    (tmp_path / "vqgan_config.json").write_text(json.dumps(values | {"linear_shortcut": False}))
    assert VQGANCodec.from_pretrained(tmp_path).fingerprint == codec.fingerprint
    (tmp_path / "vqgan_config.json").write_text(json.dumps(values | {"linear_shortcut": True}))
    with pytest.raises(CodecLoadError, match="is not a codec configuration of this version"):
        VQGANCodec.from_pretrained(tmp_path)


def test_weights_that_are_not_finite_are_neither_saved_nor_loaded(tmp_path):
    codec = some_codec(SMALL)
    codec.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "vqgan.safetensors")
    codec.codebook[3, 2] = 1e5  # more than float16 holds
    with pytest.raises(CodecLoadError, match=r"has values that are not finite in quantize\.embedding\.weight"):
        codec.save_pretrained(tmp_path, half_precision=True)
    assert torch.equal(load_file(tmp_path / "vqgan.safetensors")["encoder.bias"], tensors["encoder.bias"])
    tensors["encoder.bias"][0] = float("nan")
    save_file(tensors, tmp_path / "vqgan.safetensors")
    with pytest.raises(CodecLoadError, match=r"has values that are not finite in encoder\.bias"):
        VQGANCodec.from_pretrained(tmp_path)


def test_a_tensor_that_the_configuration_does_not_have_is_refused(tmp_path):
    some_codec(SMALL).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "vqgan.safetensors")
    save_file(tensors | {"encoder.attn.q": torch.zeros(1)}, tmp_path / "vqgan.safetensors")
    with pytest.raises(CodecLoadError, match=r"encoder\.attn\.q is of shape \(1,\), expected none of this name"):
        VQGANCodec.from_pretrained(tmp_path)


def test_codes_of_any_whole_numbers_decode_and_others_are_refused():
    codec = some_codec(SMALL)
    codes = codec.encode(some_images())
    for dtype in (torch.uint8, torch.uint16, torch.int32):
        assert torch.equal(codec.decode(codes.to(dtype)), codec.decode(codes))
    with pytest.raises(ValueError, match=r"dtype torch\.float32, this codec decodes"):
        codec.decode(codes.float())
