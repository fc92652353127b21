"""Where something is: in a local folder, or in a repository of the Hub, `ORG/NAME`; and the folder of keys."""

import os
from pathlib import Path


class NoSuchPlaceError(ValueError, FileNotFoundError):
    """What was named is not a folder, and cannot be a repository."""


def local_folder(place: str | Path, *, expected: str, revision: str | None = None) -> Path | None:
    """Return the folder that is meant, or None for a repository; whether that exists, only the Hub can tell.

    Raises:
        NoSuchPlaceError: it is neither; the message ends in what is `expected`.
        ValueError: a revision was given for a folder.
    """
    if Path(place).is_dir():
        if revision is not None:
            raise ValueError(f"{place} is a folder and has no revision {revision!r}. Leave out --revision.")
        return Path(place)
    if not is_repository_name(str(place)):
        raise NoSuchPlaceError(f"There is no folder {place}. Expected {expected}.")
    return None


def config_folder() -> Path:
    """Return this user's folder for what must not be lost, as keys, while a cache may be emptied at any time.

    It follows the XDG Base Directory Specification, in which a relative path counts as none.
    """
    given = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    home = Path(os.path.expanduser("~/.config"))  # noqa: PTH111 - Path's raises where a user has no home
    return (given if given.is_absolute() else home) / "dalle-collab"


def is_repository_name(name: str) -> bool:
    """Tell whether a text looks like the name of a repository, `ORG/NAME`."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return name.count("/") == 1
