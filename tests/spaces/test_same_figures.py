"""A figure that stands in several places is the same in all of them: pages, card, report, terminal, results."""

import html
import json
import re

import pytest
from browsing import needs_browser, served, take_picture, watched_page
from huggingface_hub import ModelCard
from support_files import SUPPORT

from hub_tools.counted import date, duration, nats
from hub_tools.publishing.space_bundling import bundle_folder, find_space

NUM_EPOCHS, EPOCH_SECONDS = 6, 30.0
EARLIER, LAST = 1.4567, 0.27134
"""Held-out losses, the last one of the newest state: it comes after the checkpoint's commit."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def words(text):
    """The words of HTML or Markdown, without marks and tags."""
    plain = html.unescape(re.sub(r"<[^>]+>", " ", text))
    return " ".join(re.sub(r"[|*`]", " ", plain).split())


def places_of(material, commands, repository, landing, tmp_path):
    """What each place says of a run."""

    def done(finished):
        assert finished.returncode == 0, finished.stderr
        return finished.stdout

    report = tmp_path / "report.md"
    done(commands.run("run", "report", repository, "--output", str(report)))
    dashboard = json.loads(done(commands.run_program(SUPPORT / "dashboard_of_a_run.py", repository)).splitlines()[-1])
    # Nothing has drawn a picture yet.
    watched = dict(allowed=(material.hub.endpoint,), expected_error="Failed to load resource")
    with watched_page(f"{landing}?run={repository}", **watched) as page:
        page.locator("#leaderboard-rows tr").first.wait_for()
        page.locator("#result-evaluation").wait_for()
        parts = ("#status-text", "#live-figures", "#objective-plot output", "#leaderboard-rows", "#result-evaluation")
        seen = " ".join(page.locator(part).inner_text() for part in parts)
        take_picture(page, "landing_page_figures", tmp_path)
    card = material.file(repository, "README.md").read_text(encoding="utf-8")
    return dict(
        landing=words(seen),
        dashboard=words(dashboard),
        card=words(card.split("---", 2)[2]),
        report=words(report.read_text(encoding="utf-8")),
        terminal=words(done(commands.run("run", "show", repository))),
    ), ModelCard(card)


@needs_browser
@pytest.mark.parametrize("is_over", [True, False], ids=["finished", "live"])
def test_a_figure_is_the_same_on_every_page_in_the_card_the_report_and_the_terminal(
    training_material, commands, tmp_path, is_over
):
    num_epochs = NUM_EPOCHS if is_over else 400
    repository = training_material.create_run(f"org/same-figures-{num_epochs}", num_epochs=num_epochs)
    settings = dict(
        folder=str(tmp_path / "publisher"), epochs=[3, NUM_EPOCHS], epoch_seconds=EPOCH_SECONDS,
        records=[(epoch, 40 * epoch) for epoch in range(1, NUM_EPOCHS + 1)],
        evaluations=[(3, EARLIER), (NUM_EPOCHS, LAST)],
    )  # fmt: skip
    done = commands.run_program(SUPPORT / "publishing_program.py", repository, json.dumps(settings))
    assert done.returncode == 0, done.stderr
    bundle_folder(find_space("landing_page"), tmp_path / "page", dict(hub=training_material.hub.endpoint))
    with served(tmp_path / "page") as landing:
        places, card = places_of(training_material, commands, repository, landing, tmp_path)
    summary = json.loads(training_material.file(repository, "metrics/summary.json").read_text())
    claimed, loss = summary["leaderboard"][0]["samples_all"], nats(5.0 / NUM_EPOCHS)
    left = [] if is_over else [duration((num_epochs - NUM_EPOCHS) * EPOCH_SECONDS)]
    shown = {
        "training loss": (loss, ("landing", "dashboard", "card", "report")),
        "held-out loss": (nats(LAST), ("landing", "dashboard", "card", "report")),
        "samples claimed": (f"{claimed:,}", ("landing", "dashboard", "card", "report")),
        "epoch": (f"{NUM_EPOCHS} of {num_epochs}", ("card", "report")),
        "end of the last epoch": (date(summary["newest"]["time"]), ("landing", "report")),
    }
    if not is_over:
        left = duration((num_epochs - NUM_EPOCHS) * EPOCH_SECONDS)
        shown["time left"] = (left, ("landing", "dashboard", "terminal"))
    missing = [
        (name, figure, place)
        for name, (figure, where) in shown.items()
        for place in where
        if figure not in places[place]
    ]
    assert missing == [], places
    assert not [place for place in ("landing", "card") if nats(EARLIER) in places[place]], "of an older epoch"
    (result,) = card.data.eval_results
    assert (nats(result.metric_value), result.metric_args["epoch"]) == (nats(LAST), NUM_EPOCHS)
    assert "127.0.0.1" not in card.content, "nobody else has this machine's Hub"
