"""What programs get: leaderboards of a span, histories in few points, Prometheus's text."""

import numpy as np
import pytest
from dashboard_material import LIFETIME, look, metrics, peer_values

from pipelines.features.publishing.metrics.credit.contributions import Contribution
from pipelines.features.publishing.metrics.run_state import RunPhase
from pipelines.tools.pages.dashboard.alerts import Alert
from pipelines.tools.pages.dashboard.history_columns import SUMMARY_COLUMNS, HistoryColumns
from pipelines.tools.pages.dashboard.page_parts import board_html, notices_html, peers_html
from pipelines.tools.pages.dashboard.peer_table import page_of, track
from pipelines.tools.pages.dashboard.programs import board_rows, history_values, prometheus_text
from pipelines.tools.pages.dashboard.programs import peer_values as shown_values
from pipelines.tools.pages.dashboard.settings import DashboardSettings

NOON = 1_795_262_400.0  # 2026-11-21
DAYS = {
    ("2026-11-21", "eve"): Contribution(samples=5, seconds=3600),
    ("2026-11-20", "eve"): Contribution(samples=10, seconds=3600),
    ("2026-11-14", "ada"): Contribution(samples=100, seconds=7200),
    ("2026-11-15", "bob"): Contribution(samples=7, seconds=60),
}
HOSTILE = '<script>alert("x")</script>\\'


def test_a_leaderboard_is_of_its_span_alone():
    assert [(row["username"], row["samples"], row["hours"]) for row in board_rows(DAYS, {}, "all", NOON)] == [
        ("ada", 100, 2.0),
        ("eve", 15, 2.0),
        ("bob", 7, 0.017),
    ]
    assert [(row["username"], row["samples"]) for row in board_rows(DAYS, {}, "week", NOON)] == [
        ("eve", 15),
        ("bob", 7),
    ]
    assert [row["username"] for row in board_rows(DAYS, {}, "today", NOON)] == ["eve"]
    with pytest.raises(ValueError, match="span is 'year'; expected one of today, week, all"):
        board_rows(DAYS, {}, "year", NOON)


def test_who_serves_is_credited_beside_who_trains():
    served = {("2026-11-21", "eve"): 32, ("2026-11-15", "gus"): 9, ("2026-11-14", "gus"): 1}
    rows = board_rows(DAYS, served, "week", NOON)
    assert [(row["username"], row["samples"], row["candidates"]) for row in rows] == [
        ("eve", 15, 32), ("bob", 7, 0), ("gus", 0, 9),
    ]  # fmt: skip
    shown = board_html(rows, "week", total=22, is_open=False)
    assert "pictures served, as audited" in shown and "<td>32</td>" in shown
    assert "as audited" not in board_html(board_rows(DAYS, {}, "week", NOON), "week", total=22, is_open=False)


@pytest.mark.parametrize(("most", "num_points"), [(10, 10), (1, 1), (0, 1), (10**9, 1000), (300, 250)])
def test_a_history_for_programs_has_few_points_and_always_the_newest(most, num_points):
    history = HistoryColumns(columns={name: np.arange(1.0, 1001) for name in SUMMARY_COLUMNS})
    values = history_values(history, 0, 100, most)
    assert values["epoch"][-1] == 1000 and len(values["loss"]) == num_points
    assert history_values(HistoryColumns.from_points([], NOON), 0, 100, 10)["loss"] == []


def hostile_swarm():
    introduction = dict(username=HOSTILE, device=HOSTILE, package_version="{{x}}${y}", client_mode=True)
    figures = metrics(HOSTILE, num_samples=42)
    return track({}, look(peer_values("key", metrics=figures, introduction=introduction)), LIFETIME)


def test_prometheus_text_escapes_what_strangers_write():
    text = prometheus_text(
        run="org/run",
        sources={"Hub": True, "Swarm": False},
        figures=dict(loss=2.5, epoch=7, evaluation_loss=None),
        peers=hostile_swarm(),
        alerts=[Alert(kind="loss spike", text="x")],
        contributions={'a"b\n': 3},
    )
    lines = text.splitlines()
    assert 'dalle_collab_loss{run="org/run"} 2.5' in lines and 'dalle_collab_epoch{run="org/run"} 7' in lines
    assert 'dalle_collab_up{run="org/run",source="Swarm"} 0' in lines
    assert r'dalle_collab_user_samples_total{run="org/run",user="a\"b\n"} 3' in lines
    assert r'user="<script>alert(\"x\")</script>\\"} 4' in text
    assert 'dalle_collab_alert{run="org/run",kind="loss spike"} 1' in lines
    assert not [line for line in lines if line.startswith("dalle_collab_evaluation_loss")]
    assert all(line.startswith(("dalle_collab_", "# HELP dalle_collab_", "# TYPE dalle_collab_")) for line in lines)


def test_the_page_shows_what_strangers_write_as_text():
    tracked = hostile_swarm()
    rows = [dict(username=HOSTILE, samples=1, hours=0.1)]
    html = (
        peers_html(page_of(tracked), NOON, RunPhase.ALIVE)
        + board_html(rows, "all", total=1, is_open=True)
        + notices_html([("Hub", HOSTILE)], [Alert(kind="suspects", text=HOSTILE)], RunPhase.ALIVE)
    )
    assert "<script" not in html and html.count("&lt;script&gt;") == 5
    assert "{{" not in html and "${" not in html


def test_a_peer_is_plain_values_with_its_figures_or_none():
    (one,) = hostile_swarm().values()
    assert (shown_values(one)["num_samples"], shown_values(one)["state"]) == (42, "training")
    (silent,) = track({}, look(peer_values("a")), LIFETIME).values()
    assert shown_values(silent)["num_samples"] is None and shown_values(silent)["samples_per_second"] == 4.0


def test_settings_name_spaces_or_addresses():
    settings = DashboardSettings.from_environment(
        {"RUN": " org/run ", "DEMO_SPACE": "org/demo", "JOIN_SPACE": "https://join.example/x"}
    )
    assert (settings.run, settings.join_space) == ("org/run", "https://join.example/x")
    assert settings.demo_space.endswith("/spaces/org/demo")


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "RUN is not set. Name the run"),
        ({"RUN": "https://x/y/z"}, "RUN is 'https://x/y/z'; expected the name of a repository"),
        ({"RUN": "a/b", "DEMO_SPACE": "javascript:alert(1)"}, "DEMO_SPACE is 'javascript:alert.1.'; expected a Space"),
    ],
)
def test_settings_that_cannot_be_used_are_explained(environment, message):
    with pytest.raises(ValueError, match=message):
        DashboardSettings.from_environment(environment)
