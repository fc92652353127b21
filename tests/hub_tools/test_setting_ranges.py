"""Ranges of a run's settings, which a stranger may have written."""

import math

import pytest

from hub_tools.checks import check_model_sizes
from pipelines.core.run.training_run import TrainingRun


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_epochs", math.inf),
        ("matchmaking_seconds", 1e-9),
        ("dataset_repository", "../.."),
        ("entry_addresses", (4,)),
        ("model_config", {"size": math.nan}),
        ("task_settings", {"text_column": "a" * 10_000}),
    ],
)
def test_a_setting_out_of_its_range_is_refused_by_name(name, value):
    with pytest.raises(ValueError, match=name):
        TrainingRun(run_id="birds", **{name: value})


def test_a_model_of_a_billion_layers_is_refused():
    with pytest.raises(ValueError, match="num_hidden_layers is 1000000000"):
        check_model_sizes({"num_hidden_layers": 10**9})
