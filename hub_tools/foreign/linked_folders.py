"""Folders of other people, in which links lead elsewhere: every place is walked once, so that loops end."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path


def files_below(folder: Path, suffixes: tuple[str, ...] = ("",)) -> list[Path]:
    """Return the files of a folder and those below whose names end so, in any case, sorted; see `walk_once`."""
    walk = walk_once(folder)
    return sorted(folder / (below + name) for below, names in walk for name in names if name.lower().endswith(suffixes))


def walk_once(
    folder: Path, on_error: Callable[[OSError], None] = lambda error: None
) -> Iterator[tuple[str, list[str]]]:
    """Yield the folder and those below by name, with the names of their files; one folder is in memory at a time.

    The first value is a folder's path below the first one, empty or with a slash at its end. Links to folders are
    followed, except to one that is walked anyway and to one that contains the first: such links count as files.
    """
    root = Path(os.path.realpath(folder))
    elsewhere: set[Path] = set()
    for name, folders, names in os.walk(folder, onerror=on_error, followlinks=True):
        place, followed, left_out = Path(name), [], []
        for one in sorted(folders):
            target, is_link = Path(os.path.realpath(place / one)), (place / one).is_symlink()
            is_inside = target.is_relative_to(root)
            if target in elsewhere or (is_link and (is_inside or root.is_relative_to(target))):
                left_out += [one] if is_link else []  # a folder itself is read under the name of an earlier link
            else:
                followed.append(one)
                elsewhere.update(() if is_inside else (target,))
        folders[:] = followed
        below = place.relative_to(folder).as_posix()
        yield "" if below == "." else f"{below}/", sorted((*names, *left_out))
