"""Presets are settings that a run takes; the defaults of a text-to-image run can change, its preset does not."""

import pytest

from pipelines.core.run.training_run import TrainingRun
from pipelines.tasks.choice import settings_of
from pipelines.tasks.presets import DEMO, PRESETS, preset_settings
from pipelines.tools.doctor.organiser_checks import check_rate


@pytest.mark.parametrize("name", PRESETS)
def test_a_run_takes_all_settings_of_a_preset(name):
    task, values = PRESETS[name]
    assert values.keys() - {"model_type"} <= {setting.name for setting in settings_of(task, values.get("model_type"))}
    assert preset_settings(name, task) == values


def test_the_papers_preset_is_the_papers_recipe():
    paper = preset_settings("paper", "text-to-image")
    assert paper["num_epochs"] == 31_250 and paper["num_warmup_epochs"] == 3_125
    assert (paper["optimizer"], paper["optimizer_bits"], paper["peak_learning_rate"]) == ("lamb", 8, 2.5e-3)
    assert (paper["averaging_compression"], paper["min_8bit_elements"]) == ("blockwise_8bit", 2**16)


def test_the_demos_rate_is_one_that_run_check_expects():
    fields = {name: value for name, value in DEMO.items() if name in TrainingRun.__dataclass_fields__}
    demo = TrainingRun(run_id="a", model_config=dict(hidden_size=DEMO["hidden_size"]), **fields)
    assert check_rate(demo).status == "ok"
    assert check_rate(demo.replace(peak_learning_rate=0.2)).status == "warn"
    assert check_rate(demo.replace(peak_learning_rate=1e-5)).status == "warn"


@pytest.mark.parametrize(
    ("name", "task", "part"), [("papre", "text-to-image", "paper"), ("paper", "fill-mask", "task")]
)
def test_another_preset_is_refused(name, task, part):
    with pytest.raises(ValueError, match=part):
        preset_settings(name, task)
