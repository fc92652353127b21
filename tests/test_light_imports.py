"""The command lines answer at once: importing them and asking for help loads no heavy library."""

import json
import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "datasets", "hivemind", "gradio", "open_clip", "bitsandbytes", "matplotlib", "numpy")

LOADED_AFTER_IMPORT = f"""
import importlib, json, sys
importlib.import_module(sys.argv[1])
print(json.dumps(sorted({set(HEAVY)!r} & set(sys.modules))))
"""

LOADED_AFTER_EVERY_HELP = f"""
import importlib, json, sys
import typer
from typer.testing import CliRunner

app = importlib.import_module(sys.argv[1]).app

def ask_for_help(command, words):
    result = CliRunner().invoke(app, [*words, "--help"])
    assert result.exit_code == 0, (words, result.output)
    num_asked = 1
    for name, inner in getattr(command, "commands", {{}}).items():
        num_asked += ask_for_help(inner, [*words, name])
    return num_asked

num_asked = ask_for_help(typer.main.get_command(app), [])
print(json.dumps([num_asked, sorted({set(HEAVY)!r} & set(sys.modules))]))
"""

WITHOUT_HIVEMIND = """
import importlib, sys
sys.modules["hivemind"] = None
for name in (
    "core.run.task", "features.publishing.auxiliary.assembly", "features.publishing.auxiliary.auxiliary_peer",
    "features.publishing.auxiliary.publishing.hub_publisher", "features.publishing.metrics.run_metrics",
    "features.publishing.publishable_task", "features.publishing.repository.run_bucket",
    "features.publishing.repository.snapshot", "joining.over_the_hub", "features.hub_rounds.auditing",
    "command_line.join", "command_line.terminal.training_peer", "command_line.terminal.auxiliary_peer",
):
    importlib.import_module(f"pipelines.{name}")
for open_kind in importlib.import_module("pipelines.tasks.choice").TASKS.values():
    open_kind()
"""


def answer(code: str, module: str):
    """Run code in a fresh interpreter and return the JSON that it prints."""
    done = subprocess.run([sys.executable, "-c", code, module], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("module", ["pipelines.command_line.main", "hub_tools.command_line", "hub_tools.local_hub"])
def test_importing_a_command_line_loads_no_heavy_library(module):
    assert answer(LOADED_AFTER_IMPORT, module) == []


@pytest.mark.parametrize("module", ["pipelines.command_line.main", "hub_tools.command_line"])
def test_the_help_of_every_command_loads_no_heavy_library(module):
    num_asked, loaded = answer(LOADED_AFTER_EVERY_HELP, module)
    assert num_asked > 10
    assert loaded == []


def test_what_publishes_a_run_needs_no_hivemind():
    loaded = subprocess.run([sys.executable, "-c", WITHOUT_HIVEMIND], capture_output=True, text=True, timeout=120)
    assert loaded.returncode == 0, loaded.stderr


def test_a_heavy_import_would_be_seen():
    assert "numpy" in answer(LOADED_AFTER_IMPORT, "numpy")
