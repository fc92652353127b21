"""Publishing a folder on the Hub as it is, in one commit."""

from dataclasses import dataclass
from pathlib import Path

import yaml

REPOSITORY_TYPES = ("model", "dataset", "space")
README_NAME = "README.md"


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
    from huggingface_hub import HfApi

    source = Path(folder)
    sdk = _check_folder(source, repo_type)
    api = HfApi()
    api.create_repo(repo_id, repo_type=repo_type, private=private, exist_ok=True, space_sdk=sdk)
    found = api.repo_info(repo_id, repo_type=repo_type)
    check_visibility(repo_id, found.private, wanted=private)
    commit = api.upload_folder(
        folder_path=source,
        repo_id=repo_id,
        repo_type=repo_type,
        commit_message=message or f"Publish {source.resolve().name}",
        ignore_patterns=["**/.*", ".*", "**/__pycache__/**", "__pycache__/**"],
        delete_patterns="*" if replace else None,
    )
    return Published(url=str(commit.commit_url), changed=commit.oid != found.sha)


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
    return space_sdk(folder / README_NAME) if repo_type == "space" else None
