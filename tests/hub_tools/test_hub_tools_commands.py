"""`hub-tools` from a shell: accounts, the check of a root, and help that can be followed."""

import subprocess
import sys

import httpx
import pytest
from typer.testing import CliRunner

from hub_tools.command_line import app
from hub_tools.local_hub import LocalHub


def hub_tools(*arguments):
    command = [sys.executable, "-m", "hub_tools.command_line", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_accounts_are_made_while_the_hub_runs(tmp_path):
    with LocalHub(tmp_path) as hub:
        made = hub_tools("user", "create", "alice", "--root", tmp_path)
        assert made.returncode == 0, made.stderr
        token = made.stdout.strip()
        assert hub_tools("org", "create", "birds", "--root", tmp_path).returncode == 0
        assert hub_tools("org", "add", "birds", "alice", "--role", "admin", "--root", tmp_path).returncode == 0
        reading = hub_tools("user", "token", "alice", "--role", "read", "--root", tmp_path).stdout.strip()
        for held, role in ((token, "write"), (reading, "read")):
            me = httpx.get(f"{hub.endpoint}/api/whoami-v2", headers={"Authorization": f"Bearer {held}"}).json()
            assert me["auth"]["accessToken"]["role"] == role
            assert [(org["name"], org["roleInOrg"]) for org in me["orgs"]] == [("birds", "admin")]
        again = hub_tools("user", "create", "alice", "--root", tmp_path)
        assert (again.returncode, again.stdout) == (1, "")
        assert again.stderr == (
            "hub-tools: The name 'alice' is taken by a user. For another token of a user: hub-tools user token NAME\n"
        )


def test_check_counts_and_names_problems(tmp_path):
    with LocalHub(tmp_path / "hub") as hub:
        import huggingface_hub

        huggingface_hub.HfApi(endpoint=hub.endpoint, token=hub.create_user("alice")).create_repo("alice/run")
    sound = hub_tools("check", "--root", tmp_path / "hub")
    assert (sound.returncode, sound.stdout) == (0, "1 commit, 1 content, 0 unused, 0 problems\n")
    (content,) = (tmp_path / "hub" / "objects").glob("??/??/*")
    content.unlink()
    broken = hub_tools("check", "--root", tmp_path / "hub")
    assert broken.returncode == 1
    assert f"content {content.name} is missing" in broken.stderr
    assert "has 1 problem," in broken.stderr


@pytest.mark.parametrize(
    "command",
    ["serve", "check", "user create", "user token", "org create", "org add", "publish dataset", "publish folder",
     "publish space", "publish run", "bundle space"],
)  # fmt: skip
def test_every_command_explains_itself_with_examples(command):
    shown = CliRunner().invoke(app, [*command.split(), "--help"])
    assert shown.exit_code == 0
    assert f"hub-tools {command} " in shown.stdout


def test_impossible_options_are_refused(tmp_path):
    for option, value, words in (("--port", "70000", "expected 0 to 65535"), ("--part-mebibytes", "0", "at least 1")):
        done = hub_tools("serve", "--root", tmp_path, option, value)
        assert done.returncode == 1
        assert words in done.stderr


def test_help_needs_no_heavy_library():
    heavy = ("torch", "huggingface_hub", "pyarrow", "fastapi")
    code = f"import sys, hub_tools.command_line; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr
