"""The dashboard as a Space from its bundle: people and programs see a recorded run, and a swarm with rogues in it."""

import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from agent_client import use_tools
from browsing import each_size, needs_browser, serious_findings, take_picture, watched_page
from crowd import EPOCH, crowd
from huggingface_hub import HfApi
from recorded_run import publish_recorded_run
from swarm_of_processes import tiny_run

SPACE = Path(__file__).parents[2] / "spaces" / "training_dashboard"
RUN, OTHER_RUN = "org/recorded-run", "org/other-run"
NUM_PEERS, NUM_USERS = 130, 120
NUM_ROGUES_LEFT_OUT = 2
"""Of the rogues, the one that is too fast is shown without speed; the absurd loss is left out."""

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture(scope="module")
def environment(hub, tmp_path_factory):
    run = tiny_run(run_id="recorded", num_epochs=2000, num_warmup_epochs=200, progress_expiration_seconds=30.0)
    log = tmp_path_factory.mktemp("crowd") / "crowd.log"
    with crowd(run.swarm_id, NUM_PEERS, run.progress_expiration_seconds, log) as address:
        publish_recorded_run(
            HfApi(endpoint=hub.endpoint, token=hub.alice_token),
            RUN,
            run.replace(entry_addresses=[address]),
            num_epochs=EPOCH - 1,
            num_users=NUM_USERS,
            end=time.time() - 20,
            checkpoints=range(100, EPOCH, 100),
        )
        publish_recorded_run(
            HfApi(endpoint=hub.endpoint, token=hub.alice_token), OTHER_RUN, run, num_epochs=400, num_users=1,
            end=time.time(), checkpoints=(100,),
        )  # fmt: skip
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        yield {**kept, **hub.environment(), "RUN": RUN, "DEMO_SPACE": "org/demo", "OMP_NUM_THREADS": "1"}


def fetch(address, path):
    with urllib.request.urlopen(f"{address.rstrip('/')}/{path}", timeout=30) as answer:
        return answer.read().decode()


def fetch_json(address, path):
    return json.loads(fetch(address, path))


