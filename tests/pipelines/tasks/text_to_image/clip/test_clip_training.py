"""A small CLIP learns, survives the round trip through its folder, and is written whole or not at all."""

import dataclasses
import os
import signal

import numpy as np
import open_clip
import pytest
import torch

from pipelines.tasks.text_to_image.clip.clip_folder import save_clip_folder, train_clip_tokenizer
from pipelines.tasks.text_to_image.clip.clip_pictures import (
    CaptionedPictures,
    collect_pictures,
    corrupt_codes,
    through_the_codec,
)
from pipelines.tasks.text_to_image.clip.clip_reranking import ClipReranker, new_clip
from pipelines.tasks.text_to_image.clip.clip_training import PREPROCESS, ClipTrainingConfig, train_clip
from pipelines.tasks.text_to_image.clip.contrastive_learning import (
    clip_batches,
    contrastive_loss,
    has_learnt,
    learning_rate_factor,
    retrieval_accuracy,
    retrieval_by_chance,
    similar_rows,
    token_ids,
    word_vectors,
)
from pipelines.tasks.text_to_image.image_codes.vqgan_codec import VQGANCodec
from pipelines.tasks.text_to_image.image_codes.vqgan_config import VQGANConfig

COLOURS = {"red": (220, 30, 30), "green": (30, 180, 60), "blue": (30, 60, 220), "white": (250, 250, 250)}
TINY = ClipTrainingConfig(
    image_size=32,
    vision_width=8,
    text_width=32,
    text_layers=1,
    embed_dim=16,
    vocab_size=300,
    num_steps=60,
    batch_size=16,
    group_size=4,
    peak_learning_rate=1e-3,
    held_out_share=0.1,
)


def coloured_pairs(count=120, seed=0):
    """A caption and a flat picture with a little noise."""
    random = np.random.default_rng(seed)
    for index in range(count):
        name = list(COLOURS)[index % len(COLOURS)]
        noise = random.integers(-10, 10, (20, 16, 3))
        yield f"a {name} picture", np.clip(np.array(COLOURS[name]) + noise, 0, 255).astype(np.uint8)


@pytest.fixture(scope="module")
def codec():
    torch.manual_seed(0)
    sizes = dict(image_size=16, codebook_size=8, embedding_dim=4, z_channels=4, channels=32, channel_multipliers=(1, 1))
    return VQGANCodec(VQGANConfig(**sizes, num_residual_blocks=1, attention_resolutions=(), quantizer="nearest")).eval()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    output = tmp_path_factory.mktemp("trained") / "clip"
    return output, train_clip(coloured_pairs(), output, TINY)


@pytest.mark.slow
def test_training_lowers_the_loss_and_finds_held_out_pictures_above_chance(trained):
    _, report = trained
    assert np.mean(report.losses[-5:]) < 0.7 * np.mean(report.losses[:5])
    assert report.retrieval_accuracy > 3 * report.chance
    assert (report.num_pictures, report.num_steps, report.was_interrupted) == (108, 60, False)


@pytest.mark.slow
def test_a_trained_clip_picks_the_right_colour_after_loading_it_from_its_folder(trained):
    output, report = trained
    reranker = ClipReranker.from_pretrained(output)
    pictures = collect_pictures(coloured_pairs(4, seed=1), 32).pictures.float() / 255
    for index, name in enumerate(COLOURS):
        assert reranker.best(f"a {name} picture", pictures, keep=1)[0].tolist() == [index]
    assert (output / "open_clip_model.safetensors").stat().st_size == report.num_bytes


def test_the_same_seed_trains_the_same_clip(tmp_path):
    config = dataclasses.replace(TINY, num_steps=4)
    reports = [
        train_clip(coloured_pairs(40), tmp_path / name, config, save_anyway=True) for name in ("first", "second")
    ]
    assert reports[0].losses == reports[1].losses and len(set(reports[0].losses)) > 1
    weights = [(tmp_path / name / "open_clip_model.safetensors").read_bytes() for name in ("first", "second")]
    assert weights[0] == weights[1]


