"""`dalle-collab run authorize`: the run says who admits, peers read why they are refused, and a Space of its own."""

import socket
import subprocess
import sys
import time

import httpx2
import pytest
from admission_material import body_of, edit_lists, proven_request, publish_run
from huggingface_hub import HfApi
from published_runs import command_environment, interrupt, started_command, the_line
from swarm_of_processes import tiny_run

from hub_tools.publishing.account_proof import HubAccount
from pipelines.command_line.terminal.entry_words import who_may_join
from pipelines.core.admission.tokens import TokenCheck
from pipelines.core.run.training_run import TrainingRun
from pipelines.features.admission_service.server import load_or_create_key

pytestmark = pytest.mark.slow

DEAD_ADDRESS = "/ip4/127.0.0.1/tcp/9/p2p/12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo"


@pytest.fixture(scope="module")
def run_of_its_own(training_material):
    """A run that can be joined as far as the door, and its settings as they are on the Hub at the moment."""
    name = training_material.create_run("org/authorized-run", run_id="run", entry_addresses=[DEAD_ADDRESS])
    return name, lambda: TrainingRun.from_file(training_material.file(name, "training_run.json"))


def until_it_says(process, log, words, seconds=120):
    deadline = time.monotonic() + seconds
    while words not in log.read_text():
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)


def test_the_service_announces_itself_admits_members_and_ends_with_ctrl_c(hub, commands, run_of_its_own, tmp_path):
    name, settings = run_of_its_own
    assert settings().is_open
    key_file, log = tmp_path / "authority.key", tmp_path / "service.log"
    arguments = ["run", "authorize", name, "--port", "0", "--key-file", str(key_file), "--drawing", "everybody"]
    with started_command(hub, log, *arguments) as process:
        until_it_says(process, log, f"Admitting peers to {name} at http://127.0.0.1:")
        announced = settings()
        assert announced.who_may_draw == "everybody"
        assert key_file.stat().st_mode & 0o777 == 0o600
        assert announced.authorization_key == load_or_create_key(key_file).public
        check = TokenCheck("run", announced.authorization_key)
        answer = ask(announced.authorization_service, hub, announced.authorization_key)
        assert check.check(answer["token"], time.time()).username == "alice"

        # A volunteer who may not join reads it in one line, before any peer is started.
        outsider = hub.create_user("outsider")
        line = the_line(commands.run("join", name, token=outsider, is_worker=True))
        assert f"{name} does not admit you: outsider is not a member of org. Ask to join" in line
        line = the_line(commands.run("join", name, token="", is_worker=True))
        assert f"{name} is not open to everybody" in line and line.endswith("hf auth login")
        # Who is admitted is told apart from who finds the door and nobody behind it.
        done = commands.run("join", name, "--host", "/ip4/127.0.0.1/tcp/0", is_worker=True)
        assert "they do not accept its admission, or the run's auxiliary peer is down" in done.stderr
        assert hub.alice_token not in done.stderr + done.stdout + log.read_text()
        shown = commands.run("run", "show", name).stdout
        assert f"users admitted by {announced.authorization_service}" in shown
        assert interrupt(process) == 0, log.read_text()
    line = the_line(commands.run("run", "authorize", name, "--token-minutes", "0.1", "--key-file", key_file))
    assert "Tokens would last 6 s; expected at least 40 s" in line

    assert f"{name} is OPEN" in commands.run("run", "authorize", name, "--open").stdout
    assert settings().is_open and settings().authorization_key == ""
    assert "everybody: the run is OPEN" in commands.run("run", "show", name).stdout
    assert "is an OPEN run: anyone may join, nobody is checked." in who_may_join(settings(), name)
    assert f"admitted by {announced.authorization_service}" in who_may_join(announced, name)


def ask(address, hub, authority_key):
    account = HubAccount(HfApi(endpoint=hub.endpoint, token=hub.alice_token))
    return httpx2.post(f"{address}/token", json=body_of(proven_request(account, authority_key)), timeout=60).json()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--public-address", "http://door.example"], "is not encrypted, and not in a private network"),
        (["--public-address", "https://user:" + "pass@door.example"], "expected for example https://"),
        (["--write-space", "folder"], "Peers must know where the Space will be"),
        (["--drawing", "friends"], "--drawing is 'friends'; expected one of members, everybody"),
        (["--token-minutes", "0"], "lifetime_seconds is 0.0; expected a number above 0"),
    ],
    ids=["not encrypted", "with a password", "Space without address", "who is that", "no life"],
)
def test_a_mistake_of_the_organiser_is_one_line(commands, run_of_its_own, tmp_path, arguments, message):
    arguments = [*arguments, "--key-file", str(tmp_path / "key")]
    assert message in the_line(commands.run("run", "authorize", run_of_its_own[0], *arguments))


def test_lists_that_are_wrong_are_mended_before_the_service_starts(hub, commands, tmp_path):
    publish_run(hub, "org/bad-lists", tiny_run(run_id="run").to_json())
    edit_lists(hub, "org/bad-lists", '{"ban": "mallory"}')
    line = the_line(commands.run("run", "authorize", "org/bad-lists", "--key-file", str(tmp_path / "key")))
    assert "'ban' in admission.json is not a list" in line and "Fix admission.json in org/bad-lists first" in line


def test_the_service_runs_as_a_space_where_the_project_is_not_installed(hub, commands, tmp_path):
    publish_run(hub, "org/space-run", tiny_run(run_id="run").to_json())
    key_file, space = tmp_path / "key", tmp_path / "door"
    address = "https://org-door.hf.space"
    done = commands.run(
        "run", "authorize", "org/space-run", "--public-address", address, "--write-space", space, "--key-file", key_file
    )
    assert done.returncode == 0, done.stderr
    assert "hub-tools publish folder" in done.stdout and "AUTHORIZATION_KEY" in done.stdout
    key_line = key_file.read_text().strip()
    assert key_line not in done.stdout + done.stderr
    assert all(key_line not in path.read_text() for path in space.rglob("*.*") if path.is_file())
    assert not (space / "pipelines" / "core" / "averaging").exists()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = command_environment(hub, hub.alice_token)
    environment |= {"AUTHORIZATION_KEY": key_line, "GRADIO_SERVER_PORT": str(port)}
    environment.pop("PYTHONPATH", None)
    process = subprocess.Popen(
        [sys.executable, "app.py"],
        cwd=space,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout.readline().strip() == "Serving org/space-run."
        described = httpx2.get(f"http://127.0.0.1:{port}/", timeout=60).json()
        assert described["authorization_key"] == load_or_create_key(key_file).public
        token = ask(f"http://127.0.0.1:{port}", hub, described["authorization_key"])["token"]
        check = TokenCheck("run", described["authorization_key"])
        assert check.check(token, time.time()).username == "alice"
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()
    without_key = {**environment, "AUTHORIZATION_KEY": ""}
    done = subprocess.run([sys.executable, "app.py"], cwd=space, env=without_key, capture_output=True, text=True)
    assert done.returncode == 1 and "AUTHORIZATION_KEY has no key" in done.stderr
