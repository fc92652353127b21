"""With which settings a chaos run is created."""

import pytest

from pipelines.tools.chaos.chaos_swarm import RUN_SETTINGS, SwarmPlan


def test_the_length_of_an_epoch_decides_its_samples(tmp_path):
    plan = SwarmPlan(folder=tmp_path, num_peers=2, micro_batch_size=4, seconds_per_batch=0.16, seconds_per_epoch=10.0)
    assert plan.run_settings == {**RUN_SETTINGS, "target_batch_size": 500}


def test_settings_of_the_command_line_go_before_those_of_the_run(tmp_path):
    plan = SwarmPlan(folder=tmp_path, settings={"tau_ratio": 5.0, "target_batch_size": 64, "local_steps": 2})
    expected = {**RUN_SETTINGS, "tau_ratio": 5.0, "target_batch_size": 64, "local_steps": 2}
    assert plan.run_settings == expected


@pytest.mark.parametrize("text", ["delay", "=true"])
def test_a_setting_without_name_or_value_is_one_line(commands, text):
    done = commands.run("chaos", "--dry-run", "--set", text)
    assert done.returncode == 1
    assert f"--set got {text!r}; expected NAME=VALUE" in done.stderr
