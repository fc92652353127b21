"""Finds what the project uses of hivemind beyond its public interface: private names, and public parts it replaces."""

import ast
import importlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

import hivemind

ROOT = Path(__file__).parents[2]
HIVEMIND = Path(hivemind.__file__).parent
NOT_USED = ("moe", "proto", "hivemind_cli")
"""Parts of hivemind with which the project has nothing to do, or that are generated."""

FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, order=True)
class Use:
    """One place in which a file of ours touches a name of hivemind's."""

    name: str
    file: str
    line: int


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


@cache
def members(source: str) -> dict[str, str]:
    """Return what a class's source defines, by name, each as it is written there.

    A method is its signature, an attribute what is first assigned to it. Annotations are as in the source, so that no
    version of Python writes them in a way of its own.
    """
    found: dict[str, str] = {}
    definition = ast.parse(source).body[0]
    for node in definition.body:
        if isinstance(node, FUNCTIONS):
            found.setdefault(node.name, signature(node))
        for name, value in _assigned(node, ""):
            found.setdefault(name, value)
    for node in ast.walk(definition):
        for name, value in _assigned(node, "self"):
            found.setdefault(name, value)
    return found


def signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    kind = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    kind = "".join(f"@{ast.unparse(one)} " for one in node.decorator_list) + kind
    return f"{kind}({ast.unparse(node.args)})" + (f" -> {ast.unparse(node.returns)}" if node.returns else "")


def _assigned(node: ast.AST, owner: str) -> Iterator[tuple[str, str]]:
    """Yield names that a statement assigns, to `owner` or to none, and what it assigns."""
    if not isinstance(node, ast.Assign | ast.AnnAssign):
        return
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    kind = f": {ast.unparse(node.annotation)}" if isinstance(node, ast.AnnAssign) else ""
    value = "" if node.value is None else f" = {ast.unparse(node.value)}"
    for target in targets:
        for one in target.elts if isinstance(target, ast.Tuple) else [target]:
            if isinstance(one, ast.Name) and not owner:
                yield one.id, (kind + value).strip()
            if isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name) and one.value.id == owner:
                yield one.attr, (kind + value).strip()


@cache
def members_of(kind: type) -> dict[str, str]:
    return members(inspect.getsource(kind))


@cache
def hivemind_classes() -> dict[str, dict[str, str]]:
    """Return what each of hivemind's classes defines, by its path below `hivemind`."""
    found = {}
    for path in sorted(HIVEMIND.rglob("*.py")):
        module = path.relative_to(HIVEMIND).with_suffix("")
        if module.parts[0] in NOT_USED:
            continue
        nodes = [n for n in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(n, ast.ClassDef)]
        found |= {".".join((*module.parts, node.name)): members(ast.unparse(node)) for node in nodes}
    return found


@cache
def hivemind_names() -> frozenset[str]:
    """Return all that hivemind's classes define."""
    return frozenset(name for found in hivemind_classes().values() for name in found)


@cache
def sources(root: Path = ROOT) -> dict[str, ast.Module]:
    """Return the parsed files of `pipelines`, by their paths."""
    paths = sorted((root / "pipelines").rglob("*.py"))
    return {path.relative_to(root).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def classes_over_hivemind() -> list[type]:
    """Return our classes that inherit from one of hivemind's; nothing else is imported."""
    definitions = {f: [n for n in ast.walk(tree) if isinstance(n, ast.ClassDef)] for f, tree in sources().items()}
    known, before = _imported_from_hivemind(), -1
    while len(known) != before:
        before = len(known)
        known |= {n.name for nodes in definitions.values() for n in nodes if known & {_last(base) for base in n.bases}}
    return [
        getattr(_module(file), node.name)
        for file, nodes in definitions.items()
        for node in nodes
        if known & {_last(base) for base in node.bases} and _is_at_top(file, node)
    ]


def _imported_from_hivemind() -> set[str]:
    nodes = [node for tree in sources().values() for node in ast.walk(tree) if _is_of_hivemind(node)]
    return {alias.name for node in nodes for alias in node.names} | set(dir(hivemind))


def _last(base: ast.expr) -> str:
    return base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "")