def test_the_folder_gives_the_embeddings_that_were_saved(tmp_path):
    tokenizer = train_clip_tokenizer(["a red picture"], TINY.vocab_size)
    config = TINY.model_config(len(tokenizer))
    model = new_clip(config, PREPROCESS).eval()
    save_clip_folder(
        tmp_path / "clip", model, tokenizer, model_config=config, preprocess=PREPROCESS, weights_dtype=torch.float32
    )
    reranker = ClipReranker.from_pretrained(tmp_path / "clip")
    images = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        images_before = model.encode_image((images - 0.5) / 0.5, normalize=True)
        ids = token_ids(tokenizer, ["A red picture, twice"], TINY.context_length)
        text_before = model.encode_text(ids, normalize=True)
    torch.testing.assert_close(reranker.image_embeddings(images), images_before)
    torch.testing.assert_close(reranker.text_embeddings(["A red picture, twice"]), text_before)
    assert torch.equal(open_clip.get_tokenizer(f"local-dir:{tmp_path / 'clip'}")("A red picture, twice"), ids)


def test_captions_end_with_the_end_token_even_when_cut_and_any_script_can_be_written():
    tokenizer = train_clip_tokenizer(["a red picture"], 300)
    ids = token_ids(tokenizer, ["a red picture", "красная звезда 赤い星 " * 20, ""], 12)
    assert ids.shape == (3, 12)
    assert [(row == 1).sum().item() for row in ids] == [1, 1, 1]
    assert ids[1, -1] == 1 and ids[2, 0] == 1
    assert tokenizer.decode(tokenizer("赤い ★").input_ids, skip_special_tokens=True).strip() == "赤い ★"


def test_pairs_with_the_same_caption_are_no_negatives_of_each_other():
    generator = torch.Generator().manual_seed(0)
    images = torch.nn.functional.normalize(torch.randn(4, 8, generator=generator), dim=1)
    texts = torch.nn.functional.normalize(torch.randn(4, 8, generator=generator), dim=1)
    texts[2] = texts[0]
    ids = torch.tensor([[5, 6], [7, 8], [5, 6], [5, 9]])
    similarity = (4.0 * images @ texts.T).exp().numpy()
    expected = []
    for own in range(4):
        rivals = [other for other in range(4) if other == own or not torch.equal(ids[own], ids[other])]
        expected.append(-np.log(similarity[own, own] / similarity[own, rivals].sum()))
        expected.append(-np.log(similarity[own, own] / similarity[rivals, own].sum()))
    loss = contrastive_loss(images, texts, torch.tensor(4.0), ids)
    assert loss.item() == pytest.approx(np.mean(expected), rel=1e-5)


def test_a_pass_shows_every_picture_once_and_the_asked_share_redrawn():
    pictures = torch.arange(1000, dtype=torch.int64).remainder(100).to(torch.uint8).reshape(1000, 1, 1, 1)
    data = CaptionedPictures(captions=["x"] * 1000, pictures=pictures.expand(-1, 3, 2, 2))
    ids = torch.arange(1000)[:, None]
    batches = clip_batches(
        data,
        ids,
        batch_size=100,
        group_size=1,
        redrawn=data.pictures + 100,
        redrawn_share=0.3,
        generator=torch.Generator().manual_seed(0),
    )
    seen = [next(batches) for _ in range(10)]
    rows = torch.cat([rows for _, rows in seen])[:, 0]
    shown = torch.cat([shown for shown, _ in seen])[:, 0, 0, 0] * 255
    assert rows.sort().values.tolist() == list(range(1000))
    assert torch.equal(shown.round().long() % 100, rows % 100)
    assert 0.25 < (shown.round() >= 100).float().mean() < 0.35


