"""What a page decides and shows about a machine that takes part in a run: who may use it, its settings, its state."""

import dataclasses
import io
import math
import re

import pytest
from PIL import Image

from pipelines.core.run.training_run import TrainingRun
from pipelines.features.publishing.metrics.credit.standing import Standing, standing_in
from pipelines.features.publishing.metrics.run_state import RunFacts, condition_of
from pipelines.tools.doctor.check_result import fail, ok, warn
from pipelines.tools.pages.joining.command_child import cause_of_end, for_people
from pipelines.tools.pages.joining.join_settings import JoinSettings, hosts_from
from pipelines.tools.pages.joining.join_view import ALIVE, MOST_LINES, MOST_SPEEDS, JoinView, after_event
from pipelines.tools.pages.joining.permissions import access_of, owners_of
from pipelines.tools.pages.joining.presentation import (
    TITLES,
    checks_html,
    contribution_html,
    gift_html,
    notice_html,
    run_html,
    sparkline,
    state_html,
)
from pipelines.tools.pages.joining.run_profile import RunProfile, costs_of
from pipelines.tools.pages.joining.volunteer_card import VolunteerCard

EVIL = "<img src=x onerror=alert(1)>&\"'"
FIGURES = dict(epoch=3, loss=2.5, share_averaged=0.98, num_peers=4, num_samples=96, samples_per_second=12.0)
STEP = dict(event="step", ended_epoch=True, epoch_loss=2.5, **FIGURES | dict(loss=9.0))


def view_after(*events, **values):
    view = JoinView(**values)
    for event in events:
        view = after_event(view, event)
    return view


@pytest.mark.parametrize(
    ("environment", "username", "granted"),
    [
        ({}, None, True),
        ({"SPACE_ID": ""}, None, True),
        ({"SPACE_ID": "alice/join", "SPACE_AUTHOR_NAME": "alice"}, "alice", True),
        ({"SPACE_ID": "alice/join", "SPACE_AUTHOR_NAME": "alice"}, None, False),
        ({"SPACE_ID": "alice/join", "SPACE_AUTHOR_NAME": "alice"}, "", False),
        ({"SPACE_ID": "alice/join", "SPACE_AUTHOR_NAME": "alice"}, "mallory", False),
        ({"SPACE_ID": "alice/join", "SPACE_AUTHOR_NAME": "alice"}, "Alice", False),
        ({"SPACE_ID": "alice/join"}, "alice", True),
        ({"SPACE_ID": "org/join", "SPACE_AUTHOR_NAME": "org", "OWNER": "bob, carol"}, "carol", True),
        ({"SPACE_ID": "org/join", "SPACE_AUTHOR_NAME": "org", "OWNER": "bob, carol"}, "org", False),
        ({"SPACE_ID": "/join", "SPACE_AUTHOR_NAME": ""}, "", False),
        ({"SPACE_ID": "/join", "SPACE_AUTHOR_NAME": "", "OWNER": ","}, "mallory", False),
    ],
)
def test_on_the_hub_only_the_owner_may_use_the_machine_and_at_home_everybody(environment, username, granted):
    access = access_of(environment, username)
    assert access.is_granted is granted
    assert bool(access.reason) is not granted


def test_a_visitor_reads_whose_machine_it_is():
    environment = {"SPACE_ID": "alice/join", "SPACE_AUTHOR_NAME": "alice"}
    assert access_of(environment, None).reason == "Only alice may use this machine. Sign in if that is you."
    assert "You are mallory; only alice may" in access_of(environment, "mallory").reason
    assert owners_of({"SPACE_ID": "org/join", "OWNER": "bob,carol"}) == ("bob", "carol")


