"""What a run's settings mean for its dataset, in words: pure sentences, and what is read of a dataset for them."""

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from swarm_of_processes import tiny_run

from modeling_dalle_collab import DalleCollabConfig
from pipelines.command_line.explaining.run_meaning import (
    MOST_CAPTIONS,
    MOST_CHARACTERS,
    MOST_SHARDS,
    UNREADABLE,
    read_captions,
    schedule_sentences,
    step_sentences,
    text_sentences,
)
from pipelines.core.run.training_run import TrainingRun
from pipelines.tools.doctor.organiser_checks import passes_over


def config(text_sequence_length=256, grid=8):
    return DalleCollabConfig(text_sequence_length=text_sequence_length, image_grid_size=grid)


def percentage(sentence):
    return float(re.search(r"(\d+)% (less|more) work", sentence)[1])


def test_the_schedule_is_told_in_passes_and_hours():
    run = tiny_run(num_epochs=1000, target_batch_size=4096)
    first, second = schedule_sentences(run, 40_960)
    assert first == "1,000 epochs of 4,096 samples are 4,096,000 samples: 100.0 passes over 40,960 records."
    assert second.endswith("that takes 113.8 h at 10, 11.4 h at 100, 1.1 h at 1,000.")
    assert "passes" not in schedule_sentences(run, 0)[0]


def test_outer_steps_are_told_and_a_rate_of_lambs_size_with_another_optimizer():
    (said,) = step_sentences(tiny_run(target_batch_size=4096), 10**6)
    assert said.endswith("times lamb's: --set optimizer=muon --set peak_learning_rate=0.001")
    run = tiny_run(target_batch_size=4096, optimizer="muon", peak_learning_rate=2.5e-3, model_config={})
    (said,) = step_sentences(run, 10**6)
    assert said.startswith(
        "peak_learning_rate is 0.0025 with muon at 4,096 samples, 1,024 wide; expected 1.0e-04 to 2.0e-03 ("
    )
    assert step_sentences(run.replace(peak_learning_rate=1e-3), 10**6) == []
    inner = TrainingRun(run_id="a", local_steps=15, inner_optimizer="muon", peak_learning_rate=3e-4)
    (said,) = step_sentences(inner, 10**6)
    assert said == "After 15 local steps with muon, outer steps have rate 0.7 and momentum 0.8."


def test_a_long_round_is_told_with_what_shortens_it():
    run = tiny_run(target_batch_size=4096)
    said, _ = step_sentences(run, 125_000_000)
    told = "A round of many peers takes up to 133 s at 15 Mbit/s, 20 s at 100 Mbit/s."
    assert said == f"{told} For slow links: --links 15"
    said, _ = step_sentences(run.replace(local_steps=15, aggregation_rule="mean"), 125_000_000)
    assert said == told


def test_epochs_of_local_steps_hold_more_samples():
    run = tiny_run(num_epochs=10, target_batch_size=100, local_steps=5, aggregation_rule="mean")
    assert passes_over(run, 500) == 10
    assert "10 epochs of 500 samples are 5,000 samples: 10.0 passes" in schedule_sentences(run, 500)[0]


def test_short_captions_in_a_long_text_cost_most_of_a_step():
    said = text_sentences([12] * 99 + [300], config())
    assert said[0] == (
        "Captions: half have at most 12 tokens, 99% at most 12, the longest of 100 has 300. The model reads 256 text "
        "tokens beside 64 image codes."
    )
    assert "text_sequence_length=16" in said[1] and "1.0% of the captions lose their end" in said[1]
    # By positions alone it would be 1 - (16 + 64) / (256 + 64), three quarters.
    assert 70 <= percentage(said[1]) <= 80


def test_captions_that_are_cut_are_counted_and_the_price_is_named():
    said = text_sentences([40] * 50 + [10] * 50, config(text_sequence_length=16))
    assert said[1].startswith(
        "50.0% of the captions lose their end: --set text_sequence_length=40 would keep 99% whole"
    )
    assert percentage(said[1]) > 20


@pytest.mark.parametrize("lengths", [[250] * 100, [256], [1, 255]])
def test_a_length_that_fits_is_left_alone(lengths):
    assert len(text_sentences(lengths, config())) == 1


def test_strange_captions_are_no_trouble():
    assert text_sentences([], config()) == []
    assert "text_sequence_length=8 " in text_sentences([0, 0, 0], config())[1]


def open_local(path):
    return Path(path).open("rb")


def test_what_is_read_of_a_dataset_is_bounded(tmp_path):
    files = []
    for number in range(20):
        captions = pa.array([f"{number}" * 20_000, None, *["short"] * 2000], pa.string())
        files.append(str(tmp_path / f"{number:02d}.parquet"))
        pq.write_table(pa.table({"caption": captions}), files[-1])
    read = list(read_captions(files, open_local))
    assert len(read) == MOST_SHARDS * (MOST_CAPTIONS - 1)
    assert max(map(len, read)) == MOST_CHARACTERS
    assert {caption[0] for caption in read} == {"0", "5", "1", "s"}, "from all over the dataset"


def test_damaged_files_end_the_reading_with_an_error_that_is_said(tmp_path):
    for name, content in (("empty", b""), ("noise", bytes(range(256)) * 40), ("magic", b"PAR1" + bytes(100) + b"PAR1")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UNREADABLE):
            list(read_captions([str(tmp_path / name)], open_local))
    pq.write_table(pa.table({"text": ["no captions"]}), tmp_path / "other")
    with pytest.raises(UNREADABLE):
        list(read_captions([str(tmp_path / "other")], open_local))
