"""Curves: thinned without losing a spike, drawn as well-formed SVG, with all text escaped."""

import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from hub_tools.printing.marked_up import escaped
from pipelines.tools.pages.dashboard.charts import Chart, chart_html, log_ticks, nice_ticks, smooth
from pipelines.tools.pages.dashboard.history_columns import SUMMARY_COLUMNS, HistoryColumns, thin_out
from pipelines.tools.pages.text import short_number


def columns(num_points, **changes):
    values = {name: np.arange(1.0, num_points + 1) for name in SUMMARY_COLUMNS}
    return HistoryColumns(columns=values | changes)


def drawn(along, values, **options):
    return chart_html(
        Chart(title="Loss", unit="", axis="epoch", along=np.asarray(along, float), values=values, **options)
    )


def test_thinning_keeps_every_extreme_and_the_mean_of_each_stretch():
    along, values = np.arange(30_000.0), np.random.default_rng(0).normal(size=30_000)
    values[17_123] = 99.0
    thin = thin_out(along, values, 300)
    assert len(thin.along) == 300 and thin.high.max() == 99.0 and thin.low.min() == values.min()
    assert thin.mean == pytest.approx(values.reshape(300, 100).mean(axis=1))
    assert (thin.low <= thin.mean).all() and (thin.mean <= thin.high).all()


def test_thinning_sorts_and_takes_single_and_equal_places():
    thin = thin_out(np.array([3.0, 1.0, 2.0]), np.array([30.0, 10.0, 20.0]), 300)
    assert thin.mean.tolist() == [10.0, 20.0, 30.0]
    assert thin_out(np.array([5.0, 5.0]), np.array([1.0, 3.0]), 300).mean.tolist() == [2.0]
    assert len(thin_out(np.array([]), np.array([]), 300).along) == 0


@pytest.mark.parametrize(
    ("first", "last", "epochs"), [(0, 100, (1, 101)), (50, 100, (51, 101)), (80, 20, (21, 81)), (100, 100, (100, 101))]
)
def test_a_window_is_a_share_of_the_history_whatever_order_it_comes_in(first, last, epochs):
    shown = columns(101).window("epoch", first, last).columns["epoch"]
    assert (shown[0], shown[-1]) == epochs


def test_newer_points_follow_without_repeating_epochs():
    older, newer = columns(10), columns(12, loss=np.full(12, 7.0))
    joined = older.followed_by(newer)
    assert joined.columns["epoch"].tolist() == list(range(1, 13))
    assert joined.columns["loss"][-3:].tolist() == [10.0, 7.0, 7.0]


def test_a_chart_is_well_formed_small_and_says_its_newest_value():
    along, values = np.arange(1.0, 30_001), np.random.default_rng(0).normal(5, 1, 30_000)
    values[-1] = 4.5
    evaluations = (along[99::100], values[99::100] + 0.1)
    html = drawn(along, values, dots=evaluations, dots_title="held out")
    figure = ElementTree.fromstring(html)
    assert figure.find(".//svg").get("aria-label").startswith("Loss from epoch 1 to epoch 30,000")
    assert "".join(figure.find("figcaption").itertext()).startswith("Loss4.5")
    assert len(html) < 40_000
    numbers = [float(n) for n in re.findall(r"-?[\d.]+", figure.find(".//path[@class='line']").get("d"))]
    assert all(0 <= number <= 1000 for number in numbers)


@pytest.mark.parametrize(
    "values", [[0.0], [0.0, 0.0, 0.0], [1e-9, 1e9], [5.0, 5.0], [1e11, 1.0, 2.0], [5e-324, 1.0], [1e-300, 1e11]]
)
def test_any_values_give_a_chart(values):
    for axis in ("epoch", "time"):
        along = np.arange(len(values)) + 1.8e9
        for is_log in (False, True):
            chart = Chart(
                title="x", unit="s", axis=axis, along=along, values=np.array(values), from_zero=False, is_log=is_log
            )
            ElementTree.fromstring(chart_html(chart))


