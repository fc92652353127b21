"""Which captions the progress reel of a new run draws: few, held out, clean, whatever the dataset holds."""

from pathlib import Path

import numpy as np
import pytest

from pipelines.tasks.text_to_image.image_code_stream import held_out_mask
from pipelines.tasks.text_to_image.image_codes.image_code_record import (
    ImageCodeLayout,
    image_code_table,
    write_image_code_shard,
)
from pipelines.tasks.text_to_image.reel_captions import LONGEST_CAPTION, NUM_REEL_CAPTIONS, held_out_reel_captions

SHARE = 0.2


@pytest.fixture
def written(tmp_path):
    """Writes a shard of captions with random codes of 16; returns its path and the codes."""

    def write(name, captions, seed=0):
        codes = np.random.default_rng(seed).integers(0, 12, (len(captions), 16)).astype(np.int16)
        layout = ImageCodeLayout(codec_fingerprint="0" * 64, codebook_size=12, grid_size=4)
        write_image_code_shard(tmp_path / name, image_code_table(captions, codes, layout))
        return str(tmp_path / name), codes

    return write


def chosen(*files, share=SHARE):
    return held_out_reel_captions(files, lambda path: Path(path).open("rb"), num_codes=16, share=share)


def test_they_are_of_held_out_records_and_no_trained_record_has_them_while_there_are_such(written):
    captions = [f"{color} robin {number}" for number in range(100) for color in ("red", "blue", "grey")]
    captions[::2] = ["a robin"] * 150
    file, codes = written("train-00000.parquet", captions)
    held_out = {caption for caption, is_out in zip(captions, held_out_mask(codes, SHARE), strict=True) if is_out}
    found = chosen(file)
    assert len(found) == NUM_REEL_CAPTIONS and set(found) < held_out - {"a robin"}
    assert {caption.split()[0] for caption in found} == {"red", "blue", "grey"}, "they are of different things"
    assert chosen(file) == found and chosen(file, share=0.0) == []
    one_caption, _ = written("same.parquet", ["a robin"] * 100)
    assert chosen(one_caption) == ["a robin"], "better than none"


def test_a_datasets_own_validation_part_is_the_held_out_one(written):
    train, _ = written("train-00000.parquet", ["a trained robin"] * 50)
    validation, _ = written("validation-00000.parquet", ["a kite", "a tit"], seed=1)
    assert sorted(chosen(train, validation)) == ["a kite", "a tit"]


def test_captions_of_strangers_become_short_single_lines(written):
    strange = ["", "...", "a\x1b[31m red\nrobin\u202e", "word " * 400]
    found = chosen(written("validation-00000.parquet", strange)[0])
    assert found == ["a\ufffd[31m red robin"]
    (cut,) = chosen(written("validation-00001.parquet", ["word " * 400])[0])
    assert cut.startswith("word word") and len(cut) <= LONGEST_CAPTION