def test_fields_of_a_page_become_arguments_of_the_commands():
    plain = JoinSettings.from_fields(" org/run ", "auto", "auto", 0, 0, False, 100)
    assert plain.join_arguments() == ["join", "org/run", "--device", "auto"]
    assert plain.doctor_arguments() == ["doctor", "org/run", "--device", "auto"]
    hosts = hosts_from({"HOST": "/ip4/127.0.0.1/tcp/0, /ip4/0.0.0.0/tcp/7"})
    full = JoinSettings.from_fields("org/run", " 8 ", "cuda:1", 1.5, 20, True, 50, 6, host_addresses=hosts)
    assert full.join_arguments() == [
        *("join", "org/run", "--device", "cuda:1", "--micro-batch-size", "8", "--max-gpu-memory", "6"),
        *("--host", "/ip4/127.0.0.1/tcp/0", "--host", "/ip4/0.0.0.0/tcp/7", "--client-mode"),
        *("--max-hours", "1.5", "--bandwidth-limit", "20", "--max-load", "50"),
    ]


@pytest.mark.parametrize("name", ["run", "--help", "-x/run", "org/run/more", "org/ru n", "org/<b>", "../run", "org/"])
def test_what_is_no_name_of_a_run_is_refused(name):
    with pytest.raises(ValueError, match="is not the name of a run"):
        JoinSettings(repository=name)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (("", "auto", "auto", 0, 0, False), "No run is named"),
        ((None, None, None, None, None, None), "No run is named"),
        (("org/run", "many", "auto", 0, 0, False), "The micro-batch is 'many'; expected auto or a whole number"),
        (("org/run", "0", "auto", 0, 0, False), "micro_batch_size is 0; expected at least 1"),
        (("org/run", "4", "--help", 0, 0, False), "device is '--help'; expected auto, cpu, cuda or cuda:N"),
        (("org/run", "4", "cpu:0", 0, 0, False), "device is 'cpu:0'"),
        (("org/run", "4", "auto", -1, 0, False), "max_hours is -1; expected a number above 0"),
        (("org/run", "4", "auto", 0, -5, False), "bandwidth_limit_mbit is -5"),
        (("org/run", "4", "auto", 0, 0, False, 400), "max_load is 400"),
        (("org/run", "4", "auto", 0, 0, False, 100, -1), "max_gpu_memory is -1; expected a number above 0"),
    ],
)
def test_impossible_settings_are_refused_with_the_value_seen(fields, message):
    with pytest.raises(ValueError, match=message):
        JoinSettings.from_fields(*fields)


JOINED = dict(event="joined", username="alice", epoch=2, num_epochs=10, unit="samples", state="peers")


@pytest.mark.parametrize(
    ("phase", "event", "following"),
    [
        ("starting", dict(event="entered"), "entering"),
        ("entering", JOINED, "joined"),
        ("joined", STEP, "training"),
        ("training", STEP, "training"),
        ("training", dict(event="paused"), "paused"),
        ("pausing", STEP, "pausing"),
        ("pausing", dict(event="paused"), "paused"),
        ("paused", dict(event="resumed"), "training"),
        ("resuming", dict(event="resumed"), "training"),
        ("resuming", dict(event="paused"), "resuming"),
        ("pausing", dict(event="resumed"), "pausing"),
        ("resuming", STEP, "training"),
        ("stopping", STEP, "stopping"),
        ("stopping", JOINED, "stopping"),
        ("failed", STEP, "failed"),
        ("starting", dict(event="over", message="The run is over."), "finished"),
        ("training", dict(event="from a newer version"), "training"),
    ],
)
def test_events_lead_from_phase_to_phase_and_late_ones_never_back(phase, event, following):
    assert view_after(event, phase=phase).phase == following


def test_steps_are_what_is_shown_of_the_contribution():
    view = view_after(JOINED, STEP, dict(STEP, num_samples=120, samples_per_second=14.0), phase="starting")
    assert (view.username, view.num_epochs, view.epoch, view.num_samples) == ("alice", 10, 3, 120)
    assert view.speeds == (12.0, 14.0)
    assert view_after(*[STEP] * (MOST_SPEEDS + 5)).speeds == (12.0,) * MOST_SPEEDS
    assert view_after(dict(STEP, samples_per_second=math.inf)).speeds == ()
    assert view_after(dict(event="left", num_samples=200), earlier_samples=50).all_samples == 250


