"""What the documents name exists: commands with their options, files, links and Python; the README is short."""

import ast
import html
import importlib.util
import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import typer
from document_links import linked_files

import hub_tools.command_line
import pipelines.command_line.main
from modeling_dalle_collab import DalleCollabConfig
from pipelines.core.run.training_run import TrainingRun
from pipelines.tools.demo.scenes_demo import RUN_SETTINGS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
DOCUMENTS = [
    *(ROOT / name for name in ("CHANGELOG.md", "AGENTS.md", "llms.txt", "skills/dalle-collab/SKILL.md")),
    *PAGES,
    *(path for name in (".github", "spaces", "pipelines", "tests") for path in sorted((ROOT / name).rglob("*.md"))),
]
COMMANDS = {
    "dalle-collab": typer.main.get_command(pipelines.command_line.main.app),
    "hub-tools": typer.main.get_command(hub_tools.command_line.app),
}
OURS = re.compile(r"(dalle-collab|hub-tools|make) ")
README_MENTIONS = [
    *("make demo", "make test", "make install", "make bench", "make lint"),
    *("dalle-collab doctor", "dalle-collab join", "--client-mode", "--bandwidth-limit", "--max-hours"),
    *("dalle-collab run create", "dalle-collab run assist", "hub-tools publish run"),
    *("dalle-collab generate", "--candidates", "--keep", "--top-k", "pipeline(", "hub-tools publish space"),
    *("dalle-collab data prepare", "dalle-collab data verify", "hub-tools publish dataset"),
    *("dalle-collab model finetune", "dalle-collab chaos"),
]
PAGES_MENTION = [
    *("--micro-batch-size", "--precision", "--num-devices", "--relay", "join_training", "DALLE_COLLAB_PACKAGE"),
    *("dalle-collab run show", "dalle-collab run check", "dalle-collab run report", "dalle-collab run rollback"),
    *("dalle-collab run index", "--publish", "--tracker", "local_steps", "delay_gradient_averaging"),
    *("dalle-collab run keys", "--add", "--revoke", "--restore", "--organiser-key", "--backup-key"),
    *("dalle-collab run authorize", "--public-address", "--write-space", "--open", "--grace-minutes"),
    *("dalle-collab codec train", "dalle-collab codec convert", "dalle-collab clip train", "data train-tokenizer"),
    *("--mixed-precision", "--full", "--merge", "dalle-collab model convert", "--conv-window"),
    *("dalle-collab chaos", "--faults", "--dry-run", "--script", "momentum_before_averaging"),
    *("AutoModel.from_pretrained", "generate_image_codes", "hub-tools serve --root", "hub-tools user create"),
    *("make constraints", "dalle-collab demo spaces"),
    *("dalle-collab serve", "--swarm", "--audit", "--stay", "--http"),
]
PATH = re.compile(r"(?:modeling_dalle_collab|hub_tools|pipelines|spaces|tests|docs|\.ci|\.github)(?:/[\w.*-]+)+/?")
PLACEHOLDER = re.compile(r"\b[A-Z]{4,}\b|/test_[A-Z]")


def code_blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def block_commands(text: str) -> list[str]:
    """Return our command lines in a document's shell blocks: what people copy and run."""
    lines = "\n".join(code_blocks(text, "bash")).replace("\\\n", " ").splitlines()
    return [line for line in lines if OURS.match(line)]


def prose_commands(text: str) -> list[str]:
    """Return our commands in a document's sentences; they may leave arguments out."""
    return [code for code in code_spans(text) if OURS.match(code)]


