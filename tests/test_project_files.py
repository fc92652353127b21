"""What maintainers expect to find beside the code parses, and names things that exist."""

import ast
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
TEMPLATES = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
PRODUCT = ("modeling_dalle_collab", "pipelines", "hub_tools", "spaces", "dalle_collab")
FIELDS = {"markdown": "value", "input": "label", "textarea": "label", "dropdown": "label", "checkboxes": "label"}


def read_yaml(name: str) -> dict:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def job():
    return read_yaml(".github/workflows/ci.yml")["jobs"]["checks"]


def test_the_workflow_runs_on_exactly_the_pythons_that_setup_cfg_names(job, setup_cfg):
    named = re.findall(r"Python :: (\d+\.\d+)$", setup_cfg["metadata"]["classifiers"], re.MULTILINE)
    assert job["strategy"]["matrix"]["python"] == named
    assert all(
        Requirement(f"x{setup_cfg['options']['python_requires']}").specifier.contains(f"{name}.1") for name in named
    )


def test_the_workflow_runs_all_checks_with_the_python_that_it_set_up(job):
    (step,) = [step for step in job["steps"] if "run" in step]
    assert os.access(ROOT / step["run"], os.X_OK)
    # Make takes the variable from the environment; without it the first Python that fits would be chosen.
    assert step["env"]["PYTHON"] == "python${{ matrix.python }}"
    assert "$(PYTHON)" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_the_workflow_runs_a_test_where_hivemind_cannot_be_installed():
    elsewhere = read_yaml(".github/workflows/ci.yml")["jobs"]["elsewhere"]
    assert elsewhere["strategy"]["matrix"]["system"] == ["macos-latest", "windows-latest"]
    assert (ROOT / elsewhere["steps"][-1]["run"].split()[-1]).is_file()


def test_a_commit_is_checked_by_the_linters_of_make_lint():
    (repository,) = read_yaml(".pre-commit-config.yaml")["repos"]
    hooks = [shlex.split(hook["entry"]) for hook in repository["hooks"]]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    linters = [" ".join(words[:2]).removeprefix(".venv/bin/") for words in hooks]
    assert linters == ["ruff check", "ruff format", "mypy"]
    assert all(f"\t$(VENV)/bin/{linter}" in makefile for linter in linters)


def test_both_parts_of_the_tests_run_though_one_fails_and_in_a_folder_with_spaces(tmp_path):
    folder = tmp_path / "my clone of it"
    environment = folder / ".venv"
    (environment / "bin").mkdir(parents=True)
    shutil.copy(ROOT / "Makefile", folder)
    python = environment / "bin" / "python"
    python.write_text('#!/bin/sh\necho "$4" >>parts\ntest "$4" != "not slow"\n')
    python.chmod(0o700)
    (folder / "tests" / "ancestor").mkdir(parents=True)
    for name in ("setup.py", "setup.cfg", "pyproject.toml", "constraints.txt", "tests/ancestor/requirements.txt"):
        (folder / name).touch()
    (environment / ".installed").touch()
    done = subprocess.run(["make", "test"], cwd=folder, capture_output=True, text=True, check=False)
    parts = (folder / "parts").read_text().splitlines()
    assert parts == ["not slow", "slow and not long"], done
    assert done.returncode == 2 and "test-quick" in done.stderr, done


def test_no_two_files_of_processes_share_a_repository_of_the_embedded_hub():
    """A worker's Hub lives through all its files: whichever came second would find the name taken (409)."""
    owners = defaultdict(set)
    for path in (ROOT / "tests").rglob("test_*.py"):
        source = path.read_text(encoding="utf-8")
        if "pytest.mark.slow" not in source:
            continue
        if re.search(r"def test_\w+\([^)]*\bhub\b", source):
            for name in re.findall(r'"((?:org|alice)/[\w.-]+)"', source):
                owners[name].add(path.name)
        # Helpers add the organisation.
        for name in re.findall(r'"(?:org/)?([\w.]+(?:-[\w.]+)*-run(?:-[\w.]+)*)"', source):
            owners[f"org/{name}"].add(path.name)
    missing = {"org/no-such-run"}
    shared = {name: sorted(files) for name, files in owners.items() if len(files) > 1 and name not in missing}
    assert len(owners) > 20 and not shared


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_an_issue_form_has_what_github_asks_for(path):
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert {"name", "description", "body"} <= form.keys()
    assert all(part["attributes"][FIELDS[part["type"]]] for part in form["body"])
    asked = [part["id"] for part in form["body"] if part["type"] != "markdown"]
    assert asked and len(set(asked)) == len(asked)


def test_the_citation_is_of_this_version_and_licence_and_names_the_paper(setup_cfg):
    citation = read_yaml("CITATION.cff")
    assert citation["version"] == setup_cfg["metadata"]["version"]
    assert (citation["license"], citation["title"]) == (setup_cfg["metadata"]["license"], setup_cfg["metadata"]["name"])
    (paper,) = citation["references"]
    assert len(paper["authors"]) == 8
    assert re.search(
        rf"^## {re.escape(citation['version'])}$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE
    )


def test_what_benchmarks_and_long_tests_import_is_there():
    files = [path for folder in ("benchmarks", "long") for path in (ROOT / "tests" / folder).glob("*.py")]
    modules = {
        (path.name, node.module)
        for path in files
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom)
    }
    assert len(files) > 20
    assert [pair for pair in sorted(modules) if importlib.util.find_spec(pair[1]) is None] == []


def test_no_two_public_classes_of_the_product_have_one_name():
    places: dict[str, list[str]] = defaultdict(list)
    for path in (path for folder in PRODUCT for path in sorted((ROOT / folder).rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert len(places) > 500
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_no_class_of_the_core_is_derived_from_two_others_of_it_one_above_the_other():
    """Exceptions apart: what a reader of one class has to read besides is one more."""
    bases: dict[str, set[str]] = {}
    for path in (ROOT / "pipelines" / "core").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.endswith("Error"):
                bases[node.name] = {base.id for base in node.bases if isinstance(base, ast.Name)}
    assert "SwarmAverager" in bases and len(bases) > 150
    above = {name: own & bases.keys() for name, own in bases.items()}
    assert {name: own for name, own in above.items() if any(above[base] for base in own)} == {}


def test_no_function_is_longer_than_a_hundred_lines():
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in (path for folder in PRODUCT for path in sorted((ROOT / folder).rglob("*.py")))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (node.end_lineno or 0) - node.lineno >= 100
    ]
    assert long == []


@pytest.mark.parametrize(("is_core", "most"), [(True, 2.0), (False, 4.0)])
def test_the_core_is_small_and_few_places_of_the_product_say_any(is_core, most):
    """`most`: uses of the name `Any` in 1,000 lines."""
    files = [path for folder in PRODUCT for path in (ROOT / folder).rglob("*.py")]
    texts = [path.read_text("utf-8") for path in files if path.is_relative_to(ROOT / "pipelines" / "core") == is_core]
    num_lines = sum(text.count("\n") for text in texts)
    assert not is_core or num_lines <= 14_000, f"{num_lines} lines: what the core can do without is a feature"
    nodes = (node for text in texts for node in ast.walk(ast.parse(text)))
    number = sum(isinstance(node, ast.Name) and node.id == "Any" for node in nodes)
    assert number <= most * num_lines / 1000, number