@pytest.fixture(scope="module")
def filled(address):
    """The Space, once it has read the Hub and seen the whole crowd."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        run, peers = fetch_json(address, "api/run"), fetch_json(address, "api/peers")
        if not run["problems"] and len(peers) == NUM_PEERS:
            return address
        time.sleep(0.3)
    raise AssertionError(f"{len(peers)} peers, {run}")


def test_the_bundle_needs_no_model_to_start(bundle):
    files = {str(path.relative_to(bundle)) for path in bundle.rglob("*.py")}
    assert {"app.py", "pipelines/tools/pages/dashboard/swarm/swarm_watch.py", "pipelines/core/swarm/node.py"} <= files
    assert not [
        file
        for file in files
        if file.startswith(
            ("pipelines/tasks/text_to_image/generation", "pipelines/tasks/text_to_image/data_preparation")
        )
    ]
    heavy = "{'torch', 'hivemind', 'gradio'}"
    loaded = f"import sys, pipelines.tools.pages.dashboard.dashboard; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", loaded], cwd=bundle, capture_output=True, text=True)
    assert done.stdout.strip() == "set()", done.stderr


def test_programs_get_the_run_its_peers_and_its_history(client, filled):
    run = client.predict(api_name="/run")
    assert (run["epoch"], run["num_epochs"], run["num_peers"]) == (EPOCH, 2000, NUM_PEERS)
    peers = client.predict("volunteer-1", api_name="/peers")
    assert {peer["username"] for peer in peers} == {f"volunteer-{number}" for number in range(100, NUM_PEERS)}
    assert {peer["state"] for peer in peers} == {"training"} and peers[0]["num_samples"] > 10_000
    history = client.predict(50, 100, 40, api_name="/history")
    assert history["epoch"][-1] == EPOCH and history["epoch"][0] >= EPOCH / 2 and len(history["loss"]) <= 40
    board = client.predict("week", api_name="/leaderboard")
    assert len(board) == NUM_USERS and board == sorted(board, key=lambda row: -row["samples"])
    assert [row["epoch"] for row in client.predict(api_name="/checkpoints")][:2] == [1100, 1000]
    evaluations = client.predict(api_name="/evaluations")
    assert [row["epoch"] for row in evaluations["held_out"]] == list(range(100, EPOCH, 100))
    newest = evaluations["figures"][-1]
    assert newest["name"] == "clip_score" and newest["low"] < newest["value"] < newest["high"]
    alerts = {alert["kind"]: alert["text"] for alert in client.predict(api_name="/alerts")}
    assert set(alerts) == {"impossible figures", "no auxiliary peer"}
    assert f"{NUM_ROGUES_LEFT_OUT} peers" in alerts["impossible figures"]


def test_an_agent_reads_the_run_and_its_peers(filled):
    tools, (run, board) = use_tools(filled, ("run_values", {}), ("leaderboard_values", dict(span="week")))
    kinds = ("run", "peer", "leaderboard", "history", "evaluation", "alert", "checkpoint", "server", "serving")
    assert set(tools) == {f"{kind}_values" for kind in kinds}, "what the page polls is no tool"
    assert not run.isError and f'"epoch": {EPOCH}' in run.content[0].text.replace("'", '"')
    assert not board.isError and tools["leaderboard_values"].description


def test_plain_http_gives_the_same_and_says_what_is_wrong_with_a_question(filled):
    assert len(fetch_json(filled, "api/leaderboard?span=all")) == NUM_USERS
    with pytest.raises(urllib.error.HTTPError) as failure:
        fetch(filled, "api/leaderboard?span=year")
    with failure.value as answer:
        assert answer.code == 422 and "today, week, all" in json.load(answer)["error"]
    with pytest.raises(urllib.error.HTTPError) as failure:
        fetch(filled, "reel/epoch-secret.webp")
    with failure.value as answer:
        assert answer.code == 404


def test_prometheus_can_read_every_figure(filled):
    line = re.compile(r'(dalle_collab_\w+)\{((?:\w+="(?:[^"\\\n]|\\["\\n])*",?)*)\} (-?[\d.e+-]+)')
    values = {}
    for text in fetch(filled, "metrics").splitlines():
        if not text.startswith("#"):
            found = line.fullmatch(text)
            assert found, text
            values.setdefault(found[1], []).append((found[2], float(found[3])))
    assert sum(number for _, number in values["dalle_collab_peers"]) == NUM_PEERS
    assert len(values["dalle_collab_peer_samples_per_second"]) == NUM_PEERS - 1  # the one that is too fast
    assert [number for _, number in values["dalle_collab_up"]] == [1, 1]
    assert any(
        r"onerror=\"document.title=1\"" in labels for labels, _ in values["dalle_collab_peer_samples_per_second"]
    )


def test_a_space_without_a_run_says_which_setting_is_missing(bundle):
    environment = {name: value for name, value in os.environ.items() if name not in ("RUN", "PYTHONPATH")}
    result = subprocess.run([sys.executable, "app.py"], cwd=bundle, env=environment, capture_output=True, text=True)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == "RUN is not set. Name the run to show: RUN=ORG/RUN"
    assert "Traceback" not in result.stderr


def open_tab(page, name):
    """Open a tab, which on a narrow page may lie in the menu of those that have no room."""
    if page.get_by_role("tab", name=name).count() == 0:
        page.locator(".overflow-menu > button").click()
        page.locator(".overflow-dropdown").get_by_text(name).click()
    else:
        page.get_by_role("tab", name=name).click()


def look_closer(page, tmp_path):
    """Read a value, compare, smooth and stretch the loss, and choose a part of it with the mouse."""
    loss = page.locator(".chart").first
    loss.locator(".plot").press("Home")
    assert loss.locator("output").inner_text().startswith("epoch 2: ")
    page.get_by_label("Log scale").check()
    page.get_by_label("number input for Smoothing").fill("0.9")
    page.get_by_label("Compare with").fill("org/nobody")
    page.get_by_label("Compare with").press("Enter")
    page.get_by_text("org/nobody: ").wait_for(timeout=30_000)
    page.get_by_label("Compare with").fill(OTHER_RUN)
    page.get_by_label("Compare with").press("Enter")
    loss.locator("path.other").wait_for(timeout=30_000)
    take_picture(page, "dashboard_compared", tmp_path)
    box = loss.locator("svg").bounding_box()
    page.mouse.move(box["x"] + 0.1 * box["width"], box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 60, steps=3)
    assert OTHER_RUN in loss.locator("output").inner_text()
    page.mouse.up()
    page.wait_for_function("Number(document.querySelector('.plot').dataset.low) > 100", timeout=30_000)
    assert float(loss.locator(".plot").get_attribute("data-high")) < 400
    assert page.get_by_label("number input for From").input_value() not in ("", "0")
    loss.locator("svg").dblclick()
    page.wait_for_function("document.querySelector('.plot').dataset.low === '1.0'", timeout=30_000)


@needs_browser
@each_size
def test_a_person_reads_curves_peers_board_and_checkpoints(filled, size, tmp_path):
    theme = "light" if size == "desktop" else "dark"
    with watched_page(f"{filled}?__theme={theme}", size, allowed=(filled.rstrip("/"),)) as page:
        page.locator(".chart svg").nth(6).wait_for(timeout=60_000)
        page.get_by_text("epoch of 2,000").wait_for()
        take_picture(page, "dashboard_course", tmp_path)
        assert serious_findings(page) == []
        look_closer(page, tmp_path)
        page.get_by_label("time (UTC)").check()
        page.wait_for_function("!document.querySelector('.chart svg').ariaLabel.includes('from epoch')", timeout=30_000)
        open_tab(page, "Peers")
        page.get_by_text(f"rows 1–100 of {NUM_PEERS} peers, page 1 of 2").first.wait_for(timeout=30_000)
        search = page.get_by_label("Search")
        for words, shown in (
            ("onerror", '<img src=x onerror="document.title=1">'),
            ("bold", "{{constructor}} ${alert(1)} **bold**"),
        ):
            search.fill(words)
            page.get_by_role("cell", name=shown, exact=True).wait_for(timeout=30_000)
        assert page.title() == f"{RUN}: training dashboard"
        search.fill("")
        page.get_by_text("page 1 of 2").first.wait_for(timeout=30_000)
        page.get_by_role("button", name="epoch").press("Enter")
        page.locator("[aria-sort=descending] [data-sort=epoch]:focus").wait_for(timeout=30_000)
        take_picture(page, "dashboard_peers", tmp_path)
        assert serious_findings(page) == []
        for tab, sign in (
            ("Leaderboard", f"{NUM_USERS} users"),
            ("Checkpoints", "Generate with this"),
            ("Progress reel", "epoch 1,100"),
        ):
            open_tab(page, tab)
            page.get_by_text(sign).first.wait_for(timeout=30_000)
            if tab == "Progress reel":
                page.wait_for_function("document.querySelector('.reel img').naturalWidth > 0", timeout=30_000)
            take_picture(page, f"dashboard_{tab.split()[0].lower()}", tmp_path)
            assert serious_findings(page) == []


@needs_browser
def test_two_hundred_impatient_clicks_leave_the_page_up(filled):
    with watched_page(filled) as page:
        page.locator(".chart svg").nth(6).wait_for(timeout=60_000)
        page.evaluate(
            """() => { const choices = [...document.querySelectorAll('input[type=radio]')].slice(0, 2);
            for (let click = 0; click < 200; click++) choices[(click + 1) % 2].click(); }"""
        )
        page.get_by_label("time (UTC)").check()
        page.wait_for_function("!document.querySelector('.chart svg').ariaLabel.includes('from epoch')", timeout=30_000)
    assert fetch_json(filled, "api/run")["num_peers"] == NUM_PEERS
