"""A run's state is decided by what was published and who is there; what is said of it is true in each of them."""

import pytest
from run_moments import MOMENTS, NOW

from pipelines.features.publishing.metrics.run_state import RunState, condition_of


@pytest.mark.parametrize(("facts", "state"), MOMENTS)
def test_each_moment_of_a_run_has_its_state_its_sentence_and_what_a_person_does_next(facts, state):
    condition = condition_of(facts, "org/run", now=NOW)
    assert condition.state == state and condition.sentence.endswith(".")
    assert (condition.seconds_left is None) == (state is not RunState.ALIVE or not facts.usual_seconds)
    command = {RunState.OVER: "generate", RunState.STALLED: "run check", RunState.UNREACHABLE: "doctor"}
    assert condition.command.startswith(f"dalle-collab {command.get(state, 'join')} org/run")


def test_a_language_model_that_is_done_is_not_drawn_with():
    facts = next(facts for facts, state in MOMENTS if state is RunState.OVER)
    assert "evaluate org/run" in condition_of(facts, "org/run", task="text-generation", now=NOW).command
