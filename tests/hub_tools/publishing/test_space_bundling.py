"""Bundles of Spaces are self-contained: they run where the project is not installed."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

from hub_tools.publishing.folder_publishing import space_sdk
from hub_tools.publishing.space_bundling import PACKAGES, bundle_folder, bundle_space, find_space, imported_modules

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


@pytest.fixture
def space(tmp_path):
    """A Space that imports some of the project's modules, in several ways."""
    folder = tmp_path / "my_space"
    (folder / "__pycache__").mkdir(parents=True)
    (folder / "README.md").write_text("---\ntitle: Mine\nsdk: gradio\n---\n")
    (folder / "requirements.txt").write_text("pyyaml\n")
    (folder / "app.py").write_text(
        "import json\n"
        "import hub_tools.endpoint\n"
        "def late():\n"
        "    from hub_tools.local_hub.protocol import client_paths\n"
        "    return client_paths.check_name('fine', 'repository')\n"
        "print(json.dumps([hub_tools.endpoint.is_public_hub('https://huggingface.co'), late()]))\n"
    )
    (folder / "__pycache__" / "app.cpython.pyc").write_bytes(b"junk")
    return folder


def test_a_bundle_holds_what_is_imported_and_nothing_else(space, tmp_path):
    files = {str(path) for path in bundle_folder(space, tmp_path / "bundle")}
    assert {"app.py", "README.md", "requirements.txt"} <= files
    assert {"hub_tools/__init__.py", "hub_tools/endpoint.py", "hub_tools/local_hub/protocol/client_paths.py"} <= files
    # Reached through client_paths, and through the package that holds it.
    assert {"hub_tools/local_hub/protocol/hub_error.py", "hub_tools/local_hub/__init__.py"} <= files
    assert "hub_tools/local_hub/server.py" not in files
    assert not any("pycache" in name or name.startswith(("pipelines", "modeling")) for name in files)


def test_a_bundle_runs_in_a_fresh_interpreter_without_the_project(space, tmp_path):
    bundle_folder(space, tmp_path / "bundle")
    # -I hides the environment and the current folder, -S the installed packages: only the bundle is left.
    code = "import sys, runpy; sys.path.insert(0, '.'); runpy.run_path('app.py')"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], cwd=tmp_path / "bundle", capture_output=True, text=True, timeout=60
    )
    assert done.stdout == '[true, "fine"]\n', done.stderr


def test_a_bundle_knows_the_version_of_the_project_that_it_holds(space, tmp_path):
    bundle_folder(space, tmp_path / "bundle")
    code = "import sys, importlib.metadata; sys.path.insert(0, '.'); print(importlib.metadata.version('dalle-collab'))"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], cwd=tmp_path / "bundle", capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == importlib.metadata.version("dalle-collab"), done.stderr


def test_bundling_again_replaces_the_bundle_as_a_whole(space, tmp_path):
    bundle_folder(space, tmp_path / "bundle")
    (tmp_path / "bundle" / "stale.py").write_text("")
    bundle_folder(space, tmp_path / "bundle")
    assert not (tmp_path / "bundle" / "stale.py").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", "my_space"]


def test_a_folder_that_is_no_bundle_is_never_overwritten(space, tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("years of work")
    with pytest.raises(ValueError, match="is not a bundle"):
        bundle_folder(space, precious)
    with pytest.raises(ValueError, match="is a file, expected a folder"):
        bundle_folder(space, precious / "thesis.txt")
    assert (precious / "thesis.txt").read_text() == "years of work"


def test_a_space_that_cannot_be_parsed_or_hides_a_module_is_refused(space, tmp_path):
    (space / "hub_tools").mkdir()
    (space / "hub_tools" / "endpoint.py").write_text("")
    with pytest.raises(ValueError, match=r"would hide the project's own hub_tools/endpoint.py"):
        bundle_folder(space, tmp_path / "bundle")
    (space / "app.py").write_text("def broken(:\n")
    with pytest.raises(ValueError, match=r"app.py line 1 is not valid Python"):
        bundle_folder(space, tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_a_space_with_a_folder_called_spaces_is_refused(space, tmp_path):
    (space / "spaces").mkdir()
    with pytest.raises(ValueError, match="would hide the package that Gradio imports"):
        bundle_folder(space, tmp_path / "bundle")


def test_relative_imports_and_whole_packages_are_followed(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("from modeling_dalle_collab import DalleCollabConfig\n")
    found = {str(path) for path in imported_modules([script])}
    assert "modeling_dalle_collab/configuration_dalle_collab.py" in found
    assert {Path(name).parts[0] for name in found} == {"modeling_dalle_collab"}
    assert "modeling_dalle_collab" in PACKAGES


def test_what_is_imported_by_a_name_in_a_string_is_bundled(tmp_path):
    script = tmp_path / "app.py"
    script.write_text("from pipelines.core.epoch.reduction import reduction_of\nprint('one:two', 'a.b: c')\n")
    found = {str(path) for path in imported_modules([script])}
    assert {"pipelines/features/sparse/reduction.py", "pipelines/features/bandwidth/measured_division.py"} <= found
    assert "pipelines/features/audits/checks.py" in found


def test_an_unknown_space_is_refused(tmp_path):
    with pytest.raises(ValueError, match="There is no Space 'nothing'"):
        find_space("nothing")
    with pytest.raises(ValueError, match=r"There is no Space '../tests'"):
        bundle_space("../tests", tmp_path / "bundle")


@pytest.mark.parametrize(
    ("readme", "words"),
    [("# No block", "names no sdk"), ("---\na: [\n---\n", "cannot be read"), (None, "names no sdk")],
)
def test_a_space_without_an_sdk_is_refused(tmp_path, readme, words):
    if readme is not None:
        (tmp_path / "README.md").write_text(readme)
    with pytest.raises(ValueError, match=words):
        space_sdk(tmp_path / "README.md")


@pytest.mark.slow
def test_publishing_a_folder_makes_one_commit_and_a_second_one_none(run_client, api, tokens, repo_id, space):
    with (space / "README.md").open("a") as readme:
        readme.write("\nThis is THIS_REPOSITORY.\n")
    arguments = ("hub-tools", "publish", "folder", str(space), repo_id, "--type", "space")
    said = run_client(*arguments, token=tokens.alice).stdout
    assert said.strip().endswith(api.space_info(repo_id).sha)
    assert "Nothing to do" in run_client(*arguments, token=tokens.alice).stdout
    assert api.space_info(repo_id).sdk == "gradio"
    card = api.hf_hub_download(repo_id, "README.md", repo_type="space")
    assert f"This is {repo_id}." in Path(card).read_text(encoding="utf-8")
    files = api.list_repo_files(repo_id, repo_type="space")
    assert files == [".gitattributes", "README.md", "app.py", "requirements.txt"]
    assert len(api.list_repo_commits(repo_id, repo_type="space")) == 2
    for wrong, words in (
        (["nowhere", repo_id], "is not a folder"),
        ([str(space), repo_id, "--type", "x"], "expected one"),
    ):
        done = run_client("hub-tools", "publish", "folder", *wrong, token=tokens.alice, check=False)
        assert (done.returncode, words in done.stderr) == (1, True), done.stderr