def code_spans(text: str) -> list[str]:
    """Return what a document's sentences and tables set as code; a span may go on in the next line."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return [" ".join(code.split()) for part in re.split(r"\n\s*\n", prose) for code in re.findall(r"`([^`]+)`", part)]


def objection(line: str, *, is_whole: bool = True) -> str | None:
    """Say what is wrong with a command line; None where our commands or the Makefile understand it."""
    words = shlex.split(line, comments=True)
    return object_to_make(words[1:]) if words[0] == "make" else object_to_command(words, is_whole)


def object_to_make(words: list[str]) -> str | None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    variables = [word.partition("=")[0] for word in words if "=" in word]
    unknown = [name for name in variables if f"$({name})" not in makefile and f"$(if $({name})," not in makefile]
    targets = [word for word in words if "=" not in word]
    # -n prints what would run.
    in_english = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(["make", "-n", *targets], cwd=ROOT, capture_output=True, text=True, env=in_english)
    return f"the Makefile has no {', '.join(unknown)}" if unknown else done.stderr.strip() or None


def object_to_command(words: list[str], is_whole: bool) -> str | None:
    command, name, rest = COMMANDS[words[0]], words[0], words[1:]
    while hasattr(command, "commands"):
        if not rest:
            return f"{name} alone does nothing" if is_whole else None
        if rest[0] not in command.commands:
            return f"{name} has no command {rest[0]}"
        name, command, rest = f"{name} {rest[0]}", command.commands[rest[0]], rest[1:]
    try:
        command.make_context(name, rest)
    except Exception as error:
        if is_whole or type(error).__name__ != "MissingParameter":
            return f"{name}: {error}"
    return None


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_in_a_document_is_understood(document):
    text = document.read_text(encoding="utf-8")
    objections = {line: objection(line) for line in block_commands(text)}
    objections |= {line: objection(line, is_whole=False) for line in prose_commands(text)}
    assert {line: found for line, found in objections.items() if found} == {}


def test_every_command_on_the_landing_page_is_understood():
    page = (ROOT / "spaces" / "landing_page" / "index.html").read_text(encoding="utf-8")
    commands = [html.unescape(re.sub(r"<[^>]+>", "", code)) for code in re.findall(r"<code>(.*?)</code>", page)]
    assert len(commands) >= 8
    assert {line: found for line in commands if (found := objection(line))} == {}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("dalle-collab frobnicate", "dalle-collab has no command frobnicate"),
        ("dalle-collab run begin org/run", "dalle-collab run has no command begin"),
        ("dalle-collab join org/run --micro-batch 4", "No such option"),
        ("dalle-collab join org/run another", "unexpected extra argument"),
        ("dalle-collab generate org/run a --candidates many", "valid integer"),
        ("hub-tools publish dataset folder", "Missing parameter: repository"),
        ("dalle-collab run", "dalle-collab run alone does nothing"),
        ("make frobnicate", "No rule to make target 'frobnicate'"),
        ("make bench FAST=1", "the Makefile has no FAST"),
    ],
)
def test_a_command_that_does_not_work_is_found(line, message):
    assert message in (objection(line) or "")


def test_a_command_in_a_sentence_may_leave_arguments_out_but_is_checked():
    assert objection("hub-tools publish dataset", is_whole=False) is None
    assert "No such option" in (objection("dalle-collab join --gpu", is_whole=False) or "")


def test_commands_are_found_in_blocks_and_in_prose():
    text = "See `make\ndemo`.\n```bash\nls\ndalle-collab join a/b \\\n--client-mode\n```\n`join` `make`\n"
    assert block_commands(text) == ["dalle-collab join a/b  --client-mode"]
    assert prose_commands(text) == ["make demo"]


@pytest.mark.parametrize("words", README_MENTIONS)
def test_the_readme_mentions_what_people_need(words):
    assert words in README


@pytest.mark.parametrize("words", PAGES_MENTION)
def test_a_page_of_docs_mentions_what_people_need(words):
    assert any(words in path.read_text(encoding="utf-8") for path in PAGES[1:])


def test_the_readme_fits_into_two_hundred_lines_and_leads_to_every_page():
    assert len(README.splitlines()) <= 200
    # A page in a folder is led to by the one that has the folder's name.
    first = [path for path in PAGES[1:] if not path.parent.with_suffix(".md").exists()]
    assert [path.name for path in first if f"]({path.relative_to(ROOT)})" not in README] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_python_and_the_json_in_a_document_parse(document):
    text = document.read_text(encoding="utf-8")
    for block in code_blocks(text, "python"):
        for module in imported_modules(ast.parse(block)):
            assert importlib.util.find_spec(module) is not None
    for block in code_blocks(text, "json"):
        json.loads(block)


def imported_modules(tree: ast.AST) -> list[str]:
    return [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]


@pytest.mark.parametrize("document", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_file_that_a_page_names_exists(document):
    names = code_spans(document.read_text(encoding="utf-8"))
    paths = [name for name in names if PATH.fullmatch(name) and not PLACEHOLDER.search(name)]
    assert [name for name in paths if not any(ROOT.glob(name))] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_file_that_a_document_links_to_exists(document):
    assert [link for link in linked_files(document) if not (document.parent / link).exists()] == []


def test_the_sizes_of_the_table_are_the_defaults_and_the_demos():
    table = (ROOT / "docs" / "measurements" / "demos.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \| (\d+) \|$", table, re.MULTILINE)
    assert len(rows) >= 6
    run = TrainingRun(run_id="run", model_config={}, dataset_repository="org/codes", dataset_revision="main")
    defaults = {**vars(DalleCollabConfig()), **vars(run)}
    assert rows == [(name, str(defaults[name]), str(RUN_SETTINGS[name])) for name, _, _ in rows]