def test_a_share_is_shown_from_the_first_round_on():
    before = dict(STEP, share_averaged=0.0, ended_epoch=False)
    assert view_after(before).share_averaged is None
    assert view_after(before, STEP, dict(before, share_averaged=0.98)).share_averaged == 0.98
    assert view_after(STEP, dict(STEP, share_averaged=0.0)).share_averaged == 0.0


def test_findings_are_collected_as_the_doctor_tells_them():
    result = warn("disk", "little", "much", "buy one")
    event = dict(result.as_mapping(), event="finding", time=1.0)
    view = view_after(dict(event="looking", at="machine"), event, is_checking=True)
    assert view.looking_at == "machine" and view.checks == (result,)
    assert "Checking: machine" in state_html(view, 0.0)


def test_only_the_end_of_a_log_is_kept():
    view = JoinView()
    for number in range(MOST_LINES + 3):
        view = view.with_line(str(number))
    assert len(view.lines) == MOST_LINES and view.lines[-1] == str(MOST_LINES + 2)
    assert for_people("\x1b[31mred\x1b[0m\x07 text" + "x" * 1000).startswith("red text")
    assert len(for_people("x" * 1000)) == 500


@pytest.mark.parametrize(
    ("code", "lines", "cause"),
    [
        (1, ["dalle-collab: There is no run.", "", "noise"], "There is no run."),
        (1, ["Traceback", "KeyError: 'x'", " "], "Ended with exit code 1: KeyError: 'x'"),
        (-9, ["step"], "Ended by SIGKILL. It may have run out of memory"),
        (-11, [], "Ended by SIGSEGV."),
        (2, [], "Ended with exit code 2: It printed nothing."),
    ],
)
def test_a_command_that_died_is_explained_by_its_own_last_words(code, lines, cause):
    assert cause_of_end(code, lines).startswith(cause)


def test_a_users_place_is_read_from_the_published_board():
    rows = [dict(username="bob", samples_all=900), "damaged", dict(username="alice", samples_all=700)]
    summary = dict(leaderboard=rows, num_contributors=250)
    assert standing_in(summary, "alice") == Standing(place=2, num_contributors=250, samples=700, share=700 / 1600)
    assert standing_in(summary, "carol") is None
    assert standing_in({}, "alice") is None and standing_in(dict(leaderboard="x"), "alice") is None


def test_every_phase_has_words_and_texts_of_strangers_are_never_markup():
    for phase in TITLES:
        view = JoinView(
            phase=phase,
            message=EVIL,
            username=EVIL,
            looking_at=EVIL,
            started=0.0,
            check_problem=EVIL,
            epoch=1,
            checks=(fail(EVIL, EVIL, EVIL, EVIL), ok(EVIL, EVIL)),
            standing=Standing(place=1, num_contributors=2, samples=3, share=0.6),
        )
        shown = state_html(view, 3600.0) + checks_html(view) + contribution_html(view) + notice_html(EVIL)
        assert "<img" not in shown and "&lt;img" in shown
    assert set(TITLES) >= ALIVE


def profile(epoch, **values):
    run = TrainingRun(run_id="birds", num_epochs=6, dataset_repository="org/codes")
    names = ("alice", EVIL, "bob")
    board = [dict(username=name, samples_today=9 - place) for place, name in enumerate(names)]
    board += [None, dict(username=7), dict(username="mallory", samples_today="many")]
    condition = condition_of(RunFacts(num_epochs=6, epoch=epoch, num_peers=2), "org/run", now=0.0)
    return RunProfile(
        repository="org/run", run=run, condition=condition, costs=costs_of(run, {}),
        **dict(board=dict(leaderboard=board), picture=Image.new("RGB", (40, 30), "#ff0000"), picture_epoch=4) | values,
    )  # fmt: skip


def test_before_the_start_the_page_says_what_the_run_is_who_is_there_and_what_it_costs():
    shown = run_html(JoinView(profile=profile(5)), {})
    for expected in (
        "org/run</a>",
        "text-to-image",
        "Alive.",
        "The run is at epoch 5 of 6; 2 peers here",
        "image/jpeg",
    ):
        assert expected in shown
    assert "alice (9 samples), bob (7 samples)<" in shown and "img src=x" not in shown and "mallory" not in shown
    assert re.search(r"at least [\d.]+ GiB of a GPU and [\d.]+ GiB of RAM", shown)
    assert "126 MB sent in each round" in shown and "your IP address" in shown


