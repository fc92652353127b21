"""Evaluations as curves: their interval is the band, and what stands on few records says so."""

import math
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import numpy as np
import pytest
from dashboard_material import BEGUN
from recorded_run import recorded_evaluations, recorded_figures, recorded_history
from swarm_of_processes import tiny_run

from pipelines.tools.pages.dashboard.charts import HEIGHT, WIDTH, chart_html
from pipelines.tools.pages.dashboard.dashboard import run_charts
from pipelines.tools.pages.dashboard.evaluation_charts import MOST_CHARTS, evaluation_charts
from pipelines.tools.pages.dashboard.history_columns import HistoryColumns
from pipelines.tools.pages.dashboard.hub_reading import HubView
from pipelines.tools.pages.dashboard.page_parts import Headline, headline_html
from pipelines.tools.pages.dashboard.settings import DashboardSettings

NOW = 1.8e9
POINTS = recorded_history(1000, NOW)
SHOWN = HistoryColumns.from_points(POINTS, NOW)
EVALUATED = POINTS[99::100]
VIEW = HubView(run=tiny_run(), evaluations=recorded_evaluations(EVALUATED), figures=recorded_figures(EVALUATED))


def path_of(chart, kind):
    figure = ElementTree.fromstring(chart_html(chart))
    numbers = [float(n) for n in re.findall(r"-?[\d.]+", figure.find(f".//path[@class='{kind}']").get("d"))]
    return figure, numbers


def test_each_evaluation_is_a_point_of_a_curve_with_its_interval_as_the_band():
    charts = evaluation_charts(VIEW, SHOWN, "epoch")
    titles = ["Held-out loss", "FID (clip)", "KID (clip)", "CMMD", "CLIPScore"]
    assert [chart.title[:-2] for chart in charts] == titles
    fid = charts[1]
    figures = [figure for figure in VIEW.figures if figure.name == "fid@clip"]
    assert fid.along.tolist() == [figure.epoch for figure in figures] == list(range(100, 1001, 100))
    assert fid.interval[0].tolist() == [figure.low for figure in figures]
    figure, band = path_of(fid, "band")
    low, high = (min(figures, key=lambda one: one.low).low, max(figures, key=lambda one: one.high).high)
    reach = 0.04 * (high - low)
    below = HEIGHT * (1 - (figures[-1].low - low + reach) / (high - low + 2 * reach))
    # The band goes along the upper ends and back along the lower ones; the tenth point of it is the newest one.
    assert band[2 * 10 : 2 * 10 + 2] == pytest.approx([WIDTH, below], abs=0.1)
    caption = "".join(figure.find("figcaption").itertext())
    newest = figures[-1]
    assert caption.endswith(f"{newest.value:.3g} ({newest.low:.3g} to {newest.high:.3g})")


def test_what_stands_on_few_records_is_a_warning_and_what_stands_on_many_is_not():
    held_out, fid, *_ = map(chart_html, evaluation_charts(VIEW, SHOWN, "epoch"))
    assert '<p class="basis">256 records</p>' in held_out
    assert '<p class="few">2 drawings of 40 records: too few for small differences</p>' in fid


def test_an_evaluation_is_where_its_state_was_on_either_axis_and_only_in_the_window():
    for axis in ("epoch", "time"):
        window = SHOWN.window(axis, 45, 75)
        charts = evaluation_charts(VIEW, window, axis)
        places = [point[axis] for point in EVALUATED if 500 <= point["epoch"] <= 700]
        assert [chart.along.tolist() for chart in charts] == [places] * 5
        assert all(chart.span == (window.columns[axis][0], window.columns[axis][-1]) for chart in charts)
    late = [replace(figure, time=NOW + 9e5) for figure in VIEW.figures]
    (_, fid, *_) = evaluation_charts(HubView(run=VIEW.run, figures=late, evaluations=VIEW.evaluations), SHOWN, "time")
    assert fid.along[-1] == NOW, "it may have ended long after the run"


def test_only_evaluations_of_equally_many_records_are_one_curve():
    figures = [replace(figure, num_records=400 if figure.epoch > 500 else 40) for figure in VIEW.figures]
    fid = evaluation_charts(HubView(run=VIEW.run, figures=figures), SHOWN, "epoch")[0]
    assert fid.along.tolist() == [600, 700, 800, 900, 1000] and not fid.warns


def test_one_evaluation_is_a_mark_with_a_bar_and_none_is_no_chart():
    one = HubView(run=VIEW.run, figures=[figure for figure in VIEW.figures if figure.epoch == 300])
    _, bar = path_of(evaluation_charts(one, SHOWN, "epoch")[0], "bar")
    assert bar[1] > bar[2], "from the lower end up"
    assert evaluation_charts(HubView(run=VIEW.run), SHOWN, "epoch") == []
    assert evaluation_charts(VIEW, HistoryColumns.from_points([], NOW), "epoch") == []
    assert [chart.title for chart in run_charts(VIEW, SHOWN, "epoch")][:2] == [
        "Loss",
        "Held-out loss\N{NO-BREAK SPACE}↓",
    ]


def test_names_of_strangers_make_no_more_charts_than_fit_on_a_page():
    figures = [replace(VIEW.figures[-1], name=f"fid@features{number}") for number in range(60)]
    figures.append(replace(VIEW.figures[-1], name="diversity"))
    charts = evaluation_charts(HubView(run=VIEW.run, figures=figures), SHOWN, "epoch")
    assert len(charts) == MOST_CHARTS and all(chart.title.startswith("FID") for chart in charts)


def test_evaluations_from_before_intervals_have_a_curve_without_a_band():
    old = [dict(epoch=row["epoch"], time=row["time"], loss=row["loss"]) for row in VIEW.evaluations]
    (chart,) = evaluation_charts(HubView(run=VIEW.run, evaluations=old), SHOWN, "epoch")
    assert np.array_equal(chart.interval[0], chart.values) and 'class="band"' not in chart_html(chart)
    assert chart.note == "" and not chart.warns


@pytest.mark.parametrize(("unit", "shown"), [("samples", "2.9000 to 3.1000"), ("tokens", "18.17 to 22.2")])
def test_the_headline_has_the_interval_of_the_newest_evaluation(unit, shown):
    known = dict(
        epoch=1, num_epochs=6, loss=3.0, samples_per_second=9.0, num_peers=1, epoch_seconds=None, condition=BEGUN
    )
    head = Headline(**known, evaluation_loss=3.0, evaluation_low=2.9, evaluation_high=3.1, unit=unit)
    assert f">{shown}</small>" in headline_html(DashboardSettings(run="org/run"), head)
    assert math.exp(2.9) == pytest.approx(18.17, abs=0.01)
