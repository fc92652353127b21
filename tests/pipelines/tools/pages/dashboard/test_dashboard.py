"""What looks at the swarm add up to, before the Hub has it."""

import math
import re

import pytest
from dashboard_material import BEGUN, NOW, look, metrics, peer_values
from swarm_of_processes import tiny_run

from pipelines.tools.pages.dashboard.dashboard import Dashboard, run_charts
from pipelines.tools.pages.dashboard.history_columns import HistoryColumns
from pipelines.tools.pages.dashboard.hub_reading import HubView
from pipelines.tools.pages.dashboard.page_parts import Headline, checkpoints_html, headline_html, now_html
from pipelines.tools.pages.dashboard.servers import MOST_REMEMBERED, DrawnToday, holes, servers_html
from pipelines.tools.pages.dashboard.settings import DashboardSettings
from pipelines.tools.pages.dashboard.swarm.swarm_snapshot import SwarmSnapshot

RUN = tiny_run(num_epochs=100, progress_expiration_seconds=30.0)


def seen(epoch, second, *losses):
    """Return a look in which one peer per loss reports an epoch."""
    peers = [
        peer_values(
            f"p{number}", epoch=epoch, renewed=NOW + second, metrics=metrics(f"p{number}", epoch=epoch, loss=loss)
        )
        for number, loss in enumerate(losses)
    ]
    return look(*peers, time=NOW + second)


@pytest.fixture
def dashboard():
    return Dashboard(DashboardSettings(run="org/run"))


def test_an_epoch_ends_when_its_first_report_comes_and_its_figures_are_those_of_the_last_look(dashboard):
    for epoch, second, losses in ((1, 0, [3.0]), (1, 5, [3.0, 5.0]), (2, 20, [2.0]), (2, 25, [2.0]), (3, 50, [1.0])):
        dashboard.take_look(seen(epoch, second, *losses), RUN)
    history = dashboard.history_values()
    assert history["epoch"] == [1, 2, 3] and history["loss"] == [4.0, 2.0, 1.0]
    assert history["time"] == [NOW, NOW + 20, NOW + 50] and history["epoch_seconds"] == [0, 20, 30]


def test_a_new_generation_begins_anew(dashboard):
    dashboard.take_look(seen(9, 0, 3.0), RUN)
    assert [peer["username"] for peer in dashboard.peer_values()] == ["p0"]
    dashboard.take_look(look(time=NOW + 5), RUN.replace(generation=1))
    assert dashboard.peer_values() == [] and dashboard.history_values()["epoch"] == []


def test_a_window_is_drawn_once_for_all_who_look_at_it(dashboard):
    dashboard.take_look(seen(1, 0, 3.0), RUN)
    first = dashboard.charts("epoch", 0, 100)
    assert dashboard.charts("epoch", 0.0, 100.04) is first
    dashboard.take_look(seen(2, 9, 2.0), RUN)
    assert dashboard.charts("epoch", 0, 100) is not first
    assert "Nothing to show" not in dashboard.charts("nonsense", float("nan"), None)


def test_what_is_no_run_is_not_asked_for_and_a_part_that_is_none_is_the_whole(dashboard):
    dashboard.take_look(seen(1, 0, 3.0), RUN)
    plain = dashboard.charts()
    shown = dashboard.charts(other="../<b>", smoothing=1e12, is_log=True)
    assert "../&lt;b&gt;" in shown and "expected ORG/RUN" in shown and 'class="other"' not in shown
    assert dashboard.charts(other=" org/run ") == plain, "it is the run itself"
    for axis, low, high in (("epoch", None, 3), ("<b>", 1, 2), ("epoch", "1", []), ("epoch", math.inf, 1)):
        assert dashboard.zoomed(axis, low, high) == (0.0, 100.0)


@pytest.mark.parametrize(("loss", "shown"), [(math.log(44.0), "44"), (1e6, "5.2e+21")])
def test_a_language_run_is_shown_in_tokens_and_perplexity(dashboard, loss, shown):
    run, settings = tiny_run("text-generation"), dashboard.settings
    dashboard.take_look(seen(1, 0, 3.0), run)
    view = HubView(run=run, evaluations=[dict(epoch=1, time=NOW, loss=loss)], checkpoints={1: "c"})
    known = dict(
        epoch=1, num_epochs=6, loss=3.0, samples_per_second=9.0, num_peers=1, epoch_seconds=None, condition=BEGUN
    )
    headline = headline_html(settings, Headline(**known, evaluation_loss=loss, unit=run.unit))
    assert f"held-out perplexity</dt><dd>{shown}<" in headline and "tokens per second" in headline
    few = headline_html(settings, Headline(**known, evaluation_loss=loss, unit=run.unit, num_held_out=7))
    assert "held-out perplexity (only 7 records)</dt>" in few
    charts = run_charts(view, HistoryColumns.from_points([], NOW), "epoch")
    assert "tokens/s" in [chart.unit for chart in charts]
    assert "pipeline(&quot;text-generation&quot;, model=&quot;org/run&quot;" in checkpoints_html(settings, view)


def server_values(name, **changes):
    """Return what the looking process writes of a server."""
    values = dict(
        peer_id=f"Qm{name}", username=name, state="online", precision="float32", epoch=9, draw_rate=120.0, num_drawn=4,
        first_layer=0, end_layer=0, layer_rate=0.0, revision="a" * 64, free_places=3,
    )  # fmt: skip
    return values | changes


