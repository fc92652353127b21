"""The wheel holds the packages, the demo's models and the Spaces' templates, and nothing else."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[1]
TOP_LEVEL_NAMES = {"dalle_collab", "modeling_dalle_collab", "pipelines", "hub_tools"}
TEMPLATES = "hub_tools/_space_templates"

pytestmark = pytest.mark.slow


def project_files() -> list[str]:
    """Return the files of a checkout, new ones included, without what git ignores."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [name for name in listed if (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def wheel_files(tmp_path_factory):
    """Build the wheel from a copy of the checkout and return the names of its files."""
    source, output = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in project_files():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, source / name)
    # What running a Space or a test leaves in a checkout must not travel.
    leftover = source / "spaces" / "text_to_image_demo" / "__pycache__" / "app.cpython-311.pyc"
    leftover.parent.mkdir()
    leftover.write_bytes(b"")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(output), str(source)]
    built = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = output.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_its_top_level_names_are_the_four_packages_and_the_metadata(wheel_files):
    names = {PurePosixPath(name).parts[0] for name in wheel_files}
    assert {name for name in names if not name.endswith(".dist-info")} == TOP_LEVEL_NAMES
    assert len(names) == len(TOP_LEVEL_NAMES) + 1
    # Gradio tries `import spaces`, the ZeroGPU package: a folder of that name would be taken for it.
    assert "spaces" not in names


def test_every_module_of_the_packages_is_in_it(wheel_files):
    modules = {name for name in project_files() if name.endswith(".py") and name.split("/")[0] in TOP_LEVEL_NAMES}
    assert len(modules) > 50
    assert modules - wheel_files == set()


def test_the_demos_models_are_in_it(wheel_files):
    models = {
        name for name in project_files() if name.startswith("pipelines/tools/demo/pretrained/") and name.count("/") > 4
    }
    assert {PurePosixPath(name).parts[4] for name in models} == {"codec", "clip"}
    assert models - wheel_files == set()


def test_the_spaces_are_in_it_as_templates(wheel_files):
    spaces = {name.partition("/")[2] for name in project_files() if name.startswith("spaces/") and name.count("/") > 1}
    assert any(name.endswith("/app.py") for name in spaces)
    assert {f"{TEMPLATES}/{name}" for name in spaces} - wheel_files == set()


def test_it_holds_nothing_but_modules_models_templates_and_metadata(wheel_files):
    kinds = {".py", ".typed", ".json", ".safetensors", ".md"}
    strangers = {
        name
        for name in wheel_files
        if ".dist-info/" not in name and not name.startswith(TEMPLATES) and PurePosixPath(name).suffix not in kinds
    }
    assert strangers == set()
    assert {name for name in wheel_files if "test" in PurePosixPath(name).name} == set()


def test_what_running_a_space_leaves_behind_is_not_in_it(wheel_files):
    assert {name for name in wheel_files if name.endswith(".pyc")} == set()


def test_both_commands_and_the_licence_come_with_it(wheel_files):
    assert any(name.endswith(".dist-info/entry_points.txt") for name in wheel_files)
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in wheel_files)