def test_log_heights_put_equal_factors_at_equal_distances_and_need_positive_values():
    def heights(values, **options):
        line = ElementTree.fromstring(drawn([1, 2, 3], np.array(values), is_log=True, **options)).find(
            ".//path[@class='line']"
        )
        return [float(y) for y in re.findall(r" (-?[\d.]+)", line.get("d"))]

    one, ten, hundred = heights([1.0, 10.0, 100.0])
    assert one - ten == pytest.approx(ten - hundred, abs=0.2) and one - ten > 50
    for linear in (heights([0.0, 10.0, 100.0]), heights([1.0, 10.0, 100.0], counts_things=True)):
        assert linear[0] - linear[1] < 0.2 * (linear[1] - linear[2])
    assert log_ticks(0.9, 120) == [1, 2, 5, 10, 20, 50, 100] and log_ticks(1e-9, 1e9)[0] == 1e-9
    assert log_ticks(2.2, 2.9) == nice_ticks(2.2, 2.9, 4)


def test_smoothing_starts_at_the_first_value_and_leaves_the_curve_visible():
    assert smooth(np.array([4.0, 4.0]), 0.9) == pytest.approx([4.0, 4.0])
    assert smooth(np.array([4.0, 0.0]), 0.5) == pytest.approx([4.0, 4 / 3])
    assert smooth(np.array([4.0, 0.0]), 0.0).tolist() == [4.0, 0.0]
    paths = {one.get("class"): one.get("d") for one in ElementTree.fromstring(
        drawn([1, 2, 3], np.array([4.0, 0.0, 4.0]), smoothing=0.9)).iter("path")}  # fmt: skip
    assert paths["raw"] != paths["line"]


def test_another_run_is_a_second_line_within_the_picture_and_in_the_values():
    other = (np.array([2.0, 3.0, 99.0]), np.array([50.0, 60.0, 1e6]))
    html = drawn([1, 2, 3], np.array([4.0, 2.0, 4.0]), other=other, other_title="org/<b>")
    figure = ElementTree.fromstring(html)
    assert figure.find(".//path[@class='other']").get("d").count("L") == 1
    assert [strip.get("data-tip") for strip in figure.iter("rect")][1:] == [
        "epoch 2: 2; org/<b> 50", "epoch 3: 4; org/<b> 60"
    ]  # fmt: skip


def test_a_part_of_an_axis_is_given_as_shares_of_the_history():
    history = columns(101)
    assert history.shares("epoch", 51.04, 26) == (25.0, 50.1)
    assert history.shares("epoch", -1e9, 1e11) == (0.0, 100.0)
    assert columns(1).shares("epoch", 1, 1) == columns(0).shares("epoch", 1, 2) == (0.0, 100.0)


def test_no_points_give_a_sentence():
    assert "Nothing to show yet" in drawn([], np.array([]))


def test_one_value_far_above_all_others_does_not_flatten_the_curve():
    values = np.full(1000, 2.0)
    values[500] = 1e6
    labels = re.findall(r'bottom:[\d.]+%">([^<]+)<', drawn(np.arange(1000), values))
    assert all(float(label) < 10 for label in labels)


def test_ticks_are_round_and_inside():
    assert nice_ticks(0, 31_250, 5) == [0, 10_000, 20_000, 30_000]
    assert nice_ticks(2.2, 2.9, 4) == pytest.approx([2.2, 2.4, 2.6, 2.8])
    assert nice_ticks(3, 3, 4) == [3]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (3.14159, "3.142"),
        (0.00012, "0.00012"),
        (12_300, "12,300"),
        (4.6e6, "4.6M"),
        (None, "–"),
        (1e300, "1.0e+300"),
        (float("nan"), "–"),
    ],
)
def test_numbers_are_short(value, text):
    assert short_number(value) == text


def test_text_means_nothing_to_a_browser_or_a_template():
    assert escaped("<b>${x}{{y}}`\\\"'&") == (
        "&lt;b&gt;&#36;&#123;x&#125;&#123;&#123;y&#125;&#125;&#96;&#92;&quot;&#x27;&amp;"
    )
