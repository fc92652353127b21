"""The joining Space starts from its bundle and gives this machine to a run that is alive on the embedded Hub."""

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import psutil
import pytest
from assistants import assistant
from browsing import SIZES, needs_browser, serious_findings, take_picture, watched_page
from notebooks import executed, outputs_of
from published_runs import LOOPBACK, command_environment
from space_process import started_space

SPACE = Path(__file__).parents[2] / "spaces" / "join_training"
RUN = "org/joined-from-a-page"
PATIENCE = 120_000

pytestmark = [pytest.mark.slow, pytest.mark.swarm, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture(scope="module")
def live_run(training_material, tmp_path_factory):
    """Yield the auxiliary peer of a run that nobody trains yet."""
    training_material.create_run(RUN)
    with assistant(training_material, RUN, tmp_path_factory.mktemp("live"), "aux") as auxiliary:
        auxiliary.wait_until(lambda look: True, "ready")
        yield auxiliary


@pytest.fixture(scope="module")
def token_of_alice(hub):
    return hub.alice_token


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Return the folder for all that the Space writes outside its own."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def environment(hub, home):
    """At home, without a run's name."""
    inherited = {name: value for name, value in command_environment(hub, hub.alice_token).items() if name != "RUN"}
    return {**inherited, "HOST": LOOPBACK, "TMPDIR": str(home), "HF_HOME": str(home / "hub")}


@pytest.fixture(scope="module")
def environment_on_the_hub(environment):
    return {**environment, "SPACE_ID": "alice/join", "SPACE_AUTHOR_NAME": "alice", "RUN": RUN}


def press(page, name):
    button = page.get_by_role("button", name=name, exact=True)
    button.click()


def wait_for_state(page, phase):
    page.locator(f".join .state.{phase}").wait_for(timeout=PATIENCE)


def samples_on(page):
    return int(page.locator(".join .tiles dd").first.inner_text().replace(",", ""))


def trainers_of(space):
    return [child for child in psutil.Process(space.pid).children() if "join" in child.cmdline()]


def family_of(space, at_least):
    """Return all processes under the Space as soon as there are so many."""
    deadline = time.monotonic() + PATIENCE / 1000
    while len(family := psutil.Process(space.pid).children(recursive=True)) < at_least:
        assert time.monotonic() < deadline, family
        time.sleep(0.1)  # nobody tells of a new process
    return family


def test_the_bundle_holds_the_trainer_and_says_its_version(bundle):
    files = {str(path.relative_to(bundle)) for path in bundle.rglob("*")}
    assert {"app.py", "pipelines/command_line/volunteer.py", "pipelines/core/peer/training_peer.py"} <= files
    assert [name for name in files if re.fullmatch(r"dalle_collab-[\d.]+\.dist-info/METADATA", name)]
    assert not [name for name in files if name.startswith(("tests", "spaces"))]


PRESS_ALL = """
import json, os, runpy
from pipelines.tools.pages.joining.join_session import JoinSession
from pipelines.tools.pages.joining.join_view import JoinView
app = runpy.run_path("app.py")
with JoinSession() as session:
    page = app["build_interface"](session, os.environ)
    fields = (os.environ["RUN"], "4", "cpu", 0, 0, True, 50, 0)
    presses = {"pressed": (*fields, None, None), "on_pause": (None,), "on_stop": (None,)}
    answers = [entry.fn(*presses[entry.name])["value"] for entry in page.fns.values() if entry.name in presses]
    print(json.dumps(dict(answers=answers, nothing_started=session.view() == JoinView())))
"""


def test_who_presses_a_greyed_out_button_is_refused_by_the_server(bundle, environment_on_the_hub):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PRESS_ALL],
        cwd=bundle, env=environment_on_the_hub, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["nothing_started"] and len(found["answers"]) == 4
    assert all("Only alice may use this machine" in answer for answer in found["answers"])


def asked(address, headers, body=None):
    """Return the status of what a page in the browser may have sent, with a Host and an Origin that are its own."""
    with contextlib.closing(http.client.HTTPConnection(address.rpartition("/")[2], timeout=60)) as connection:
        path = "/config" if body is None else "/gradio_api/run/predict"
        connection.request("GET" if body is None else "POST", path, body, headers)
        return connection.getresponse().status