def _is_at_top(file: str, node: ast.ClassDef) -> bool:
    return node in sources()[file].body


def _module(file: str) -> ModuleType:
    return importlib.import_module(file.removesuffix(".py").replace("/", "."))


def is_hiveminds(kind: type) -> bool:
    return kind.__module__.split(".")[0] == "hivemind"


def uses_by_inheritance() -> Iterator[Use]:
    """Yield where our classes override or touch, through `self`, `cls` or `super()`, what hivemind's keep private.

    And where they put something else into a public attribute of hivemind's. A mixin is judged by the classes into which
    it is mixed. A name of our own that hivemind happens to use too is found as well: Python cannot tell the two apart.
    """
    for kind in classes_over_hivemind():
        inherited = {name for base in kind.__mro__ if is_hiveminds(base) for name in members_of(base)}
        for ours in (base for base in kind.__mro__ if base.__module__.startswith("pipelines.")):
            file = ours.__module__.replace(".", "/") + ".py"
            definition = _definition(file, ours.__qualname__)
            yield from (Use(name, file, line) for name, line in _touched(definition) if name in inherited)


def _definition(file: str, name: str) -> ast.ClassDef:
    return next(node for node in ast.walk(sources()[file]) if isinstance(node, ast.ClassDef) and node.name == name)


def _touched(definition: ast.ClassDef) -> Iterator[tuple[str, int]]:
    for node in definition.body:
        names = [node.name] if isinstance(node, FUNCTIONS) else [name for name, _ in _assigned(node, "")]
        yield from ((name, node.lineno) for name in names if is_private(name))
    for node in ast.walk(definition):
        if isinstance(node, ast.Attribute) and _is_own(node.value) and _matters(node):
            yield node.attr, node.lineno


def _matters(node: ast.Attribute) -> bool:
    """Public names may be read; private ones may not even be read without being known to the contract."""
    return is_private(node.attr) or isinstance(node.ctx, ast.Store)


def _is_own(node: ast.expr) -> bool:
    is_super = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "super"
    return is_super or getattr(node, "id", "") in ("self", "cls")


def uses_of_others() -> Iterator[Use]:
    """Yield where other objects than `self` are asked for, or given, what hivemind's classes call so."""
    for file, tree in sources().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and not _is_own(node.value) and _is_hiveminds(file, node):
                yield Use(node.attr, file, node.lineno)
            if isinstance(node, ast.ImportFrom) and _is_of_hivemind(node):
                yield from (Use(alias.name, file, node.lineno) for alias in node.names if is_private(alias.name))


def _is_hiveminds(file: str, node: ast.Attribute) -> bool:
    return _matters(node) and node.attr in hivemind_names() and (is_private(node.attr) or _knows_hivemind(file))


@cache
def _knows_hivemind(file: str) -> bool:
    nodes = list(ast.walk(sources()[file]))
    by_name = (alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names)
    return any(_is_of_hivemind(node) for node in nodes) or any(name.startswith("hivemind") for name in by_name)


def _is_of_hivemind(node: ast.AST) -> bool:
    return isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "hivemind"


@cache
def all_uses() -> tuple[Use, ...]:
    """Return every place, in order."""
    return tuple(sorted({*uses_by_inheritance(), *uses_of_others()}))


def places_of(name: str, file: str) -> list[str]:
    """Return a line for each place in a file that touches a name, and the rows that would say so in the contract."""
    places = [f"{use.file}:{use.line} touches {name}" for use in all_uses() if (use.name, use.file) == (name, file)]
    owners = [(path, found[name]) for path, found in hivemind_classes().items() if name in found]
    short = file.removeprefix("pipelines/")
    return places + [f'    Row("{path}.{name}", {form!r}, ("{short}",), "WHY"),' for path, form in owners]
