"""The preset for a few thousand pictures: model and schedule follow from records, hours and hardware."""

import pytest

from modeling_dalle_collab import DalleCollabConfig
from pipelines.command_line.explaining.run_meaning import DatasetSample
from pipelines.command_line.explaining.small_runs import (
    LEAST_PASSES,
    MOST_PASSES,
    NUM_HELD_OUT,
    SIZES,
    SPEEDS,
    fit_small_run,
    settings_of_small_run,
    speed_of,
)
from pipelines.core.run.training_run import TrainingRun
from pipelines.features.memory_estimate.models.dalle_collab_compute import training_flops
from pipelines.tasks.presets import DEMO
from pipelines.tools.doctor.organiser_checks import check_schedule

CODES = dict(text_vocab_size=1024, image_grid_size=8, codebook_size=1024, text_sequence_length=24)
MODEL = ("hidden_size", "num_hidden_layers", "num_attention_heads", "head_dim", "feed_forward_multiplier")
RUN_FIELDS = TrainingRun.__dataclass_fields__.keys()


def fitted(num_records=3000, hours=8.0, flops=2 * SPEEDS["core"], **fixed):
    return settings_of_small_run(DEMO, CODES | fixed, num_records=num_records, hours=hours, flops=flops)


def run_of(values):
    fields = {name: value for name, value in values.items() if name in RUN_FIELDS}
    return TrainingRun(run_id="a", model_config={name: values[name] for name in MODEL}, **fields)


@pytest.mark.parametrize("hours", [0.1, 1, 8, 1000])
@pytest.mark.parametrize("num_records", [200, 3000, 100_000])
@pytest.mark.parametrize("hardware", ["2 cores", "t4", "4xh100"])
def test_a_small_run_passes_the_organisers_checklist_and_keeps_to_its_hours(hours, num_records, hardware):
    flops = speed_of(hardware)
    values = fitted(num_records, hours, flops)
    run = run_of(values)
    assert [check.status for check in check_schedule(run, num_records)] == ["ok"] * 3
    samples = run.num_epochs * run.samples_per_epoch
    config = DalleCollabConfig(**CODES, **run.model_config)
    hours_taken = samples * training_flops(config, "none") / flops / 3600
    fewest_epochs = 10 * run.samples_per_epoch * training_flops(config, "none") / flops / 3600
    assert hours_taken <= max(1.1 * hours, 1.1 * fewest_epochs)
    assert samples <= max(1.1 * MOST_PASSES * num_records, 10 * run.samples_per_epoch)
    assert run.held_out_share * num_records >= min(NUM_HELD_OUT, 0.2 * num_records) - 1
    if (run.model_config["hidden_size"], run.model_config["num_hidden_layers"]) != SIZES[0]:
        assert samples >= 0.9 * LEAST_PASSES * num_records or samples >= MOST_PASSES * num_records


def test_more_hours_or_hardware_mean_a_larger_model_and_more_codes_a_smaller_one():
    widths = [fitted(hours=hours)["hidden_size"] for hours in (0.25, 1, 8, 100)]
    assert widths == sorted(widths) and widths[0] < widths[-1]
    assert fitted(flops=SPEEDS["t4"])["hidden_size"] > fitted()["hidden_size"]
    assert fitted(image_grid_size=16)["hidden_size"] < fitted()["hidden_size"]


def test_few_records_and_little_time_have_a_small_model_though_it_passes_over_them_quickly():
    assert fitted(num_records=240, hours=0.05)["hidden_size"] == SIZES[0][0]
    assert fitted(num_records=240, hours=8)["hidden_size"] > SIZES[0][0]


def test_slow_epochs_have_the_usual_time_outs():
    quick, slow = fitted(hours=0.25), fitted(hours=10_000, num_records=10**6)
    assert "matchmaking_seconds" in quick and "matchmaking_seconds" not in slow


def test_what_the_organiser_chose_stays_and_is_fitted_around():
    run = TrainingRun(run_id="a", model_config={name: CODES[name] for name in CODES if name != "text_sequence_length"})
    dataset = DatasetSample(num_records=3000, caption_lengths=[5] * 100)
    values, told = fit_small_run(run, dataset, {"hidden_size": 96, "head_dim": 48, "num_epochs": 7}, 8, "2 cores")
    assert (values["hidden_size"], values["num_epochs"], values["text_sequence_length"]) == (96, 7, 8)
    assert "96 wide" in told[0] and "52 s on 2 cores" in told[0] and told[1].startswith("Expect colours")


@pytest.mark.parametrize("width", [96, 128, 256])
def test_a_width_that_was_chosen_has_the_layers_and_the_rate_of_its_size(width):
    values = fitted(num_records=5000, flops=speed_of("2 a100"), hidden_size=width, head_dim=32)
    assert values["num_hidden_layers"] <= 8
    assert check_schedule(run_of(values | dict(hidden_size=width)), 5000)[1].status == "ok"


@pytest.mark.parametrize("hardware", ["", "0 cores", "00 t4", "fast", "2 of t4", "-1 t4"])
def test_hardware_that_is_not_known_is_refused(hardware):
    with pytest.raises(ValueError, match="expected such as '4 cores'"):
        speed_of(hardware)
    assert speed_of("2 cores") == speed_of("2xcore") == 2 * SPEEDS["core"] and speed_of("T4") == SPEEDS["t4"]


@pytest.mark.parametrize(("changes", "part"), [(dict(hours=0), "hours"), (dict(num_records=0), "no records")])
def test_nothing_can_be_fitted_to_no_time_and_no_records(changes, part):
    with pytest.raises(ValueError, match=part):
        fitted(**changes)
