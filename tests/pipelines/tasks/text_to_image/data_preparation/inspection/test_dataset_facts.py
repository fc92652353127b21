"""Figures about a folder: counted as the plain formulas say, from spread shards where there are many."""

import math
from collections import Counter

import numpy as np
import pytest

from pipelines.tasks.text_to_image.data_preparation.inspection import dataset_facts
from pipelines.tasks.text_to_image.data_preparation.inspection.dataset_facts import collect_facts, evenly_spread
from pipelines.tasks.text_to_image.image_codes.image_code_record import (
    ImageCodeFormatError,
    ImageCodeLayout,
    image_code_table,
    write_image_code_shard,
)

LAYOUT = ImageCodeLayout(codec_fingerprint="a", codebook_size=8, grid_size=2, fit="crop")


def write_shard(folder, number: int, captions: list[str], codes, layout=LAYOUT, **scalars) -> None:
    folder.mkdir(exist_ok=True)
    table = image_code_table(captions, np.array(codes), layout, scalars)
    write_image_code_shard(folder / f"train-{number:05d}.parquet", table)


def test_figures_are_those_of_the_plain_formulas(tmp_path):
    captions = ["A red bird, a bird", "red", "x" * 1000, "das Büro 12"]
    codes = [[0, 0, 0, 1], [0, 0, 1, 1], [2, 2, 2, 2], [0, 0, 0, 0]]
    write_shard(tmp_path, 0, captions[:2], codes[:2], width=[100, 50], height=[50, 100])
    write_shard(tmp_path, 1, captions[2:], codes[2:], width=[10, None], height=[10, 3])
    heard = []
    facts = collect_facts(tmp_path, lambda done, total: heard.append((done, total)))
    counts = Counter(np.array(codes).flatten().tolist())
    assert facts.code_counts.tolist() == [counts[code] for code in range(8)]
    assert facts.entropy_bits == pytest.approx(-sum(n / 16 * math.log2(n / 16) for n in counts.values()))
    assert facts.num_codes_used == 3 and facts.num_records == facts.num_records_read == 4
    assert dict(facts.words)["red"] == 2 and dict(facts.words)["bird"] == 1 and "büro" in dict(facts.words)
    assert facts.caption_lengths[0] == 1 and facts.caption_lengths[1] == 2 and facts.caption_lengths[-1] == 1
    assert facts.cut_shares.tolist() == [1, 0, 0, 0, 0, 2, 0, 0, 0, 0] and facts.mean_cut_share == pytest.approx(1 / 3)
    assert heard == [(1, 2), (2, 2)] and facts.num_shards == 2


def test_of_a_large_folder_spread_shards_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(dataset_facts, "MOST_RECORDS_READ", 10)
    for number in range(20):
        write_shard(tmp_path, number, ["a", "b"], [[number % 8] * 4] * 2)
    facts = collect_facts(tmp_path)
    assert facts.num_records == 40 and facts.num_records_read == 10


def test_rare_words_are_forgotten_so_that_memory_stays_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(dataset_facts, "MOST_WORDS_COUNTED", 50)
    captions = [f"often word{chr(97 + n % 26)}{chr(97 + n // 26)}" for n in range(600)]
    write_shard(tmp_path, 0, captions, [[0] * 4] * 600)
    facts = collect_facts(tmp_path)
    assert facts.words[0] == ("often", 600)


def test_paths_are_spread_from_the_first_to_the_last(tmp_path):
    paths = [tmp_path / f"{number}" for number in range(10)]
    assert evenly_spread(paths, 3) == [paths[0], paths[4], paths[9]]
    assert evenly_spread(paths, 100) == paths and evenly_spread(paths, 1) == paths[:1]


def test_shards_of_two_codecs_and_codes_outside_the_codebook_are_refused(tmp_path):
    write_shard(tmp_path, 0, ["a"], [[0] * 4])
    other = ImageCodeLayout(codec_fingerprint="b", codebook_size=8, grid_size=2)
    write_shard(tmp_path, 1, ["a"], [[0] * 4], layout=other)
    with pytest.raises(ImageCodeFormatError, match=r"train-00001.parquet was made by another codec .*data verify"):
        collect_facts(tmp_path)
    with pytest.raises(FileNotFoundError, match="has no Parquet shards"):
        collect_facts(tmp_path / "absent")
