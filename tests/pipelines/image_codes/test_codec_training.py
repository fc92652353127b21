"""Training a codec: where it starts, that it improves, and what it leaves behind when stopped."""

import math

import pytest
import torch
import torch.nn.functional as F

from pipelines.image_codes.codebook import Codebook, nearest
from pipelines.image_codes.codec_training import (
    CodecTrainingOptions,
    learning_rate_factor,
    random_batches,
    reconstruction_loss,
    start_at_principal_components,
    train_codec,
)
from pipelines.image_codes.vqgan_codec import VQGANCodec, VQGANConfig

CONFIG = VQGANConfig(
    image_size=16,
    codebook_size=24,
    embedding_dim=8,
    z_channels=32,
    channels=32,
    channel_multipliers=(1,),
    num_residual_blocks=0,
    attention_resolutions=(),
    quantizer="nearest",
    patch_size=4,
    normalisation="position",
    middle_attention=False,
    linear_shortcut=True,
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


def test_at_the_start_the_codec_is_the_linear_map_of_principal_components():
    codec, images = new_codec(), squares(300).float() / 255
    codebook = Codebook(codec.codebook, decay=0.9, generator=torch.Generator().manual_seed(0))
    codec.eval().requires_grad_(False)
    start_at_principal_components(codec, images, codebook)
    latents = codec.latents(images).permute(0, 2, 3, 1).flatten(0, 2)
    patches = F.unfold(2 * images - 1, 4, stride=4).transpose(1, 2).flatten(0, 1)
    centred = patches - (2 * images - 1).mean((0, 2, 3)).repeat_interleave(16)
    kept = torch.linalg.svd(centred, full_matrices=False).Vh[:8]
    components = centred @ kept.T
    torch.testing.assert_close(
        latents @ latents.T, components @ components.T / components.pow(2).mean(), rtol=1e-3, atol=1e-3
    )
    assert codec.encoder_latents(images).abs().max() == 0


@pytest.mark.slow
def test_training_improves_on_k_means_and_uses_the_codebook():
    pictures, codec, heard = squares(200), new_codec(), []
    options = some_options(60)
    codec_at_start = new_codec()
    start = train_codec(
        codec_at_start,
        random_batches(pictures, 16, 0),
        some_options(1, learning_rate=1e-9),
    )
    last = train_codec(codec, random_batches(pictures, 16, 0), options, heard.append)
    assert [progress.step for progress in heard] == list(range(1, 61)) and last == heard[-1]
    assert start.step == 1 and error_of(codec, pictures) < 0.8 * error_of(codec_at_start, pictures)
    assert last.codes_in_use > 12
    assert not codec.training and not any(parameter.requires_grad for parameter in codec.parameters())


@pytest.mark.slow
def test_a_trained_codec_can_be_trained_further():
    pictures, codec = squares(200), new_codec()
    train_codec(codec, random_batches(pictures, 16, 0), some_options(30))
    before = error_of(codec, pictures)
    train_codec(
        codec,
        random_batches(pictures, 16, 1),
        some_options(30),
        start_anew=False,
    )
    assert error_of(codec, pictures) < 1.02 * before


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
    assert not codec.training and error_of(codec, pictures) < 0.2


def test_codecs_without_nearest_codes_or_shortcut_are_not_trained():
    config = VQGANConfig(**{**CONFIG.__dict__, "quantizer": "gumbel", "embedding_dim": 32})
    with pytest.raises(
        ValueError, match="needs the quantizer `nearest` and a linear shortcut, this codec has `gumbel`"
    ):
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


def test_k_means_gives_each_cluster_a_vector_and_unused_vectors_move_to_bad_latents():
    generator = torch.Generator().manual_seed(0)
    centres = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0], [10.0, 10.0]])
    latents = centres.repeat(50, 1) + 0.01 * torch.randn(200, 2, generator=generator)
    codebook = Codebook(torch.zeros(4, 2), decay=0.5, generator=generator)
    codebook.place_by_k_means(latents)
    assert torch.cdist(centres, codebook.vectors).min(1).values.max() < 0.1
    far = torch.full((20, 2), 40.0)
    for _ in range(40):
        codebook.follow(latents[::4], nearest(codebook.vectors, latents[::4]))
    assert len(codebook.unused()) == 3
    codebook.restart_unused(far, nearest(codebook.vectors, far))
    assert len(codebook.unused()) == 0
    assert (far - codebook.vectors[nearest(codebook.vectors, far)]).abs().max() < 1e-5


def test_vectors_are_moving_averages_of_their_latents():
    codebook = Codebook(torch.tensor([[1.0], [5.0]]), decay=0.75, generator=torch.Generator())
    codebook.follow(torch.tensor([[2.0], [4.0]]), torch.tensor([0, 0]))
    expected = (0.75 * 1.0 + 0.25 * (2.0 + 4.0)) / (0.75 * 1 + 0.25 * 2)
    torch.testing.assert_close(codebook.vectors, torch.tensor([[expected], [5.0]]))


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
        ({"num_steps": 0}, "num_steps is 0, expected at least 1"),
        ({"batch_size": -1}, "batch_size is -1"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0, expected a positive number"),
        ({"locality_weight": -1.0}, "locality_weight is -1.0, expected 0 or more"),
        ({"codebook_decay": 1.0}, "codebook_decay is 1.0"),
    ],
)
def test_options_out_of_range_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        CodecTrainingOptions(**change)
