"""What the isolated interpreters of other tests see and do not see."""

import importlib.metadata
import subprocess
import sys

import pytest
from isolation import PROJECT, environment_without, packages_beside
from packaging.requirements import Requirement
from space_process import requirements_of

from hub_tools.publishing.space_bundling import space_folders

SPACES = [folder for folder in space_folders().values() if (folder / "requirements.txt").is_file()]
LOOK = """
import importlib.util, sys
print([name for name in sys.argv[1:] if importlib.util.find_spec(name) is not None])
"""


def found_without(packages, names, **options):
    command = [sys.executable, "-c", LOOK, *names]
    environment = environment_without(packages, **options)
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


def test_hidden_packages_are_found_neither_installed_nor_in_the_repository(tmp_path):
    names = (*PROJECT, "hub_tools.local_hub", "einops", "rich", "json")
    found = found_without([*PROJECT, "einops"], [*PROJECT, *names[4:]])
    assert found == "['rich', 'json']"
    with pytest.raises(subprocess.CalledProcessError) as error:
        found_without(PROJECT, names)
    assert "No module named 'hub_tools'" in error.value.stderr


def test_what_lies_in_the_visible_folder_is_found(tmp_path):
    (tmp_path / "hub_tools").mkdir()
    (tmp_path / "hub_tools" / "__init__.py").touch()
    look = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{LOOK}"
    found = subprocess.run(
        [sys.executable, "-c", look, *PROJECT],
        env=environment_without(PROJECT, visible_folder=tmp_path), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert found.stdout.strip() == "['hub_tools']"


def test_requirements_bring_their_dependencies_and_extras_and_nothing_else():
    beside = packages_beside(["huggingface_hub>=2", "gradio[oauth]"])
    assert {"torch", "transformers", "hivemind", *PROJECT} <= beside
    assert not beside & {"huggingface_hub", "yaml", "gradio", "gradio_client", "authlib", "itsdangerous"}
    assert "authlib" in packages_beside(["gradio"])


@pytest.mark.parametrize("space", SPACES, ids=lambda space: space.name)
def test_the_spaces_are_tested_with_the_versions_that_they_ask_for(space):
    for line in requirements_of(space):
        wanted = Requirement(line)
        assert wanted.specifier.contains(importlib.metadata.version(wanted.name)), line