def test_a_group_holds_the_captions_that_share_the_most_words():
    captions = [f"a {size} {colour} {shape}" for size in ("small", "large") for colour in COLOURS for shape in "xyz"]
    tokenizer = train_clip_tokenizer(captions, 400)
    ids = token_ids(tokenizer, captions + ["the sea", "an old house"] * 20, 24)
    rows = similar_rows(word_vectors(ids), torch.tensor([0, 24]), 6, torch.Generator().manual_seed(0)).tolist()
    shared = [len(set(captions[0].split()) & set(captions[row].split())) for row in rows[:6]]
    assert rows[0] == 0 and sorted(shared) == [3, 3, 3, 3, 3, 4]
    assert rows[6] == 24 and all(torch.equal(ids[row], ids[24]) for row in rows[6:])


def test_the_learning_rate_rises_over_the_first_tenth_and_falls_to_zero():
    factors = [learning_rate_factor(step, 100) for step in range(100)]
    assert factors[:10] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0])
    assert factors[10] == 1.0 and factors == factors[:10] + sorted(factors[10:], reverse=True)
    assert factors[55] == pytest.approx(0.5) and factors[-1] < 0.001


def test_corrupted_codes_have_the_asked_mean_share_of_wrong_ones_and_leave_the_input_alone():
    codes = torch.zeros(500, 64, dtype=torch.int64)
    wrong = corrupt_codes(codes, 64, 0.05, torch.Generator().manual_seed(0))
    shares = (wrong != 0).float().mean(dim=1)
    assert shares.mean().item() == pytest.approx(0.05 * 63 / 64, abs=0.005)
    assert shares.max() < 0.3 and (shares == 0).any()
    assert wrong.min() >= 0 and wrong.max() < 64 and not codes.any()


def test_pictures_redrawn_without_corruption_are_the_codecs_reconstructions(codec):
    data = collect_pictures(coloured_pairs(10), 16)
    redrawn = through_the_codec(data.pictures, codec, corruption=0.0, batch_size=3)
    plain = codec.decode(codec.encode(data.pictures.float() / 255))
    # Another batch size may move a value across a rounding border.
    assert (redrawn.int() - (plain * 255).round().int()).abs().max() <= 1
    assert (redrawn != data.pictures).any()


def test_a_codec_changes_what_the_clip_sees(codec, tmp_path):
    config = dataclasses.replace(TINY, num_steps=3)
    plain = train_clip(coloured_pairs(40), tmp_path / "plain", config)
    redrawn = train_clip(coloured_pairs(40), tmp_path / "redrawn", config, codec=codec)
    assert redrawn.losses != plain.losses


def test_retrieval_counts_another_picture_of_the_same_caption_as_found():
    tokenizer = train_clip_tokenizer(["a red picture"], TINY.vocab_size)
    model = new_clip(TINY.model_config(len(tokenizer)), PREPROCESS)
    data = collect_pictures([("a red picture", np.zeros((32, 32, 3), np.uint8))] * 5, 32)
    assert retrieval_accuracy(model, data, token_ids(tokenizer, data.captions, 24)) == 1.0


def test_by_chance_a_caption_finds_its_picture_as_often_as_the_caption_is_there():
    ids = torch.tensor([[5, 1], [5, 1], [6, 1], [7, 1]])
    assert retrieval_by_chance(ids) == pytest.approx((2 / 4 + 2 / 4 + 1 / 4 + 1 / 4) / 4)


@pytest.mark.parametrize(
    ("found", "captions", "chance", "expected"),
    [
        (3, 50, 1 / 50, False),  # at least 3 are found in 7.8 % of all drawings, at least 4 in 1.8 %
        (4, 50, 1 / 50, True),
        (0, 512, 1 / 512, False),
        (512, 512, 1 / 512, True),
        (3, 3, 1 / 3, None),  # once in 27 drawings even if it has learnt nothing
        (4, 4, 1 / 4, True),
        (1, 1, 1.0, False),
        (30, 30, 1.0, False),
    ],
)
def test_a_clip_has_learnt_if_luck_would_hardly_find_as_many(found, captions, chance, expected):
    assert has_learnt(found, captions, chance) is expected


