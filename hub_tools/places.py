"""Where something is: in a folder of this machine, or in a repository of the Hub, `ORG/NAME`."""

from pathlib import Path


class NoSuchPlaceError(ValueError, FileNotFoundError):
    """What was named is no folder, and can be no repository."""


def local_folder(place: str | Path, *, expected: str, revision: str | None = None) -> Path | None:
    """Return the folder that is meant, or None if a repository is; whether there is one, only the Hub can tell.

    Raises:
        NoSuchPlaceError: it is neither; the message ends in what is `expected`.
        ValueError: a revision is asked of a folder.
    """
    if Path(place).is_dir():
        if revision is not None:
            raise ValueError(f"{place} is a folder and has no revision {revision!r}. Leave out --revision.")
        return Path(place)
    if not is_repository_name(str(place)):
        raise NoSuchPlaceError(f"There is no folder {place}. Expected {expected}.")
    return None


def is_repository_name(name: str) -> bool:
    """Tell whether a text is the name of a repository, `ORG/NAME`, by its form alone."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return name.count("/") == 1