def test_no_other_page_in_the_browser_starts_the_trainer(bundle, environment):
    press_stop = json.dumps(dict(fn_index=4, data=[], session_hash="somebody"))
    json_body = {"Content-Type": "application/json"}
    with started_space(bundle, environment) as (_, address):
        port = address.rpartition(":")[2]
        own, strange = f"127.0.0.1:{port}", f"evil.example:{port}"
        rebound = {"Host": strange, "Origin": f"http://{strange}"}
        assert asked(address, dict(Host=own)) == asked(address, dict(Host=f"localhost:{port}")) == 200
        assert asked(address, dict(Host=own, Origin=f"http://{own}") | json_body, press_stop) == 200
        assert asked(address, dict(Host=own) | json_body, press_stop) == 200, "programs send no Origin"
        for headers in (rebound, dict(Host=own, Origin="http://evil.example"), dict(Host=own, Origin="null")):
            assert asked(address, headers | json_body, press_stop) == 403
            assert asked(address, headers | {"Content-Type": "text/plain"}, press_stop) == 403
        assert asked(address, dict(Host=strange)) == 403


@pytest.mark.long
@needs_browser
def test_an_owner_checks_starts_pauses_and_stops_and_visitors_look_on(
    bundle, environment_on_the_hub, live_run, token_of_alice, home, tmp_path
):
    with (
        started_space(bundle, environment_on_the_hub) as (space, address),
        watched_page(address) as page,
    ):
        seen_urls = []
        page.on("request", lambda request: seen_urls.append(request.url))
        page.get_by_text("Only alice may use this machine.").wait_for(timeout=PATIENCE)
        assert page.get_by_role("button", name="Start", exact=True).is_disabled()
        take_picture(page, "join_visitor", tmp_path)
        page.get_by_role("button", name="Sign in with Hugging Face").click()
        page.get_by_role("button", name="Logout (alice)").wait_for(timeout=PATIENCE)
        page.get_by_role("button", name="Limits").click()
        page.get_by_label("Micro-batch").fill("4")
        take_picture(page, "join_ready", tmp_path)
        assert serious_findings(page) == []

        press(page, "Check")
        wait_for_state(page, "checking")
        page.locator(".join .checks li").first.wait_for(timeout=PATIENCE)
        take_picture(page, "join_checking", tmp_path)
        page.get_by_text(re.compile("No problems found|No check failed|checks failed")).wait_for(timeout=PATIENCE)
        assert page.locator(".join .checks li.fail").count() == 0, page.locator(".join .checks").inner_text()
        assert page.locator(".join .checks li").count() > 8
        take_picture(page, "join_checked", tmp_path)

        page.get_by_role("button", name="Start", exact=True).dblclick()
        wait_for_state(page, "training")
        assert len(trainers_of(space)) == 1
        arguments = [word for child in psutil.Process(space.pid).children(recursive=True) for word in child.cmdline()]
        live_run.wait_until(lambda look: look["num_trainers"] == 1 and look["summary"], "hearing of the page's samples")
        page.wait_for_function("document.querySelector('.join .speed polyline') !== null", timeout=PATIENCE)
        take_picture(page, "join_training", tmp_path)
        assert serious_findings(page) == []

        page.emulate_media(color_scheme="dark")
        page.goto(f"{address}?__theme=dark")
        width, height = SIZES["phone"]
        page.set_viewport_size(dict(width=width, height=height))
        wait_for_state(page, "training")
        take_picture(page, "join_training_dark", tmp_path)
        assert serious_findings(page) == []
        press(page, "Pause")
        wait_for_state(page, "paused")
        rested = samples_on(page)
        take_picture(page, "join_paused_dark", tmp_path)
        page.emulate_media(color_scheme="light")
        page.goto(address)
        wait_for_state(page, "paused")
        other = page.context.browser.new_page()
        other.goto(address)
        other.locator(".join .state.paused").wait_for(timeout=PATIENCE)
        assert other.get_by_role("button", name="Stop", exact=True).is_disabled()
        other.close()
        press(page, "Resume")
        wait_for_state(page, "training")
        page.wait_for_function(
            "least => +document.querySelector('.join .tiles dd').innerText.replace(',', '') > least",
            arg=rested, timeout=PATIENCE,
        )  # fmt: skip
        take_picture(page, "join_training", tmp_path)
        press(page, "Stop")
        wait_for_state(page, "stopped")
        page.get_by_role("button", name="Trainer output").click()
        page.get_by_label("Log").wait_for()
        said = page.get_by_label("Log").input_value()
        assert "Left org/joined-from-a-page: contributed" in said
        take_picture(page, "join_stopped", tmp_path)
        assert psutil.Process(space.pid).children(recursive=True) == []

        shown = page.content() + said + "\n".join(seen_urls) + "\n".join(arguments)
        assert token_of_alice not in shown
    written = [path for folder in (home, bundle) for path in folder.rglob("*") if path.is_file()]
    assert written and [path for path in written if token_of_alice.encode() in path.read_bytes()] == []


