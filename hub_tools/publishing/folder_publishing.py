"""Publishing a folder on the Hub as it is, in one commit."""

from dataclasses import dataclass
from pathlib import Path

import yaml

REPOSITORY_TYPES = ("model", "dataset", "space")
README_NAME = "README.md"
UNNAMED = b"THIS_REPOSITORY"
"""What cards that are written before they have a repository call it."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """Result of a publication."""

    url: str
    """Address of the commit with the folder."""

    changed: bool
    """False when the Hub already had exactly this, and no commit was made."""


def publish_folder(
    folder: Path | str,
    repo_id: str,
    *,
    repo_type: str = "model",
    private: bool = False,
    message: str | None = None,
    replace: bool = False,
) -> Published:
    """Publish all files of a folder in one commit, except hidden files. Repeating it makes no commit.

    With `replace`, files that the repository has and the folder has not are deleted in the same commit. Raises
    ValueError for a folder without files, and for a Space whose README.md names no sdk.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    from ..foreign.downloads import listed_files
    from .commits import Operation, commit_over, patiently

    source = Path(folder)
    head = open_repository(repo_id, repo_type, private=private, space_sdk=_check_folder(source, repo_type))
    files = {path.relative_to(source).as_posix(): path for path in sorted(source.rglob("*")) if path.is_file()}
    operations: list[Operation] = [
        CommitOperationAdd(path_in_repo=name, path_or_fileobj=_named(path, repo_id) if name == README_NAME else path)
        for name, path in files.items()
        if not any(part.startswith(".") or part == "__pycache__" for part in name.split("/"))
    ]
    if replace:
        kept = {".gitattributes", *(operation.path_in_repo for operation in operations)}
        there = patiently(lambda: listed_files(repo_id, head, repo_type))
        operations += [CommitOperationDelete(path_in_repo=file.path) for file in there if file.path not in kept]
    title = message or f"Publish {source.resolve().name}"
    commit = commit_over(head, repo_id, operations, title, repo_type=repo_type)
    return Published(url=commit.url, changed=commit.oid != head)


def _named(readme: Path, repo_id: str) -> bytes:
    """Return a card in which the repository's name stands where it was not known yet, so that its examples work."""
    return readme.read_bytes().replace(UNNAMED, repo_id.encode())


def open_repository(repo_id: str, repo_type: str, *, private: bool = False, space_sdk: str | None = None) -> str:
    """Create the repository if it is missing, and return its newest commit; ValueError as `check_visibility`."""
    from huggingface_hub import HfApi

    from .commits import patiently, understood_answers

    api = HfApi()

    def opened() -> tuple[str, bool | None]:
        with understood_answers():
            api.create_repo(repo_id, repo_type=repo_type, private=private, exist_ok=True, space_sdk=space_sdk)
            found = api.repo_info(repo_id, repo_type=repo_type)
        return str(found.sha), found.private

    head, is_private = patiently(opened)
    check_visibility(repo_id, is_private, wanted=private)
    return head


def check_visibility(repository: str, is_private: bool | None, *, wanted: bool) -> None:
    """Raise ValueError when something meant to be private would go to a public repository."""
    if wanted and not is_private:
        raise ValueError(
            f"{repository} exists and is public, --private expects a private one. "
            "Make it private in its settings, or choose another name"
        )


def space_sdk(readme: Path) -> str:
    """Return the sdk that a Space's README.md names. Raises ValueError where it names none."""
    text = readme.read_text("utf-8") if readme.is_file() else ""
    block = text.split("---", 2)[1] if text.startswith("---") and text.count("---") >= 2 else ""
    try:
        data = yaml.safe_load(block)
    except yaml.YAMLError as error:
        raise ValueError(f"The YAML block of {readme} cannot be read: {' '.join(str(error).split())}") from error
    sdk = data.get("sdk") if isinstance(data, dict) else None
    if not sdk:
        raise ValueError(f"{readme} names no sdk, a Space needs one. Begin it with a YAML block that has: sdk: gradio")
    return str(sdk)


def _check_folder(folder: Path, repo_type: str) -> str | None:
    if repo_type not in REPOSITORY_TYPES:
        raise ValueError(f"The type is {repo_type}, expected one of {', '.join(REPOSITORY_TYPES)}: --type model")
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder. Give the folder with the files to publish")
    if not any(path.is_file() for path in folder.rglob("*")):
        raise ValueError(f"{folder} has no files. Give the folder with the files to publish")
    if linked := next((path for path in folder.rglob("*") if path.is_symlink() and path.is_dir()), None):
        raise ValueError(f"{linked} is a link to a folder, and would be left out. Publish a copy: cp -rL {folder} COPY")
    return space_sdk(folder / README_NAME) if repo_type == "space" else None
