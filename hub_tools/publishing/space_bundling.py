"""Making a Space self-contained: its own files, and the modules of this project that they import."""

import ast
import importlib.metadata
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..processes.child_process import SOURCE_ROOT
from .page_settings import SETTINGS_FILE, write_page_settings

DISTRIBUTION = "dalle-collab"
PACKAGES = ("modeling_dalle_collab", "pipelines", "hub_tools")
ENTRY_POINT = re.compile(r"[a-z_]+(\.\w+)+:\w+")
"""A string that names what is imported when it is asked for: `module:name`."""


def space_folders() -> dict[str, Path]:
    """Return the Spaces of this installation by name: from the repository, or from the installed package."""
    # In an editable installation the folder is the repository's own; a wheel carries it inside hub_tools.
    for home in (SOURCE_ROOT / "spaces", SOURCE_ROOT / "hub_tools" / "_space_templates"):
        found = {path.name: path for path in sorted(home.glob("*")) if (path / "README.md").is_file()}
        if found:
            return found
    return {}


def find_space(name: str) -> Path:
    """Return the folder of a Space. Raises ValueError, which lists the Spaces there are."""
    folders = space_folders()
    if name not in folders:
        raise ValueError(f"There is no Space {name!r}. There are: {', '.join(folders) or 'none in this installation'}")
    return folders[name]


def bundle_space(name: str, output: Path | str, settings: Mapping[str, str] | None = None) -> list[Path]:
    """Write the Space `name` with all modules it imports into `output`, and return the files' relative paths.

    The folder is replaced as a whole if it is an earlier bundle or empty. Raises ValueError for any other folder and
    for settings that the Space does not have.
    """
    return bundle_folder(find_space(name), Path(output), settings)


def bundle_folder(space: Path, output: Path, settings: Mapping[str, str] | None = None) -> list[Path]:
    """Do what `bundle_space` does, for a Space in any folder."""
    _check_output(output)
    if (space / "spaces").exists():
        # Gradio tries `import spaces`, the ZeroGPU package, when it runs on a Space.
        raise ValueError(f"{space}/spaces would hide the package that Gradio imports as spaces. Rename it")
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=".bundle-") as temporary:
        whole = Path(temporary) / space.name
        shutil.copytree(space, whole, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        modules = imported_modules(sorted(whole.rglob("*.py")))
        tables = {path.relative_to(SOURCE_ROOT) for module in modules for path in _tables_beside(module)}
        for module in [*modules, *sorted(tables)]:
            target = whole / module
            if target.exists():
                raise ValueError(
                    f"{space}/{module} would hide the project's own {module}. Rename the file of the Space"
                )
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(SOURCE_ROOT / module, target)
        if settings or (whole / SETTINGS_FILE).is_file():
            write_page_settings(whole, settings or {})
        if modules:
            _write_metadata(whole)
        if output.exists():
            shutil.rmtree(output)
        whole.rename(output)
    return sorted(path.relative_to(output) for path in output.rglob("*") if path.is_file())


def imported_modules(files: list[Path]) -> list[Path]:
    """Return the project's files that these Python files import, directly or through each other, sorted."""
    found: set[Path] = set()
    waiting = [module for file in files for module in _imports_of(file, package="")]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            package = ".".join(path.parent.parts)
            waiting += _imports_of(SOURCE_ROOT / path, package)
    return sorted(found)


def _tables_beside(module: Path) -> Iterator[Path]:
    return (SOURCE_ROOT / module).parent.glob("*.json")


def _write_metadata(bundle: Path) -> None:
    """Record the project's version in the bundle, where `importlib.metadata` finds it.

    A trainer compares its version with the run's, also where the project is not installed.
    """
    version = importlib.metadata.version(DISTRIBUTION)
    folder = bundle / f"{DISTRIBUTION.replace('-', '_')}-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {DISTRIBUTION}\nVersion: {version}\n", "utf-8")


def _imports_of(file: Path, package: str) -> list[Path]:
    try:
        tree = ast.parse(file.read_text("utf-8"), filename=str(file))
    except SyntaxError as error:
        raise ValueError(
            f"{file} line {error.lineno} is not valid Python ({error.msg}). Fix it before bundling"
        ) from error
    return [path for name in _imported_names(tree, package) for path in _files_of(name)]


def _imported_names(tree: ast.AST, package: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute_name(node, package)
            yield base
            # A name imported from a package may be one of its modules.
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and ENTRY_POINT.fullmatch(node.value):
            yield node.value.partition(":")[0]


def _absolute_name(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    anchor = parts[: len(parts) - node.level + 1]
    return ".".join([*anchor, node.module] if node.module else anchor)


def _files_of(name: str) -> Iterator[Path]:
    """Yield those of our files that importing `name` runs: the packages' and the module's own."""
    parts = name.split(".")
    if parts[0] not in PACKAGES:
        return
    for length in range(1, len(parts) + 1):
        for path in (Path(*parts[:length], "__init__.py"), Path(*parts[:length]).with_suffix(".py")):
            if (SOURCE_ROOT / path).is_file():
                yield path


def _check_output(output: Path) -> None:
    if output.exists() and not output.is_dir():
        raise ValueError(f"{output} is a file, expected a folder to write: --output FOLDER")
    if output.is_dir() and any(output.iterdir()) and not (output / "README.md").is_file():
        raise ValueError(f"{output} has files and is not a bundle. Give a new or empty folder: --output FOLDER")
