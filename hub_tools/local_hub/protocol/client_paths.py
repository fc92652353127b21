"""Which names and paths a client may use. Names never reach the file system: contents are stored under their digest."""

import re

from .hub_error import bad_request

NAME_PATTERN = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_-])?")
REVISION_PATTERN = re.compile(r"[A-Za-z0-9._][A-Za-z0-9._/+-]{0,199}")
RESERVED_NAMESPACES = frozenset({"api", "datasets", "spaces", "models", "lfs", "settings", "buckets", "xet"})
MAX_PATH_BYTES = 1024


def check_name(name: object, what: str) -> str:
    """Return `name` if it can name a user, an organization or a repository, else raise a 400."""
    valid = isinstance(name, str) and NAME_PATTERN.fullmatch(name) and "--" not in name and ".." not in name
    if not valid or str(name).endswith((".git", ".ipynb")):
        raise bad_request(f"Invalid {what} name {name!r}: use 1-96 letters, digits, '-', '_' and '.', as in my-{what}")
    return str(name)


def check_namespace(name: object, what: str) -> str:
    """Return `name` if it can own repositories, else raise a 400."""
    if str(name).lower() in RESERVED_NAMESPACES:
        raise bad_request(f"The {what} name {name!r} is reserved: choose another one")
    return check_name(name, what)


def check_reference_name(name: object) -> str:
    """Return `name` if it can name a branch or a tag, else raise a 400."""
    valid = isinstance(name, str) and REVISION_PATTERN.fullmatch(name) and ".." not in name and "//" not in name
    if not valid or str(name).startswith("refs/") or str(name).endswith(("/", ".lock")):
        raise bad_request(f"Invalid branch or tag name {name!r}: use letters, digits, '.', '_', '-' and '/'")
    return str(name)


def check_path_in_repository(path: object) -> str:
    """Return `path` if it is a plain relative POSIX path, else raise a 400 that says what is wrong with it."""
    problem = _path_problem(path)
    if problem:
        raise bad_request(f"Invalid path {path!r}: {problem}. Use a relative path such as data/train-00000.parquet")
    return str(path)


def _path_problem(path: object) -> str | None:
    if not isinstance(path, str) or not path:
        return "it is empty"
    if path.startswith("/"):
        return "it is absolute"
    if "\\" in path or any(ord(character) < 32 or ord(character) == 127 for character in path):
        return "it has a backslash or a control character"
    try:
        if len(path.encode()) > MAX_PATH_BYTES:
            return f"it is longer than {MAX_PATH_BYTES} bytes"
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts):
        return "it has an empty, '.' or '..' part"
    if any(part.lower() == ".git" for part in parts):
        return "it has a '.git' part"
    return None
