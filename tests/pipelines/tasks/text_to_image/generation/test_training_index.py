"""The nearest training records are those that comparing with all finds; stopped and damaged indexes are seen."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import load_file, save_file

from hub_tools.atomic_files import file_digest
from pipelines.tasks.text_to_image.clip.clip_folder import save_clip_folder, train_clip_tokenizer
from pipelines.tasks.text_to_image.clip.clip_reranking import ClipReranker, new_clip
from pipelines.tasks.text_to_image.clip.clip_training import PREPROCESS, ClipTrainingConfig
from pipelines.tasks.text_to_image.generation.generation_options import GenerationOptions
from pipelines.tasks.text_to_image.generation.image_generation import load_text_to_image
from pipelines.tasks.text_to_image.generation.progressive_drawing import Drawing, draw_progressively
from pipelines.tasks.text_to_image.generation.training_index import (
    INDEX_FILE,
    PROBE_CAPTION,
    TrainingIndex,
    TrainingIndexError,
    nearest_records,
)
from pipelines.tasks.text_to_image.generation.training_index_building import build_training_index
from pipelines.tasks.text_to_image.image_codes.dataset_shards import find_dataset
from pipelines.tasks.text_to_image.image_codes.image_code_record import (
    ImageCodeLayout,
    image_code_table,
    write_image_code_shard,
)
from pipelines.tasks.text_to_image.image_codes.vqgan_codec import VQGANCodec
from pipelines.tools.pages.drawing.seen_in_training import OpenedIndex, SeenInTraining, TrainingPicture, look_up

WORDS = ("red", "small", "star", "circle", "on", "blue", "white", "large")
SHARD_SIZES = (30, 17, 25)


@pytest.fixture(scope="module")
def records(tiny_codec):
    """Captions and image codes of three shards, some alike."""
    random = np.random.default_rng(0)
    captions = [" ".join(random.choice(WORDS, 4)) for _ in range(sum(SHARD_SIZES))]
    return captions, random.integers(0, 12, (sum(SHARD_SIZES), 16)).astype(np.int16)


@pytest.fixture(scope="module")
def codec(tiny_codec):
    return VQGANCodec.from_pretrained(tiny_codec)


@pytest.fixture(scope="module")
def reranker(tiny_clip):
    return ClipReranker.from_pretrained(tiny_clip)


@pytest.fixture(scope="module")
def dataset(records, codec, tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    layout = ImageCodeLayout(codec_fingerprint=codec.fingerprint, codebook_size=12, grid_size=4)
    start = 0
    for number, size in enumerate(SHARD_SIZES):
        part = slice(start, start + size)
        write_image_code_shard(
            folder / f"train-{number:05d}.parquet", image_code_table(records[0][part], records[1][part], layout)
        )
        start += size
    return find_dataset(str(folder))


@pytest.fixture(scope="module")
def built(dataset, codec, reranker, tmp_path_factory):
    output = tmp_path_factory.mktemp("built") / "index"
    return output, build_training_index(dataset, codec, reranker, output, batch_size=8)


@pytest.fixture
def copied(built, tmp_path):
    """An index of its own, to be damaged."""
    for path in built[0].iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_nearest_are_those_that_comparing_with_all_records_finds(built, records, codec, reranker):
    captions, codes = records
    index = TrainingIndex.load(built[0])
    assert index.num_records == len(captions) == built[1].num_records
    queries = reranker.text_embeddings(["a red star", "a white circle on blue"]).numpy()
    pictures = codec.decode(torch.from_numpy(codes).long())
    embeddings = {
        index.nearest_captions: reranker.text_embeddings(captions),
        index.nearest_pictures: reranker.image_embeddings(pictures),
    }
    for nearest, all_embeddings in embeddings.items():
        stored = all_embeddings.half().float()
        similarities = queries @ (stored / stored.norm(dim=1, keepdim=True)).numpy().T
        for found, row in zip(nearest(queries, 5), similarities, strict=True):
            expected = np.argsort(-row, kind="stable")[:5]
            np.testing.assert_allclose([neighbour.similarity for neighbour in found], row[expected], atol=1e-5)
            for neighbour in found:
                number = next(i for i in range(len(codes)) if np.array_equal(codes[i], neighbour.image_codes))
                assert neighbour.caption == captions[number]
                assert neighbour.similarity == pytest.approx(row[number], abs=1e-5)


def test_the_nearest_of_many_chunks_are_exact_and_the_earlier_of_equal_ones_comes_first():
    random = np.random.default_rng(1)
    embeddings = random.normal(size=(500, 8))
    embeddings[300] = embeddings[20]
    embeddings = (embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)).astype(np.float16)
    queries = np.concatenate([embeddings[20:21], random.normal(size=(6, 8))])
    chunks = [
        (0, 0, embeddings[:7]),
        (0, 7, embeddings[7:150]),
        (1, 0, embeddings[150:299]),
        (1, 149, embeddings[299:]),
    ]
    units = embeddings.astype(np.float64) / np.linalg.norm(embeddings.astype(np.float64), axis=1, keepdims=True)
    similarities = queries / np.linalg.norm(queries, axis=1, keepdims=True) @ units.T
    for found, row in zip(nearest_records(iter(chunks), queries, 9), similarities, strict=True):
        expected = np.argsort(-row, kind="stable")[:9]
        assert [part * 150 + place for _, (part, place) in found] == expected.tolist()
        np.testing.assert_allclose([similarity for similarity, _ in found], row[expected], atol=1e-6)


def test_the_index_knows_how_near_training_pictures_are_to_each_other(built, records, codec, reranker):
    pictures = reranker.image_embeddings(codec.decode(torch.from_numpy(records[1]).long())).half().double().numpy()
    pictures /= np.linalg.norm(pictures, axis=1, keepdims=True)
    second = np.sort(pictures @ pictures.T, axis=1)[:, -2]
    assert TrainingIndex.load(built[0]).typical_similarity == pytest.approx(float(np.median(second)), abs=1e-6)


def test_more_neighbours_than_records_are_all_records(built, reranker):
    index = TrainingIndex.load(built[0])
    (found,) = index.nearest_captions(reranker.text_embeddings(["a star"]).numpy(), 1000)
    assert len(found) == index.num_records


def test_a_stopped_build_goes_on_and_ends_with_the_same_files(built, dataset, codec, reranker, tmp_path):
    def stop(stage, done, total, detail):
        if (stage, done) == ("indexing", 2):
            raise KeyboardInterrupt

    output = tmp_path / "index"
    with pytest.raises(KeyboardInterrupt):
        build_training_index(dataset, codec, reranker, output, batch_size=8, on_progress=stop)
    with pytest.raises(TrainingIndexError, match=r"is not finished. Run the same command again"):
        TrainingIndex.load(output)
    (output / "part-00001.parquet").write_bytes(b"cut")  # a disk that was full
    report = build_training_index(dataset, codec, reranker, output, batch_size=8)
    assert (report.num_parts, report.num_parts_kept) == (3, 1)
    assert contents(output) == contents(built[0])
    assert build_training_index(dataset, codec, reranker, output, batch_size=8).num_parts_kept == 3
    assert contents(output) == contents(built[0])


def test_one_in_so_many_records_can_be_taken(dataset, codec, reranker, records, tmp_path):
    build_training_index(dataset, codec, reranker, tmp_path / "index", every=7)
    index = TrainingIndex.load(tmp_path / "index")
    (found,) = index.nearest_captions(reranker.text_embeddings(["a star"]).numpy(), 1000)
    starts = np.cumsum((0, *SHARD_SIZES))[:-1]
    expected = [
        records[0][i] for start, size in zip(starts, SHARD_SIZES, strict=True) for i in range(start, start + size, 7)
    ]
    assert sorted(neighbour.caption for neighbour in found) == sorted(expected)


def test_another_dataset_codec_clip_or_folder_is_refused(built, dataset, codec, reranker, copied, tmp_path):
    with pytest.raises(ValueError, match=r"has an index of .*one record in 1, and this one would be of .*in 2"):
        build_training_index(dataset, codec, reranker, copied, every=2)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"exists and is not an index"):
        build_training_index(dataset, codec, reranker, tmp_path / "mine")
    torch.manual_seed(9)
    other = VQGANCodec(codec.config)
    with pytest.raises(ValueError, match=r"was made by codec .*Name the codec of the dataset: --codec"):
        build_training_index(dataset, other, reranker, tmp_path / "other")
    clip = other_clip(tmp_path / "clip")
    probe = clip.text_embeddings([PROBE_CAPTION])[0].numpy()
    with pytest.raises(TrainingIndexError, match=r"made with a different CLIP from the one that ranks here"):
        TrainingIndex.load(built[0]).require_clip(probe)
    with pytest.raises(ValueError, match=r"has no Parquet shards"):
        find_dataset(str(tmp_path / "mine"))


def other_clip(folder):
    sizes = ClipTrainingConfig(image_size=32, vision_width=8, text_width=32, text_layers=1, embed_dim=16)
    tokenizer = train_clip_tokenizer(["a small red star"], 300)
    config = sizes.model_config(len(tokenizer))
    torch.manual_seed(5)
    save_clip_folder(folder, new_clip(config, PREPROCESS), tokenizer, model_config=config, preprocess=PREPROCESS)
    return ClipReranker.from_pretrained(folder)


def rewrite(folder, change):
    """Change tensors of a part and its digest, as somebody would who wants to be believed."""
    path = folder / "part-00000.safetensors"
    tensors = {name: tensor.copy() for name, tensor in load_file(path).items()}
    save_file(change(tensors), path)
    values = json.loads((folder / INDEX_FILE).read_text())
    values["parts"][0]["sha256"][".safetensors"] = file_digest(path)
    (folder / INDEX_FILE).write_text(json.dumps(values))


def poison(name, value):
    def change(tensors):
        tensors[name][3, 0] = value
        return tensors

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (poison("caption_embeddings", np.nan), r"has caption_embeddings that are not finite or not of length 1"),
        (poison("picture_embeddings", np.inf), r"has picture_embeddings that are not finite"),
        (poison("picture_embeddings", 7.0), r"or not of length 1"),
        (poison("image_codes", 12), r"has image codes outside 0 to 11"),
        (poison("image_codes", -1), r"has image codes outside"),
        (lambda tensors: {name: tensor[:-1] for name, tensor in tensors.items()}, r"has the tensors .*expected"),
        (lambda tensors: tensors | {"more": np.zeros(1)}, r"has the tensors"),
    ],
)
def test_an_index_that_cannot_be_compared_or_drawn_is_refused(copied, change, message):
    rewrite(copied, change)
    with pytest.raises(TrainingIndexError, match=message):
        TrainingIndex.load(copied)


def test_a_damaged_missing_or_foreign_index_is_refused(copied, tmp_path):
    path = copied / "part-00002.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(TrainingIndexError, match=r"part-00002.safetensors of .* is damaged. Make the index again"):
        TrainingIndex.load(copied)
    path.unlink()
    with pytest.raises(TrainingIndexError, match=r"part-00002.safetensors of .* is missing"):
        TrainingIndex.load(copied)
    values = json.loads((copied / INDEX_FILE).read_text())
    values["parts"][0]["name"] = "../elsewhere"
    (copied / INDEX_FILE).write_text(json.dumps(values))
    with pytest.raises(TrainingIndexError, match=r"is missing"):
        TrainingIndex.load(copied)
    for text, message in (
        ("{}", r"is damaged \(KeyError\('settings'\)\)"),
        ("not json", r"is damaged"),
        (json.dumps({**values, "settings": {"format_version": 2}}), r"has format 2, this reader knows 1"),
    ):
        (copied / INDEX_FILE).write_text(text)
        with pytest.raises(TrainingIndexError, match=message):
            TrainingIndex.load(copied)
    with pytest.raises(TrainingIndexError, match=r"has no training_index.json. Make an index"):
        TrainingIndex.load(copied.parent)
    with pytest.raises(TrainingIndexError, match=r"There is no folder nowhere"):
        TrainingIndex.load("nowhere")


def test_training_pictures_lie_beside_a_drawing(built, tiny_run):
    bundle = load_text_to_image(tiny_run)
    drawing = list(draw_progressively(bundle, "a red star", GenerationOptions(num_candidates=3, keep=2)))[-1]
    assert isinstance(drawing, Drawing)
    opened = OpenedIndex(str(built[0]))
    seen = look_up(opened.get(), bundle, drawing)
    assert opened.get() is opened.get()
    assert [len(row) for row in seen.beside] == [3, 3] and len(seen.by_caption) == len(seen.by_picture) == 4
    assert all(picture.image.size == (16, 16) for picture in seen.by_picture)


@pytest.mark.parametrize(
    ("nearest", "words"),
    [
        ((0.7, 0.8), "No result is nearer to the training data than that: nothing here points to a copy."),
        ((0.7, 0.95), "Result 2 is nearer to a training picture than that: it may be memorised."),
        ((0.99, 0.95), "Results 1 and 2 are nearer to training pictures than that: they may be memorised."),
    ],
)
def test_a_result_that_is_nearer_than_training_pictures_are_to_each_other_is_named(nearest, words):
    picture = Image.new("RGB", (1, 1))
    beside = [[TrainingPicture(image=picture, similarity=value, caption="a")] for value in nearest]
    seen = SeenInTraining(
        by_caption=[], by_picture=[], beside=beside, typical_similarity=0.9, num_records=1200, every=10
    )
    assert seen.sentence().startswith("Searched 1,200 training records (one in 10 of the dataset).")
    assert seen.sentence().endswith(words)
