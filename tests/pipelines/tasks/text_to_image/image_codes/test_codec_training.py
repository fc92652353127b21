"""Training a codec: where it starts, that it improves, and what it leaves behind when stopped."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from pipelines.tasks.text_to_image.image_codes.codebook import place_by_k_means
from pipelines.tasks.text_to_image.image_codes.codec_training import (
    CodecTrainingOptions,
    learning_rate_factor,
    place_codes,
    random_batches,
    reconstruction_loss,
    steps_that_fit,
    train_codec,
    with_wrong_codes,
)
from pipelines.tasks.text_to_image.image_codes.vqgan_codec import VQGANCodec, VQGANConfig

CONFIG = VQGANConfig(
    image_size=16,
    codebook_size=24,
    embedding_dim=8,
    z_channels=8,
    channels=32,
    channel_multipliers=(1,),
    num_residual_blocks=0,
    attention_resolutions=(),
    quantizer="nearest",
    patch_size=4,
    normalisation="position",
    middle_attention=False,
    linear_encoder=True,
)


def squares(num_pictures: int) -> torch.Tensor:
    """Bright squares somewhere on dark pictures, (num_pictures, 3, 16, 16) uint8."""
    generator = torch.Generator().manual_seed(0)
    pictures = torch.full((num_pictures, 3, 16, 16), 30, dtype=torch.uint8)
    for picture in pictures:
        row, column, side = torch.randint(0, 8, (3,), generator=generator).tolist()
        colour = torch.randint(120, 255, (3, 1, 1), generator=generator, dtype=torch.uint8)
        picture[:, row : row + side + 2, column : column + side + 2] = colour
    return pictures


def some_options(num_steps: int, **changes) -> CodecTrainingOptions:
    return CodecTrainingOptions(num_placing_codes=4000, num_steps=num_steps, **changes)


def new_codec() -> VQGANCodec:
    torch.manual_seed(0)
    return VQGANCodec(CONFIG)


def error_of(codec: VQGANCodec, pictures: torch.Tensor) -> float:
    images = pictures.float() / 255
    return (codec.decode(codec.encode(images)) - images).abs().mean().item()


def test_the_encoder_is_the_linear_map_to_principal_components():
    codec, images = new_codec().requires_grad_(False), squares(300).float() / 255
    place_codes(codec, images, torch.Generator().manual_seed(0))
    latents = codec.latents(images).permute(0, 2, 3, 1).flatten(0, 2)
    patches = F.unfold(2 * images - 1, 4, stride=4).transpose(1, 2).flatten(0, 1)
    centred = patches - (2 * images - 1).mean((0, 2, 3)).repeat_interleave(16)
    kept = torch.linalg.svd(centred, full_matrices=False).Vh[:8]
    components = centred @ kept.T
    torch.testing.assert_close(
        latents @ latents.T, components @ components.T / components.pow(2).mean(), rtol=1e-3, atol=1e-3
    )
    assert len(codec.encode(images).unique()) > 12


def test_a_code_depends_on_its_own_pixels_alone():
    codec, images = new_codec().requires_grad_(False), squares(300).float() / 255
    place_codes(codec, images, torch.Generator().manual_seed(0))
    changed = images.clone()
    changed[:, :, :4, :4] = 1 - changed[:, :, :4, :4]
    before, after = codec.encode(images), codec.encode(changed)
    assert torch.equal(before[:, 1:], after[:, 1:]) and not torch.equal(before[:, 0], after[:, 0])


def test_as_many_codes_become_wrong_as_asked_for_and_most_are_those_of_other_pictures():
    codes = torch.arange(2000)[:, None, None].expand(2000, 8, 8)  # each picture has one code, as no other
    seen = with_wrong_codes(codes, 0.06, 100_000, torch.Generator().manual_seed(0))
    wrong = seen != codes
    assert 0.055 < wrong.float().mean() < 0.065
    assert 0.2 < (seen[wrong] >= 2000).float().mean() < 0.3
    per_picture = wrong.float().mean((1, 2))
    assert per_picture.min() == 0 and 0.1 < per_picture.max() < 0.3
    assert torch.equal(with_wrong_codes(codes, 0.0, 100_000, torch.Generator()), codes)


@pytest.mark.long
@pytest.mark.slow
def test_a_decoder_that_has_seen_wrong_codes_mends_them():
    generator = torch.Generator().manual_seed(0)
    colours = 85 * torch.randint(0, 4, (12, 3, 1, 1), generator=generator, dtype=torch.uint8).repeat(25, 1, 1, 1)
    pictures, errors = colours.expand(300, 3, 16, 16).contiguous(), []
    for corruption in (0.0, 0.2):
        codec = new_codec()
        train_codec(codec, random_batches(pictures, 16, 0), some_options(400, code_corruption=corruption))
        images = pictures.float() / 255
        codes = codec.encode(images).view(-1, 4, 4)
        wrong = with_wrong_codes(codes, 0.1, len(codec.codebook), torch.Generator().manual_seed(1)).flatten(1)
        errors.append((codec.decode(wrong) - images).abs().mean().item())
    assert errors[1] < 0.9 * errors[0], errors


@pytest.mark.slow
def test_training_teaches_the_decoder():
    pictures, codec, heard = squares(200), new_codec(), []
    options = some_options(60)
    codec_at_start = new_codec()
    start = train_codec(codec_at_start, random_batches(pictures, 16, 0), some_options(1))
    last = train_codec(codec, random_batches(pictures, 16, 0), options, heard.append)
    assert [progress.step for progress in heard] == list(range(1, 61)) and last == heard[-1]
    assert start.step == 1 and error_of(codec, pictures) < 0.5 * error_of(codec_at_start, pictures)
    assert not codec.training and not any(parameter.requires_grad for parameter in codec.parameters())


def test_as_many_steps_fit_as_the_time_left_holds_of_those_that_were_done():
    assert steps_that_fit(100, 40.0, 60.0) == 250
    assert steps_that_fit(100, 40.0, 0.39) == 100, "the next one would be too late"
    assert steps_that_fit(2, 40.0, 60.0) == 1000, "the first steps are slower than the others"
    assert steps_that_fit(2, 40.0, -1.0) == 2


def test_training_ends_in_time_on_a_machine_that_slows_down():
    seconds, heard = [0.0], []

    def take_time(progress):
        heard.append(progress)
        seconds[0] += 1.0 if progress.step <= 20 else 2.0

    options = CodecTrainingOptions(num_placing_codes=4000, minutes=1.0)
    last = train_codec(new_codec(), random_batches(squares(100), 16, 0), options, take_time, clock=lambda: seconds[0])
    assert seconds[0] == 60.0 and last.step == 40 == last.num_steps
    assert heard[10].num_steps == 60, "as it looked before"


@pytest.mark.slow
def test_a_trained_codec_can_be_trained_further_and_its_codes_stay():
    pictures, codec = squares(200), new_codec()
    train_codec(codec, random_batches(pictures, 16, 0), some_options(30))
    before, codes = error_of(codec, pictures), codec.encode(pictures.float() / 255)
    train_codec(
        codec,
        random_batches(pictures, 16, 1),
        some_options(30),
        start_anew=False,
    )
    assert error_of(codec, pictures) < before
    assert torch.equal(codec.encode(pictures.float() / 255), codes)


def test_an_interrupted_training_leaves_a_usable_codec():
    pictures, codec = squares(100), new_codec()

    def interrupt(progress):
        if progress.step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_codec(
            codec,
            random_batches(pictures, 16, 0),
            some_options(30),
            interrupt,
        )
    assert not codec.training and not any(parameter.requires_grad for parameter in codec.parameters())


def test_codecs_without_nearest_codes_or_linear_encoder_are_not_trained():
    config = VQGANConfig(**{**CONFIG.__dict__, "quantizer": "gumbel"})
    with pytest.raises(ValueError, match="needs the quantizer `nearest` and a linear encoder, this codec has `gumbel`"):
        train_codec(VQGANCodec(config), iter(()), CodecTrainingOptions())


def test_a_loss_that_is_not_finite_stops_training_with_the_cure():
    codec = new_codec()
    good = random_batches(squares(50), 16, 0)

    def batches():
        for _ in range(20):
            yield next(good)
        yield torch.full((16, 3, 16, 16), torch.nan)

    with pytest.raises(ValueError, match=r"The loss is nan at step \d+. Use a smaller --learning-rate"):
        train_codec(codec, batches(), some_options(100))


def test_k_means_gives_each_cluster_a_vector():
    generator = torch.Generator().manual_seed(0)
    centres = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0], [10.0, 10.0]])
    latents = centres.repeat(50, 1) + 0.01 * torch.randn(200, 2, generator=generator)
    codebook = torch.zeros(4, 2)
    place_by_k_means(codebook, latents, generator)
    assert torch.cdist(centres, codebook).min(1).values.max() < 0.1


def test_the_learning_rate_rises_then_falls_along_half_a_cosine():
    assert learning_rate_factor(1, 100) == 0.5 and learning_rate_factor(2, 100) == 1
    assert learning_rate_factor(51, 100) == pytest.approx(0.5 * (1 + math.cos(math.pi * 49 / 98)))
    assert learning_rate_factor(100, 100) == pytest.approx(0)


def test_the_reconstruction_loss_counts_pixels_and_edges():
    images, reconstructions = torch.zeros(1, 1, 2, 2), torch.tensor([[[[0.0, 1.0], [0.0, 1.0]]]])
    assert reconstruction_loss(images, reconstructions, 0.0).item() == pytest.approx(0.5 + 2 * 0.5)
    assert reconstruction_loss(images, reconstructions, 3.0).item() == pytest.approx(1.5 + 0.5 * 3.0 * (1.0 + 0.0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"minutes": 0.0}, "minutes is 0.0, expected a positive number"),
        ({"minutes": math.nan}, "minutes is nan, expected a positive number"),
        ({"num_steps": 0}, "num_steps is 0, expected at least 1"),
        ({"batch_size": -1}, "batch_size is -1"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0, expected a positive number"),
        ({"edge_weight": -1.0}, "edge_weight is -1.0, expected 0 or more"),
        ({"code_corruption": 0.6}, "code_corruption is 0.6, expected 0 to 0.5"),
    ],
)
def test_options_out_of_range_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        CodecTrainingOptions(**change)


def test_with_a_linear_decoder_training_begins_with_the_mean_patch_of_each_code():
    pictures = squares(400)
    codec = VQGANCodec(replace(CONFIG, linear_decoder=True))
    images = pictures.float() / 255
    place_codes(codec, images, torch.Generator().manual_seed(0))
    begun = error_of(codec, pictures)
    latents = codec.latents(images)
    assert torch.allclose(codec.latents(codec.reconstruct(latents)), latents, atol=1e-3), "it is the encoder's inverse"
    assert begun < 0.4 * (images - images.mean()).abs().mean()
    train_codec(codec, random_batches(pictures, 16, 0, "cpu"), some_options(60))
    assert error_of(codec, pictures) < begun


def test_a_linear_decoder_needs_a_linear_encoder():
    with pytest.raises(ValueError, match="set linear_encoder"):
        replace(CONFIG, linear_encoder=False, linear_decoder=True)


def test_a_codec_without_one_keeps_its_fingerprint():
    assert new_codec().fingerprint != VQGANCodec(replace(CONFIG, linear_decoder=True)).fingerprint
