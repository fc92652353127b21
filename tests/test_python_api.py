"""One import has what documents do in Python, loads nothing heavy by itself, and its page's snippets run."""

import inspect
import re
import subprocess
import sys

import pytest
from drawn_runs import drawn_run
from forked_processes import ForkedProcess, fork_server
from PIL import Image
from support_files import ROOT

import dalle_collab

PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
NAMES = {
    "ComputeOptions", "DistributedModel", "LocalHub", "NetworkOptions", "TrainingRun", "check_machine", "collaborate",
    "connect", "evaluate", "generate", "join", "load", "open_codec", "prepare_dataset", "publish_dataset",
    "publish_folder", "publish_space", "serve", "serve_layers",
}  # fmt: skip
LOOPBACK = 'network=dalle_collab.NetworkOptions(host_addresses=("/ip4/127.0.0.1/tcp/0",))'


def test_the_public_names_are_these_and_each_is_explained_with_an_example():
    assert set(dalle_collab.__all__) == set(dir(dalle_collab)) == NAMES
    for name in NAMES:
        found = getattr(dalle_collab, name)
        assert found.__doc__, name
        if inspect.isfunction(found) and found.__module__ == "dalle_collab":
            assert f"dalle_collab.{name}(" in found.__doc__ and found.__annotations__["return"]
            kinds = {parameter.kind for parameter in inspect.signature(found).parameters.values()}
            assert inspect.Parameter.VAR_KEYWORD not in kinds


def test_a_name_that_is_not_there_is_answered_with_those_that_are():
    with pytest.raises(AttributeError, match=r"no attribute 'jion'; it has .*, join, .*, serve_layers$"):
        dalle_collab.jion  # noqa: B018


def test_the_import_alone_loads_no_heavy_package():
    heavy = {"torch", "transformers", "hivemind", "datasets", "huggingface_hub", "numpy", "pipelines", "hub_tools"}
    program = "import sys, dalle_collab; print(*{name.partition('.')[0] for name in sys.modules})"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert set(said.stdout.split()) & heavy == set() and "dalle_collab" in said.stdout


def section(title):
    """The Python of a section of the page."""
    text = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert blocks, title
    return blocks


@pytest.fixture(scope="module")
def birds(hub, training_material, tmp_path_factory):
    """A finished run with servers of its layers, and one that can be trained in, at the same entry."""
    folder = tmp_path_factory.mktemp("python")
    with drawn_run(hub, folder, "python-birds") as run:
        created = training_material.create_run("org/python-plain", num_epochs=3, num_warmup_epochs=0)
        settings = training_material.settings(created).replace(entry_addresses=tuple(run.entry))
        training_material.copy_run("org/python-training", created, training_run__json=settings.to_json())
        yield run


def run_blocks(run, folder, blocks, **changes):
    """Run blocks of Python one after the other as a program; return what it printed."""
    birds = changes.pop("birds", "org/python-birds")
    text = "\n".join(blocks).replace('"my-org/birds"', f'"{birds}"').replace('"my-org/', '"org/')
    for before, after in changes.items():
        assert before in text
        text = text.replace(before, after)
    (folder / "program.py").write_text(f"import os\nos.chdir({str(folder)!r})\n{text}\nprint('done')\n")
    log = folder / "program.log"
    process = ForkedProcess(fork_server(run.environment), str(folder / "program.py"), [], log, run.environment)
    assert process.wait(240) == 0, log.read_text()[-3000:]
    assert log.read_text().rstrip().endswith("done")
    return log.read_text()


@pytest.mark.slow
@pytest.mark.swarm
def test_pictures_are_drawn_and_researched(birds, tmp_path):
    fitting = {"top_k=256": "top_k=8"}
    run_blocks(birds, tmp_path, [*section("Draw"), *section("Research")], **fitting)
    assert {path.name for path in tmp_path.glob("*.png")} == {"robin.png", "another-robin.png"}


@pytest.mark.slow
@pytest.mark.swarm
def test_a_dataset_is_made_and_published_with_a_folder_and_a_page(birds, tmp_path):
    (tmp_path / "pictures").mkdir()
    for number in range(6):
        Image.new("RGB", (320, 256), (40 * number, 80, 160)).save(tmp_path / "pictures" / f"{number}.jpg")
        (tmp_path / "pictures" / f"{number}.txt").write_text(f"a plain picture, number {number}")
    (tmp_path / "model-folder").mkdir()
    (tmp_path / "model-folder" / "README.md").write_text("A model.\n")
    names = {"org/vqgan-f8": "org/python-birds-codec", "org/a-model": "org/python-model"}
    names |= {"org/birds-codes": "org/python-codes", "org/draw-birds": "org/python-page"}
    said = run_blocks(birds, tmp_path, section("Make and publish a dataset"), **names)
    assert "6 kept of 6" in said
    assert birds.api.repo_exists("org/python-codes", repo_type="dataset")
    assert birds.api.file_exists("org/python-page", "app.py", repo_type="space")


@pytest.mark.slow
@pytest.mark.swarm
def test_a_machine_is_checked_and_joins(birds, tmp_path):
    call = 'join("org/python-training", '
    said = run_blocks(
        birds, tmp_path, section("Train in a run"), birds="org/python-training", **{call: f"{call}{LOOPBACK}, "}
    )
    assert re.search(r"ok .*Hub", said) and re.search(r"^1 \d+\.\d+$", said, re.MULTILINE)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.swarm
def test_it_serves_and_borrows_layers(birds, tmp_path):
    serving, borrowing = section("Serve, and use served layers")
    first_report = {"report.num_drawn)": "report.num_drawn)\n    break", "max_hours=8": f"max_hours=8, {LOOPBACK}"}
    assert "online 0" in run_blocks(birds, tmp_path, [serving], **first_report)
    birds.serve("--blocks", "0:3")
    run_blocks(birds, tmp_path, [borrowing, "    print(len(model.layers))"])


MISTAKES = """
import dalle_collab

for call in (
    lambda: dalle_collab.load("org/no-birds"),
    lambda: dalle_collab.prepare_dataset("pictures", "org/no-codec", "codes"),
    lambda: dalle_collab.prepare_dataset("no-pictures", "org/no-codec", "codes"),
    lambda: next(dalle_collab.join("org/no-birds")),
):
    try:
        call()
    except (OSError, ValueError) as error:
        print("said:", error)
"""


@pytest.mark.slow
@pytest.mark.swarm
def test_what_does_not_exist_is_said_in_one_line(birds, tmp_path):
    (tmp_path / "pictures").mkdir()
    Image.new("RGB", (320, 256)).save(tmp_path / "pictures" / "a.jpg")
    (tmp_path / "pictures" / "a.txt").write_text("a plain picture")
    said = [line for line in run_blocks(birds, tmp_path, [MISTAKES]).splitlines() if not line.startswith("done")]
    assert len(said) == 4, said
    for line, name in zip(said, ("org/no-birds", "org/no-codec", "no-pictures", "org/no-birds"), strict=True):
        assert line.startswith("said: ") and name in line


@pytest.mark.slow
def test_a_hub_is_started(birds, tmp_path):
    assert "http://127.0.0.1:" in run_blocks(birds, tmp_path, section("A Hub of your own"))
