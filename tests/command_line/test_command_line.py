"""What all commands have in common: help with examples, one line for a mistake, and the installed scripts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import hub_tools.command_line
import pipelines.command_line.main

APPS = {"dalle-collab": pipelines.command_line.main.app, "hub-tools": hub_tools.command_line.app}
COMMANDS = {name: typer.main.get_command(app) for name, app in APPS.items()}


def command_paths(command, words: tuple[str, ...]):
    """Yield the words and the command of everything below a command, itself included."""
    yield words, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from command_paths(inner, (*words, name))


EVERYTHING = [pair for name, command in COMMANDS.items() for pair in command_paths(command, (name,))]
GROUPS = [pair for pair in EVERYTHING if hasattr(pair[1], "commands")]
LEAVES = [pair for pair in EVERYTHING if not hasattr(pair[1], "commands")]


def name_of(value: object) -> str | None:
    return " ".join(value) if isinstance(value, tuple) else ""


def invoke(words: tuple[str, ...], *arguments: str, columns: int = 120):
    return CliRunner(env={"COLUMNS": str(columns)}).invoke(APPS[words[0]], [*words[1:], *arguments])


def run(*words: str, **variables: str) -> subprocess.CompletedProcess:
    """Run an installed script as a person would."""
    script = Path(sys.executable).with_name(words[0])
    environment = {**os.environ, "COLUMNS": "120", **variables}
    return subprocess.run([script, *words[1:]], capture_output=True, text=True, env=environment, timeout=120)


@pytest.mark.parametrize(("words", "command"), LEAVES, ids=name_of)
def test_a_command_explains_itself_with_examples_that_start_with_its_name(words, command):
    result = invoke(words, "--help")
    assert result.exit_code == 0
    assert "Traceback" not in result.output
    _, _, examples = result.output.partition("Example")
    assert " ".join(words) in examples


@pytest.mark.parametrize(("words", "command"), LEAVES, ids=name_of)
def test_every_argument_and_option_is_explained(words, command):
    unexplained = [parameter.name for parameter in command.params if not getattr(parameter, "help", None)]
    assert unexplained == []


@pytest.mark.parametrize(("words", "command"), LEAVES, ids=name_of)
def test_no_option_is_cut_short_in_the_usual_terminal(words, command):
    shown = invoke(words, "--help", columns=80).output
    names = [name for parameter in command.params for name in parameter.opts if name.startswith("--")]
    assert [name for name in names if name not in shown] == []


@pytest.mark.parametrize(("words", "command"), GROUPS, ids=name_of)
def test_a_group_without_a_command_shows_what_there_is(words, command):
    result = invoke(words)
    assert "Usage" in result.output
    assert all(name in result.output for name in command.commands)


@pytest.mark.parametrize(("words", "command"), LEAVES, ids=name_of)
def test_an_option_that_does_not_exist_is_a_usage_error(words, command):
    result = invoke(words, "--no-such-option")
    assert result.exit_code == 2
    assert "No such option: --no-such-option" in result.output


@pytest.mark.parametrize("name", APPS)
def test_the_installed_script_shows_its_help(name):
    done = run(name, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"Usage: {name}" in done.stdout


def test_a_mistake_is_one_line_and_exit_code_1(tmp_path):
    done = run("dalle-collab", "generate", "org/run", "--prompts", str(tmp_path / "none.txt"))
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("dalle-collab: ") and "none.txt: No such file or directory" in line


def test_the_traceback_of_a_mistake_is_there_for_those_who_ask(tmp_path):
    missing = str(tmp_path / "none.txt")
    done = run("dalle-collab", "generate", "org/run", "--prompts", missing, DALLE_COLLAB_TRACEBACK="1")
    assert done.returncode == 1
    assert "Traceback (most recent call last)" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("dalle-collab: ")


def test_a_command_that_does_not_exist_is_a_usage_error():
    done = run("hub-tools", "no-such-command")
    assert done.returncode == 2
    assert "No such command 'no-such-command'" in done.stderr
