"""What docs/architecture.md and docs/protocol.md say of the code is there: files, names, keys, calls, pictures.

And the web site leads to every page.
"""

import ast
import re
import xml.etree.ElementTree
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml
from document_links import linked_files

ROOT = Path(__file__).parents[1]
DOCUMENTS = ("architecture.md", "protocol.md")
FOLDERS = (ROOT, ROOT / "pipelines", ROOT / "pipelines" / "core")
"""To which the documents' paths are relative, whichever fits."""

REFERENCE = re.compile(r"`(\w+(?:/\w+)+\.py)(?::(\w+(?:\.\w+)*))?`")
"""A file, and perhaps a name in it: `core/averaging/reducing_end.py:ReducingEnd._check_input`."""

MOST_FILES_OF_A_GRADIENT = 20
"""Of the core, from a micro-batch to the step along the average."""

CALLS_OF_HIVEMIND = {"rpc_ping", "rpc_store", "rpc_find"}


def read(document: str) -> str:
    return (ROOT / "docs" / document).read_text(encoding="utf-8")


@cache
def sources() -> tuple[Path, ...]:
    return tuple(path for part in ("pipelines", "hub_tools") for path in sorted((ROOT / part).rglob("*.py")))


@cache
def names_in(path: Path) -> frozenset[str]:
    """Return what a file defines: functions, classes, constants, and `Class.method`."""
    return frozenset(_names(ast.parse(path.read_text(encoding="utf-8")).body))


def _names(body: list[ast.stmt], prefix: str = "") -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield prefix + node.name
        if isinstance(node, ast.ClassDef):
            yield from _names(node.body, f"{prefix}{node.name}.")
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (prefix + target.id for target in targets if isinstance(target, ast.Name))


def objection_to(file: str, name: str | None) -> str | None:
    """Say what is wrong with a reference and where the name is instead; None if nothing is."""
    path = next((folder / file for folder in FOLDERS if (folder / file).is_file()), None)
    if path is not None and (name is None or name in names_in(path)):
        return None
    problem = "there is no such file" if path is None else f"{file} defines no such name"
    elsewhere = [str(other.relative_to(ROOT)) for other in sources() if name in names_in(other)]
    same_name = [str(other.relative_to(ROOT)) for other in sources() if other.name == Path(file).name]
    found = elsewhere if name else same_name
    return f"{file}{f':{name}' if name else ''}: {problem}; found in {', '.join(found) or 'no file'}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_file_and_name_in_a_document_exists(document):
    references = sorted({(file, name or None) for file, name in REFERENCE.findall(read(document))}, key=str)
    assert len(references) > 5, "the document names no code; has its notation changed?"
    objections = [objection for file, name in references if (objection := objection_to(file, name))]
    assert not objections, "\n".join(objections)


def test_a_gradient_is_followed_through_few_files():
    section = read("architecture.md").partition("## The life of a gradient\n")[2].partition("\n## ")[0]
    named = {file for file, _ in REFERENCE.findall(section) if file.startswith("core/")}
    assert 10 < len(named) <= MOST_FILES_OF_A_GRADIENT, sorted(named)


def test_a_name_that_has_moved_is_found_where_it_is():
    assert objection_to("nowhere/at_all.py", "TrustedAllReduceRunner").endswith("runner.py")
    assert objection_to("hub_tools/endpoint.py", "current_endpoint") is None
    assert "no such name" in objection_to("hub_tools/endpoint.py", "Endpoint.current")


def test_the_keys_in_the_protocol_are_those_of_the_code():
    named = set(re.findall(r"`\{swarm_id\}_([a-z_]+?)(?:_\{(?:epoch|number)\})?(?:\.0b)?`", read("protocol.md")))
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources())
    assert not {key for key in named if not re.search(rf"\b_?{key}\b", text)}
    kinds = set(re.findall(r"RecordKind\(\s*\"([a-z_]+)\"", text))
    assert "metrics" in kinds and kinds | {"admissions", "grad_averager"} == named


def test_the_calls_in_the_protocol_are_those_of_the_code():
    answered = {name.rpartition(".")[2] for path in sources() for name in names_in(path) if ".rpc_" in name}
    named = set(re.findall(r"\brpc_[a-z_]+", read("protocol.md")))
    assert named == answered | CALLS_OF_HIVEMIND


def test_the_protocol_names_every_file_of_a_runs_repository():
    tree = ast.parse((ROOT / "hub_tools" / "run_files.py").read_text(encoding="utf-8"))
    assignments = [node for node in tree.body if isinstance(node, ast.Assign)]
    files = [node.value.value for node in assignments if isinstance(node.value, ast.Constant)]
    document = read("protocol.md")
    assert files and not [file for file in files if isinstance(file, str) and file not in document]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_pictures_and_pages_that_a_document_links_are_there(document):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", read(document)):
        assert (ROOT / "docs" / target).is_file(), f"{document} links {target}, which is not there"
        if target.endswith(".svg"):
            xml.etree.ElementTree.parse(ROOT / "docs" / target)


@pytest.fixture(scope="module")
def site():
    return yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))


def pages_of(entries: list[dict]) -> Iterator[str]:
    """Return the pages that a site's contents name, those in its parts too."""
    for entry in entries:
        for found in entry.values():
            yield from [found] if isinstance(found, str) else pages_of(found)


def test_the_contents_of_the_site_name_every_page_once(site):
    named = list(pages_of(site["nav"]))
    pages = {str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")}
    assert sorted(named) == sorted(pages | {"README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"})


def test_what_the_pages_of_the_site_link_to_is_in_it(site):
    named = [ROOT / name for name in pages_of(site["nav"])]
    there = {*named, *(ROOT / "docs" / "images").iterdir()}
    for pattern in site["extra"]["linked_files"]:
        there |= (found := set(ROOT.glob(pattern)))
        assert found, f"mkdocs.yml names {pattern}, which is not there"
    for page in named:
        assert {link for link in linked_files(page) if (page.parent / link).resolve() not in there} == set(), page.name


def test_the_site_is_built_with_pinned_versions():
    lines = (ROOT / "docs" / "requirements.txt").read_text(encoding="utf-8").splitlines()
    assert all("==" in line for line in lines if not line.startswith("#"))
