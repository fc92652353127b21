"""Scores equal open_clip's own formula, whatever the batch; broken CLIPs are named with their cure."""

import contextlib
import json
import shutil

import numpy as np
import open_clip
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from pipelines.tasks.text_to_image.clip.clip_folder import save_clip_folder, train_clip_tokenizer
from pipelines.tasks.text_to_image.clip.clip_reranking import ClipReranker, new_clip, prepare_pictures
from pipelines.tasks.text_to_image.clip.clip_training import PREPROCESS, ClipTrainingConfig

TINY = ClipTrainingConfig(image_size=32, vision_width=8, text_width=32, text_layers=1, embed_dim=16, vocab_size=300)
CAPTIONS = ["a red star", "a blue star on a green background", "A Green Circle"]


@pytest.fixture(scope="module")
def clip_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clip") / "tiny"
    tokenizer = train_clip_tokenizer(CAPTIONS, TINY.vocab_size)
    model_config = TINY.model_config(len(tokenizer))
    torch.manual_seed(0)
    model = new_clip(model_config, PREPROCESS)
    save_clip_folder(folder, model, tokenizer, model_config=model_config, preprocess=PREPROCESS)
    return folder


@pytest.fixture(scope="module")
def pictures():
    return torch.rand(5, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def plain_scores(folder, caption, images):
    model, preprocess = open_clip.create_model_from_pretrained(f"local-dir:{folder}")
    model.eval()
    tokens = open_clip.get_tokenizer(f"local-dir:{folder}")([caption])
    prepared = torch.stack([preprocess(image) for image in images])
    with torch.no_grad():
        image_features, text_features = model.encode_image(prepared), model.encode_text(tokens)
        cosine = torch.nn.functional.cosine_similarity(image_features, text_features)
        return model.logit_scale.exp() * cosine


@pytest.mark.parametrize("caption", CAPTIONS)
def test_scores_equal_the_cosine_times_the_logit_scale_computed_with_open_clip(clip_folder, pictures, caption):
    scores = ClipReranker.from_pretrained(clip_folder).scores(caption, pictures)
    torch.testing.assert_close(scores, plain_scores(clip_folder, caption, pictures), rtol=1e-5, atol=1e-5)
    assert scores.std() > 1e-3


def test_scores_do_not_depend_on_the_batch_size(clip_folder, pictures):
    reranker = ClipReranker.from_pretrained(clip_folder)
    whole = reranker.scores("a red star", pictures, batch_size=5)
    one_by_one = torch.cat([reranker.scores("a red star", picture[None]) for picture in pictures])
    torch.testing.assert_close(reranker.scores("a red star", pictures, batch_size=2), whole, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(one_by_one, whole, rtol=1e-5, atol=1e-5)


def test_best_returns_the_highest_scores_first(clip_folder, pictures):
    reranker = ClipReranker.from_pretrained(clip_folder)
    expected = reranker.scores("a red star", pictures).numpy()
    indices, scores = reranker.best("a red star", pictures, keep=3)
    assert indices.tolist() == np.argsort(-expected)[:3].tolist()
    assert scores.tolist() == sorted(expected.tolist(), reverse=True)[:3]


def test_equal_pictures_keep_their_order(clip_folder, pictures):
    reranker = ClipReranker.from_pretrained(clip_folder)
    indices, _ = reranker.best("a red star", pictures[:1].repeat(4, 1, 1, 1), keep=4)
    assert indices.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("size", [(64, 64), (16, 16), (40, 70)])
def test_pictures_of_any_size_are_prepared_as_open_clip_prepares_files(size):
    pixels = np.random.default_rng(0).integers(0, 256, (size[0] // 4, size[1] // 4, 3), dtype=np.uint8)
    picture = Image.fromarray(pixels).resize((size[1], size[0]), Image.Resampling.BICUBIC)
    for resize_mode in ("shortest", "squash", "longest"):
        settings = {"size": 32, "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4], "resize_mode": resize_mode}
        config = open_clip.transform.PreprocessCfg(**settings)
        expected = open_clip.transform.image_transform_v2(config, is_train=False)(picture)
        images = torch.from_numpy(np.array(picture)).permute(2, 0, 1)[None].float() / 255
        prepared = prepare_pictures(images, settings)[0]
        assert prepared.shape == expected.shape
        # A file is rounded to 8 bits after the resizing, a tensor is not.
        assert (prepared - expected).abs().mean() < 0.02


@pytest.mark.parametrize("keep", [0, 6])
def test_keeping_more_pictures_than_there_are_is_refused(clip_folder, pictures, keep):
    with pytest.raises(ValueError, match=f"Cannot keep {keep} of 5 pictures: choose a number from 1 to 5"):
        ClipReranker.from_pretrained(clip_folder).best("a red star", pictures, keep=keep)


def test_wrong_pictures_are_refused(clip_folder, pictures):
    reranker = ClipReranker.from_pretrained(clip_folder)
    for wrong in (pictures[0], pictures[:0], (pictures * 255).to(torch.uint8), pictures[:, :1]):
        with pytest.raises(ValueError, match=r"Expected pictures of shape \(n, 3, height, width\)"):
            reranker.scores("a red star", wrong)


def test_a_name_that_is_no_clip_says_what_would_be_one():
    with pytest.raises(FileNotFoundError, match=r"There is no folder ./nothing.*ViT-B-32/openai"):
        ClipReranker.from_pretrained("./nothing")


def test_an_unknown_tag_of_a_known_model_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"no weights 'nobody' for ViT-B-32. It knows: openai, laion400m"):
        ClipReranker.from_pretrained("ViT-B-32/nobody")


def test_a_folder_without_weights_names_the_command_that_makes_them(tmp_path):
    (tmp_path / "open_clip_config.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match=r"has no open_clip_model.safetensors.*dalle-collab clip train"):
        ClipReranker.from_pretrained(tmp_path)


def test_a_truncated_weights_file_is_named(clip_folder, tmp_path):
    folder = tmp_path / "broken"
    folder.mkdir()
    for file in clip_folder.iterdir():
        content = file.read_bytes()
        (folder / file.name).write_bytes(content[:1000] if file.suffix == ".safetensors" else content)
    with pytest.raises(ValueError, match=r"CLIP .*broken cannot be loaded \(.*header.*dalle-collab clip train"):
        ClipReranker.from_pretrained(folder)


def test_a_configuration_cannot_make_the_tokenizer_run_foreign_code(clip_folder, tmp_path):
    folder, mark = tmp_path / "hostile", tmp_path / "ran"
    folder.mkdir()
    for file in clip_folder.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "open_clip_config.json").read_text())
    config["model_cfg"]["text_cfg"]["tokenizer_kwargs"] = {"trust_remote_code": True}
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    tokenizer_config = json.loads((folder / "tokenizer_config.json").read_text())
    tokenizer_config["auto_map"] = {"AutoTokenizer": [None, "hostile.Hostile"]}
    tokenizer_config["tokenizer_class"] = "Hostile"
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    (folder / "hostile.py").write_text(f"open({str(mark)!r}, 'w').close()\nclass Hostile: pass\n")
    # Refusing and loading with the trusted class are both right answers.
    with contextlib.suppress(ValueError):
        ClipReranker.from_pretrained(folder)
    assert not mark.exists()


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_weights_that_are_not_finite_rank_nothing(clip_folder, tmp_path, value):
    damaged = shutil.copytree(clip_folder, tmp_path / "damaged")
    tensors = load_file(damaged / "open_clip_model.safetensors")
    tensors["text_projection"][0, 0] = value
    save_file(tensors, damaged / "open_clip_model.safetensors")
    with pytest.raises(ValueError, match="The CLIP has values that are not finite in text_projection"):
        ClipReranker.from_pretrained(damaged)