def test_a_clip_that_has_learnt_nothing_is_not_saved_and_the_older_one_stays(tmp_path):
    random = np.random.default_rng(0)
    noise = [(f"picture {number}", random.integers(0, 255, (32, 32, 3), np.uint8)) for number in range(100)]
    config = dataclasses.replace(TINY, num_steps=2, held_out_share=0.3)
    older = train_clip(noise, tmp_path / "clip", config, save_anyway=True)
    before = (tmp_path / "clip" / "open_clip_model.safetensors").read_bytes()
    report = train_clip(noise, tmp_path / "clip", dataclasses.replace(config, seed=1))
    assert (older.has_learnt, report.has_learnt) == (False, False)
    assert (older.num_bytes, report.num_bytes) == (len(before), 0)
    assert (tmp_path / "clip" / "open_clip_model.safetensors").read_bytes() == before


def test_a_loss_that_is_not_finite_leaves_nothing_behind(tmp_path):
    config = dataclasses.replace(TINY, num_steps=6, peak_learning_rate=1e30)
    with pytest.raises(ValueError, match=r"The loss is nan at step \d\. Use a smaller --learning-rate"):
        train_clip(coloured_pairs(40), tmp_path / "clip", config)
    assert not (tmp_path / "clip").exists()


def test_ctrl_c_during_the_steps_saves_what_was_learnt(tmp_path):
    def interrupt(stage, done, total, detail):
        if stage == "training" and done == 3:
            os.kill(os.getpid(), signal.SIGINT)

    report = train_clip(coloured_pairs(40), tmp_path / "clip", TINY, on_progress=interrupt, save_anyway=True)
    assert report.was_interrupted and 3 <= report.num_steps <= 4
    assert len(ClipReranker.from_pretrained(tmp_path / "clip").scores("a red picture", torch.rand(2, 3, 16, 16))) == 2


def test_ctrl_c_before_the_first_step_leaves_nothing_behind(tmp_path):
    def interrupt(stage, done, total, detail):
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train_clip(coloured_pairs(100), tmp_path / "clip", TINY, on_progress=interrupt)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_no_clip_is_not_replaced(tmp_path):
    (tmp_path / "precious.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"exists and is not a CLIP folder. Choose another --output or remove it"):
        train_clip(coloured_pairs(10), tmp_path, TINY)
    assert (tmp_path / "precious.txt").read_text() == "mine"


def test_no_pictures_and_wrong_pictures_are_refused(tmp_path):
    with pytest.raises(ValueError, match="There are no captioned pictures to learn from"):
        train_clip([("  ", np.zeros((8, 8, 3), np.uint8))], tmp_path / "clip", TINY)
    with pytest.raises(ValueError, match=r"2 captioned pictures are too few: expected at least 3"):
        train_clip(coloured_pairs(2), tmp_path / "clip", TINY)
    with pytest.raises(ValueError, match=r"Expected a picture \(height, width, 3\) uint8, got \(8, 8\) uint8"):
        collect_pictures([("a", np.zeros((8, 8), np.uint8))], 16)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"image_size": 48}, "image_size is 48: expected a multiple of 32"),
        ({"text_width": 40}, "text_width is 40: expected a multiple of 32"),
        ({"vision_width": 9}, "vision_width is 9: expected an even number"),
        ({"vision_layers": (1, 1, 1)}, "vision_layers is .*: expected four counts of at least 1"),
        ({"vocab_size": 100}, "vocab_size is 100: expected 258"),
        ({"batch_size": 1}, "batch_size is 1: a contrast needs at least 2 pairs"),
        ({"num_steps": 0}, "num_steps is 0: expected at least 1"),
        ({"code_corruption": 1.5}, "code_corruption is 1.5: expected a share from 0 to 1"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        ClipTrainingConfig(**settings)
