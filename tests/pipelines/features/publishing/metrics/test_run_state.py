"""A run's state is decided by what was published and who is there; what is said of it is true in each of them."""

import json

import pytest
from recorded_run import recorded_history
from run_moments import MOMENTS, NOW
from swarm_of_processes import tiny_run

from hub_tools.counted import duration
from pipelines.features.publishing.metrics.history import summary_json
from pipelines.features.publishing.metrics.run_state import RunPhase, condition_of, published_facts
from pipelines.features.publishing.metrics.stalls import usual_seconds
from pipelines.tools.pages.dashboard.history_columns import HistoryColumns


@pytest.mark.parametrize(("facts", "state"), MOMENTS)
def test_each_moment_of_a_run_has_its_state_its_sentence_and_what_a_person_does_next(facts, state):
    condition = condition_of(facts, "org/run", now=NOW)
    assert condition.state == state and condition.sentence.endswith(".")
    assert (condition.seconds_left is None) == (state is not RunPhase.ALIVE or not facts.usual_seconds)
    command = {RunPhase.OVER: "generate", RunPhase.STALLED: "run check", RunPhase.UNREACHABLE: "doctor"}
    assert condition.command.startswith(f"dalle-collab {command.get(state, 'join')} org/run")


@pytest.mark.parametrize("num_epochs", [50, 80, 2000])
def test_page_and_terminal_and_published_summary_know_the_same_pace_and_the_same_time_left(num_epochs):
    points = recorded_history(num_epochs, NOW)
    known = dict(facts={}, evaluations=[], leaderboard=[], num_contributors=0, now=NOW)
    summary = json.loads(summary_json(history=points, **known))
    columns = HistoryColumns.from_points(points, NOW).columns
    facts = published_facts(tiny_run(num_epochs=num_epochs + 30), 0, points, None)
    assert facts.epoch == summary["newest"]["epoch"] == columns["epoch"][-1] == num_epochs
    assert facts.usual_seconds == pytest.approx(summary["usual_epoch_seconds"], rel=1e-5)
    assert facts.usual_seconds == usual_seconds(columns["epoch_seconds"].tolist())
    condition = condition_of(facts, "org/run", now=NOW)
    assert condition.seconds_left == 30 * facts.usual_seconds
    assert f"about {duration(condition.seconds_left)} left" in condition.sentence


def test_a_language_model_that_is_done_is_not_drawn_with():
    facts = next(facts for facts, state in MOMENTS if state is RunPhase.OVER)
    assert "evaluate org/run" in condition_of(facts, "org/run", task="text-generation", now=NOW).command