@needs_browser
def test_an_owner_trains_in_a_run_over_the_hub_and_the_dashboard_reads_it_from_the_lists(
    training_material, bundle, environment, tmp_path
):
    settings = dict(wire="hub", window_seconds=8, local_steps=4, inner_batch_size=8, target_batch_size=8)
    run = training_material.create_run("org/joined-over-the-hub", bucket_interval_epochs=2, **settings)
    at_home = {**environment, "RUN": run}
    with (
        assistant(training_material, run, tmp_path, "closer") as closer,
        started_space(bundle, at_home) as (space, address),
        watched_page(address) as page,
    ):
        page.get_by_role("button", name="Limits").click()
        page.get_by_label("Micro-batch").fill("4")
        press(page, "Start")
        wait_for_state(page, "training")
        closer.wait_until(lambda look: look["held_epoch"] >= 2 and look["num_trainers"] == 1, "a round of the page's")
        page.wait_for_function("/[1-9]/.test(document.querySelector('.join .tiles dd').innerText)", timeout=PATIENCE)
        seen = peers_seen(run, training_material.settings(run), at_home, tmp_path)
        assert [(peer["introduction"]["username"], peer["metrics"]["num_samples"] > 0) for peer in seen] == [
            ("alice", True)
        ]
        press(page, "Stop")
        wait_for_state(page, "stopped")
        assert psutil.Process(space.pid).children(recursive=True) == []


def peers_seen(repository, run, environment, folder):
    """Return the peers of the first look at which the dashboard's program sees any."""
    values = dict(repository=repository, run=json.loads(run.to_json()), identity_file=str(folder / "identity.key"))
    command = [sys.executable, "-W", "ignore", "-m", "pipelines.tools.pages.dashboard.swarm.swarm_watch"]
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with subprocess.Popen(command, env=environment, start_new_session=True, **pipes) as program:
        print(json.dumps(values), file=program.stdin, flush=True)
        seen = next(filter(None, (json.loads(line)["peers"] for line in program.stdout)))
        os.killpg(program.pid, signal.SIGTERM)
    return seen


@pytest.mark.long
@needs_browser
def test_at_home_mistakes_are_messages_and_the_page_ends_with_its_trainer(bundle, environment, live_run, tmp_path):
    with started_space(bundle, environment) as (space, address):
        with watched_page(address, "phone") as page:
            wait_for_state(page, "idle")
            press(page, "Start")
            page.get_by_text("No run is named. Write its name on the Hub: ORG/RUN.").wait_for(timeout=PATIENCE)
            page.get_by_label("Run", exact=True).fill("<b>birds</b>")
            press(page, "Start")
            page.get_by_text("'<b>birds</b>' is not the name of a run.").wait_for(timeout=PATIENCE)
            page.get_by_label("Run", exact=True).fill("org/no-such-run")
            press(page, "Start")
            wait_for_state(page, "failed")
            page.get_by_text("There is no model repository org/no-such-run").first.wait_for(timeout=PATIENCE)
            take_picture(page, "join_failed", tmp_path)
            assert serious_findings(page) == []
            page.get_by_label("Run", exact=True).fill(RUN)
            press(page, "Start")
            wait_for_state(page, "starting")
        family = family_of(space, 2)  # the trainer and the guard of its group
        os.kill(space.pid, signal.SIGTERM)
        assert psutil.wait_procs(family, timeout=20)[1] == []
        assert space.wait(20) == 0


@pytest.mark.long
def test_the_notebook_checks_joins_and_leaves(environment, live_run, token_of_alice, tmp_path):
    limits = dict(RUN=RUN, MICRO_BATCH="4", MAX_EPOCHS="2", DEVICE="cpu")
    notebook = executed(SPACE / "join_training.ipynb", {**environment, **limits}, tmp_path)
    checks, joined, log, left = outputs_of(notebook)[-4:]
    assert re.search("No problems found|No check failed", checks)
    assert "Finished</h2>" in joined, log
    assert "Contributed" in joined
    assert f"Left {RUN}: contributed" in log
    assert re.search(r"Contributed [\d,]+ samples. Thank you.", left) and "Contributed 0 samples" not in left
    assert token_of_alice not in nbformat.writes(notebook)
