"""What the Dockerfile needs is there, it runs without root and without secrets, and takes the pinned versions.

No image is built here: that needs a container engine.
"""

import json
import re
import subprocess
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PACKAGES = {"dalle_collab", "modeling_dalle_collab", "pipelines", "hub_tools"}
Instruction = tuple[str, str]


def instructions(text: str) -> list[Instruction]:
    """Return the instructions of a Dockerfile with their arguments; a line may go on in the next one."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines()
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in joined)]


@pytest.fixture(scope="module")
def recipe():
    return instructions((ROOT / "Dockerfile").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def copied(recipe):
    """The names that are copied from the checkout."""
    arguments = [rest.split() for word, rest in recipe if word == "COPY" and not rest.startswith("--from=")]
    return {name for words in arguments for name in words[:-1]}


def test_what_is_copied_is_tracked_and_sent_to_the_builder_and_nothing_else_is_sent(copied):
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert copied - {name.partition("/")[0] for name in tracked} == set()
    patterns = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    lines = [line for line in patterns if line and not line.startswith("#")]
    assert lines[0] == "*" and {line[1:] for line in lines if line.startswith("!")} == copied
    assert {"**/*.key", "**/*.pem", "**/__pycache__"} <= set(lines)


def test_everything_that_the_wheel_is_made_of_is_copied(copied, setup_cfg):
    folders = {line.partition("=")[2].strip() for line in setup_cfg["options"]["package_dir"].splitlines() if line}
    texts = {setup_cfg["metadata"]["long_description"].removeprefix("file: "), setup_cfg["metadata"]["license_files"]}
    assert copied == PACKAGES | folders | texts | {"setup.py", "setup.cfg", "pyproject.toml", "constraints.txt"}


def test_the_pinned_versions_are_installed_with_a_python_that_fits(recipe, setup_cfg):
    (install,) = [rest for word, rest in recipe if word == "RUN" and "pip install" in rest]
    assert "--constraint /wheels/constraints.txt" in install and install.endswith(' "$(echo /wheels/*.whl)[all]"')
    values = dict(rest.partition("=")[::2] for word, rest in recipe if word == "ARG")
    assert values == {"PYTHON": "3.11", "TORCH_INDEX": '""'}
    assert Requirement(f"x{setup_cfg['options']['python_requires']}").specifier.contains(f"{values['PYTHON']}.1")
    assert {rest.split()[0] for word, rest in recipe if word == "FROM"} == {"python:${PYTHON}-slim"}


def test_the_command_runs_as_somebody_who_is_not_root_and_keeps_its_state_in_a_volume(recipe, setup_cfg):
    last = dict(recipe)
    assert last["USER"] not in ("root", "0") and f" {last['USER']} " in last_run(recipe)
    (command,) = json.loads(last["ENTRYPOINT"])
    assert f"{command} = " in setup_cfg["options.entry_points"]["console_scripts"]
    assert last["VOLUME"] == last["WORKDIR"] and f"HF_HOME={last['VOLUME']} " in last["ENV"]


def last_run(recipe: list[Instruction]) -> str:
    return [rest for word, rest in recipe if word == "RUN"][-1]


def test_no_secret_is_asked_for_when_the_image_is_built(recipe):
    named = " ".join(rest for word, rest in recipe if word in ("ARG", "ENV", "COPY"))
    assert not re.search(r"token|secret|password|\.key|\.pem|HF_TOKEN", named, re.IGNORECASE)


def test_a_recipe_is_read_with_its_continued_lines_and_without_comments():
    assert instructions("# a\nRUN a \\\n    && b\n\nUSER me\n") == [("RUN", "a && b"), ("USER", "me")]
