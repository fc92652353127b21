"""Alerts come when they should, and not when a run is as usual."""

import numpy as np
import pytest
from dashboard_material import LIFETIME, NOW, look, metrics, peer_values
from swarm_of_processes import tiny_run

from hub_tools.counted import duration
from pipelines.features.publishing.metrics.run_state import RunPhase
from pipelines.tools.pages.dashboard import alerts
from pipelines.tools.pages.dashboard.alerts import find_alerts
from pipelines.tools.pages.dashboard.history_columns import HistoryColumns
from pipelines.tools.pages.dashboard.peer_table import track
from pipelines.tools.pages.dashboard.swarm.swarm_snapshot import StateVerdict

CHANCE = np.random.default_rng(1)


def history(num_epochs=100, end=NOW - 5, **columns):
    values = dict(
        loss=2.0 + CHANCE.normal(0, 0.02, num_epochs),
        num_peers=np.full(num_epochs, 8.0),
        samples_per_second=np.full(num_epochs, 32.0),
        share_averaged=np.ones(num_epochs),
        epoch_seconds=np.full(num_epochs, 10.0),
        round_seconds=np.full(num_epochs, 2.0),
    )
    values |= dict(epoch=np.arange(1.0, num_epochs + 1), time=end - 10 * np.arange(num_epochs)[::-1])
    return HistoryColumns(columns=values | {name: np.asarray(value, float) for name, value in columns.items()})


def swarm(num_peers, *others, epoch=100):
    return track({}, look(*(peer_values(f"p{n}", epoch=epoch) for n in range(num_peers)), *others), LIFETIME)


def kinds(found):
    return [alert.kind for alert in found]


def all_alerts(
    shown, peers, verdict=None, now=NOW, is_live=True, num_auxiliaries=1, state=RunPhase.ALIVE, since=None, **run
):
    known = dict(state=state, disagreeing_since=since, is_live=is_live, num_auxiliaries=num_auxiliaries, now=now)
    return find_alerts(tiny_run(num_epochs=1000, **run), shown, peers, verdict, **known)


def test_a_run_as_usual_has_no_alert():
    assert all_alerts(history(), swarm(8)) == []


@pytest.mark.parametrize(("newest", "is_spike"), [(2.05, False), (2.15, False), (3.0, True), (300.0, True)])
def test_a_loss_far_above_those_before_is_a_spike(newest, is_spike):
    losses = 2.0 + CHANCE.normal(0, 0.02, 60)
    assert (alerts.loss_spike(np.append(losses, [newest] * 3)) is not None) == is_spike
    assert alerts.loss_spike(np.append(losses, [newest] * 2)) is None  # it may come down by itself


def test_a_loss_that_falls_and_the_first_few_epochs_are_no_spike():
    assert alerts.loss_spike(np.linspace(9, 2, 200)) is None
    assert alerts.loss_spike([1.0, 9.0]) is None and alerts.loss_spike([]) is None


def test_an_epoch_that_does_not_end_is_an_alert_but_old_news_from_the_hub_are_not():
    shown = history(end=NOW - 400)
    assert kinds(all_alerts(shown, swarm(8))) == ["stalled epoch"]
    assert all_alerts(shown, swarm(8, epoch=130)) == []
    assert "nobody is training" in alerts.stalled_epoch(shown, 0, 0, NOW).text
    assert alerts.stalled_epoch(history(0), 0, 0, NOW) is None


def test_a_swarm_of_half_the_size_is_an_alert_unless_the_run_is_over_or_nobody_looks():
    assert kinds(all_alerts(history(), swarm(4))) == ["fewer peers"]
    assert all_alerts(history(), swarm(5)) == []
    assert all_alerts(history(), {}, is_live=False) == []
    for state in (RunPhase.OVER, RunPhase.NOBODY, RunPhase.NOT_BEGUN):
        found = all_alerts(history(share_averaged=np.zeros(100)), {}, now=NOW + 9999, state=state, num_auxiliaries=0)
        assert found == []


HUB = dict(
    wire="hub", bucket="org/b", synchronisation="sparse", local_steps=4, outer_momentum=0, aggregation_rule="mean"
)


@pytest.mark.parametrize(("run", "says", "is_serious"), [({}, "publishes", False), (HUB, "closes the rounds", True)])
def test_a_run_that_no_auxiliary_peer_keeps_is_an_alert(run, says, is_serious):
    (found,) = all_alerts(history(), swarm(8), num_auxiliaries=0, **run)
    assert says in found.text and found.is_serious is is_serious
    assert all_alerts(history(), swarm(8), num_auxiliaries=1, **run) == []


def test_rounds_that_average_too_little_are_an_alert():
    assert "70%" in alerts.poor_averaging([1.0] * 9 + [0.7] * 5, 0.9).text
    assert alerts.poor_averaging([1.0] * 9 + [0.2], 0.9) is None
    assert alerts.poor_averaging([0.7] * 5 + [1.0], 0.9) is None


def test_impossible_figures_are_named_with_those_who_report_them():
    liar = peer_values("liar", epoch=100, metrics=metrics("liar", loss=1e300))
    (alert,) = all_alerts(history(), swarm(8, liar))
    assert alert.kind == "impossible figures" and "of 1 peer (liar)" in alert.text
    points = [dict.fromkeys(history().columns, value) for value in (1.0, -1.0, float("nan"), 1e300)]
    assert HistoryColumns.from_points(points, NOW).num_impossible == 3


def test_peers_with_another_state_and_peers_left_behind_are_named():
    verdict = StateVerdict(epoch=100, num_votes=7, num_voters=8, outvoted=("Qmp3",))
    (alert,) = all_alerts(history(), swarm(8), verdict)
    assert alert.text == (
        "p3 holds another model after epoch 100 than 7 other peers. It takes the others' state by itself, within a "
        "round or two."
    )
    assert not alert.is_serious
    (alert,) = all_alerts(history(), swarm(8), verdict, since=NOW - 400)
    assert alert.is_serious and "has not mended itself" in alert.text
    behind = [peer_values(f"late-{number}", epoch=90) for number in range(4)]
    assert kinds(all_alerts(history(), swarm(8, *behind))) == ["peers left behind"]


def test_one_accuser_is_not_enough():
    accusing = metrics("x", suspects=[dict(peer_id="Qmp0", offence="NOT_FINITE", num_rounds=3)])
    one, other = (peer_values(name, epoch=100, metrics=accusing) for name in ("x", "y"))
    assert all_alerts(history(), swarm(8, one)) == []
    (alert,) = all_alerts(history(), swarm(8, one, other))
    assert alert.kind == "suspects" and "p0 by 2" in alert.text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (45, "45 s"), (600, "10 min"), (9000, "2 h 30 min"), (400_000, "4.6 days")]
)
def test_durations_have_a_unit_that_fits(seconds, text):
    assert duration(seconds) == text