def test_a_run_that_is_over_is_used_and_one_that_cannot_be_read_is_no_error():
    over = JoinView(profile=profile(6))
    assert "The run is over</h2>" in state_html(over, 0.0) and "state finished" in state_html(over, 0.0)
    assert "Draw with it: <code>dalle-collab generate org/run" in run_html(over, {})
    assert 'href="https://a.example">Draw with it' in run_html(over, dict(DEMO_SPACE="https://a.example"))
    shown = state_html(view_after(dict(event="over", message="All is trained."), profile=profile(6)), 0.0)
    assert '<h2 role="status">The run is over</h2><p>All is trained.</p>' in shown
    away = JoinView(profile=RunProfile.unreachable("org/run", "<b>no</b> answer"))
    assert "Unreachable.</b> The run&#x27;s settings cannot be read. &lt;b&gt;no" in run_html(away, {})
    assert "The run cannot be read</h2>" in state_html(away, 0.0)


def test_what_was_given_becomes_a_picture_to_share():
    standing = Standing(place=2, num_contributors=500, samples=12_300, share=0.1)
    view = JoinView(phase="stopped", username="alice", num_samples=40, standing=standing, profile=profile(5))
    shown = gift_html(view, dict(LANDING_SPACE="https://a.example/"))
    assert "alice gave 12,300 samples to org/run" in shown and "?run=org%2Frun&amp;volunteer=alice" in shown
    assert gift_html(dataclasses.replace(view, phase="training"), {}) == ""
    stranger = gift_html(dataclasses.replace(view, username=EVIL), dict(LANDING_SPACE="https://a.example/"))
    assert "A volunteer gave" in stranger and "Your page" not in stranger and "onerror" not in stranger
    long = VolunteerCard(profile=profile(5), username="W" * 96, samples=10**12, standing=standing)
    drawn = Image.open(io.BytesIO(long.png()))
    assert drawn.size == (1200, 630)
    background = drawn.getpixel((0, 0))
    assert {drawn.getpixel((620, y)) for y in range(630)} == {background}, "the name stays beside the pictures"


def test_the_page_says_how_long_and_how_much():
    view = view_after(JOINED, STEP, phase="starting", started=0.0)
    assert "Contributing as alice. Started less than a minute ago." in state_html(view, 59.0)
    assert "Started 59 min ago" in state_html(view, 3550.0) and "2 h 5 min" in state_html(view, 7500.0)
    tiles = contribution_html(view)
    assert "<dd>12.0</dd>" in tiles and "<dd>98%</dd>" in tiles and "3 <small>of 10</small>" in tiles
    assert contribution_html(JoinView(started=0.0)) == "" == checks_html(JoinView()) == notice_html("")


def test_failures_come_first_once_all_checks_are_known():
    results = (ok("Hub", "fine"), fail("clock", "late", "on time", "set it"), warn("disk", "small", "large", "free"))
    running = checks_html(JoinView(checks=results, is_checking=True))
    done = checks_html(JoinView(checks=results))
    assert running.index("Hub") < running.index("clock") and "3 checks so far" in running
    assert done.index("clock") < done.index("disk") < done.index("Hub")
    assert "1 of 3 checks failed." in done and "<b>What to do:</b> set it" in done
    assert done.startswith('<div class="join"><details open>')
    assert "<details open>" not in checks_html(JoinView(checks=results, phase="training"))
    assert "No problems found (1 checks)" in checks_html(JoinView(checks=results[:1]))


def test_the_curve_begins_at_zero_and_says_its_numbers():
    assert sparkline([5.0]) == ""
    drawn = sparkline([0.0, 10.0])
    assert 'points="0.0,54.0 300.0,4.0"' in drawn
    assert "now 10.0, between 0.0 and 10.0" in drawn
    assert "nan" not in sparkline([0.0, 0.0])