def test_who_serves_the_model_is_listed_and_what_is_impossible_is_not(dashboard):

    servers = [
        server_values("slow", draw_rate=1.0),
        server_values("<b>fast</b>", draw_rate=500.0),
        server_values("blocks", draw_rate=0.0, first_layer=4, end_layer=12, layer_rate=80.0),
        server_values("liar", draw_rate=1e12),
        server_values("nan", num_drawn=float("nan")),
    ]
    values = dict(time=NOW, peers=[], num_auxiliaries=0, verdict=None, servers=servers)
    assert "servers of the model" not in dashboard.peers()
    dashboard.take_look(SwarmSnapshot.from_values(values), RUN)
    shown = dashboard.peers()
    assert [server["username"] for server in dashboard.server_values()] == ["<b>fast</b>", "slow", "blocks"]
    assert "3 servers of the model" in shown and "4:12" in shown and "&lt;b&gt;fast&lt;/b&gt;" in shown
    assert "<b>fast" not in shown and "liar" not in shown


def test_layers_that_nobody_serves_are_shown_with_the_command_that_serves_them(dashboard):

    def seen_of(*servers):
        values = dict(time=NOW, peers=[], num_auxiliaries=0, verdict=None, servers=servers)
        return SwarmSnapshot.from_values(values).servers

    view = HubView(run=RUN, weights_sha256="a" * 64, num_layers=12)
    servers = seen_of(
        server_values("one", first_layer=0, end_layer=4),
        server_values("old", first_layer=4, end_layer=8, revision="b" * 64),
        server_values("leaving", first_layer=4, end_layer=8, state="draining"),
        server_values("liar", first_layer=9, end_layer=65_536),
    )
    assert holes(servers, view) == [range(4, 9)]
    shown = servers_html(servers, DrawnToday(since=NOW), view, "org/<i>run")
    assert "Nobody serves layers 4:9 of the newest checkpoint" in shown
    assert "dalle-collab serve org/&lt;i&gt;run --blocks 4:9" in shown
    assert holes(seen_of(server_values("draws")), view) == [] == holes(servers, HubView(run=RUN))


def test_a_complaint_about_a_server_is_shown_as_a_claim(dashboard):
    accusers = ["<b>ann", "Qm" + "x" * 60, "bob", "cy", "di"]
    accused = [dict(server="Qmfast", accusers=accusers, num_audited=4, mean_excess=0.5, limit=1e-5)]
    values = dict(time=NOW, peers=[], num_auxiliaries=0, verdict=None, servers=[server_values("fast")])
    assert "complained" not in dashboard.peers()
    dashboard.take_look(SwarmSnapshot.from_values(values | dict(accused=accused * 50)), RUN)
    shown = dashboard.peers()
    assert "&lt;b&gt;ann, …xxxxxxxx, bob and 2 more complained about fast after 4 audited candidates" in shown
    assert "That is a claim" in shown and "<b>ann" not in shown and shown.count("complained") == 8
    assert dashboard.serving_values()["claims"][0]["num_accusers"] == 5


def test_pictures_drawn_today_are_counted_from_the_first_look_and_anew_at_midnight():

    def after(drawn, now, **numbers):
        servers = [server_values(name, num_drawn=number) for name, number in numbers.items()]
        values = dict(time=now, peers=[], num_auxiliaries=0, verdict=None, servers=servers)
        return drawn.after(SwarmSnapshot.from_values(values).servers, now)

    noon = 20_000 * 86_400.0 + 43_200
    drawn = after(DrawnToday(), noon, a=100)
    assert (drawn.number, drawn.since) == (0, noon), "what was drawn before is not known to be of today"
    drawn = after(drawn, noon + 5, a=103, b=7)
    drawn = after(drawn, noon + 10, b=9)
    drawn = after(drawn, noon + 15, a=104, b=2)  # b has started again
    assert drawn.number == 3 + 2 + 1 + 2 and drawn.since == noon
    tomorrow = after(drawn, noon + 86_400, a=106, b=2)
    assert (tomorrow.number, tomorrow.since) == (2, 20_001 * 86_400.0)
    crowd = after(tomorrow, noon + 86_401, **{f"server {number}": 1 for number in range(MOST_REMEMBERED + 10)})
    assert len(crowd.counts) == MOST_REMEMBERED and crowd.number == 2


def test_the_first_screen_says_who_trains_since_when_and_shows_what_is_drawn_by_now(dashboard):
    view = HubView(
        run=RUN, pictures={3: ("epoch-3.webp", 0.0), 12: ("epoch-12.webp", 1.8e9)}, prompts=("a <b>robin</b>",)
    )
    shown = now_html(["anna", "<i>bert</i>", "anna", *map(str, range(9))], 1.76e9, view, is_live=True)
    assert "<b>anna, &lt;i&gt;bert&lt;/i&gt;, 0, 1, 2, 3, 4, 5 and 3 more</b> train now." in shown
    assert "The first epoch ended on 2025-10-09" in shown
    assert shown.index("reel/epoch-3.webp") < shown.index("reel/epoch-12.webp") and "a &lt;b&gt;robin" in shown
    many = HubView(run=RUN, pictures={epoch: (f"epoch-{epoch}.webp", 0.0) for epoch in range(1, 101)})
    line = re.findall(r"reel/epoch-(\d+)", now_html([], 0.0, many, is_live=True))
    assert (len(line), line[0], line[-1]) == (8, "1", "100")
    assert "<b>Nobody</b> trains now." in now_html([], 0.0, HubView(run=RUN), is_live=True)
    dashboard.take_look(seen(9, 0, 3.0), RUN)
    assert "The first epoch ended on 2027-01-15" in dashboard.now()
    assert "trains now" not in dashboard.now(), "nobody knows while the swarm does not answer"
