"""Settings for slow links: a round is short beside the batches between two rounds, and the samples stay."""

import pytest
from swarm_of_processes import tiny_run

from pipelines.command_line.explaining.slow_links import SECONDS_OF_A_BATCH, round_seconds, settings_for_links

PAPERS_PARAMETERS = 125_000_000


@pytest.mark.parametrize(("mbit", "local_steps"), [(1000, 1), (200, 1), (100, 5), (15, 15), (4, 50)])
def test_slower_links_make_more_local_steps(mbit, local_steps):
    run = tiny_run(num_epochs=31_250, num_warmup_epochs=3_125)
    chosen = settings_for_links(run, PAPERS_PARAMETERS, mbit)
    assert chosen.get("local_steps", 1) == local_steps
    assert round_seconds(PAPERS_PARAMETERS, mbit) <= SECONDS_OF_A_BATCH * local_steps
    changed = run.replace(**chosen)
    assert 0 <= changed.num_epochs * changed.samples_per_epoch - run.num_epochs * run.samples_per_epoch < 50 * 4096
    if local_steps > 1:
        assert (changed.inner_optimizer, changed.outer_learning_rate, changed.outer_momentum) == ("muon", 0.7, 0.8)
    else:
        assert changed == run


def test_links_and_local_steps_are_not_both_chosen():
    run = tiny_run(local_steps=5, aggregation_rule="mean")
    with pytest.raises(ValueError, match="--links chooses local_steps, and local_steps=5 was set"):
        settings_for_links(run, PAPERS_PARAMETERS, 15)


@pytest.mark.parametrize(
    ("mbit", "message"),
    [
        (0, "--links is 0; expected the Mbit/s"),
        (-15, "--links is -15; expected the Mbit/s"),
        (float("nan"), "--links is nan; expected the Mbit/s"),
        (float("inf"), "--links is inf; expected the Mbit/s"),
        (1, r"A round takes 2,000 s at 1 Mbit/s, too long even for 50 local steps. .* synchronisation=sparse"),
    ],
)
def test_links_that_are_none_or_too_slow_are_one_line(mbit, message):
    with pytest.raises(ValueError, match=message):
        settings_for_links(tiny_run(), PAPERS_PARAMETERS, mbit)
