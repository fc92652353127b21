"""Runs when an interpreter starts that has this folder on its path: makes installed packages invisible in it.

`HIDDEN_PACKAGES`: top-level packages, separated by commas. `VISIBLE_FOLDER`: what lies in it is seen all the same.
"""

import os
import sys
from pathlib import Path

HIDDEN = frozenset(os.environ.get("HIDDEN_PACKAGES", "").split(","))
VISIBLE_FOLDER = os.environ.get("VISIBLE_FOLDER", "")


class Hiding:
    """A finder that finds what another one does, but nothing that is hidden.

    It finds nothing instead of raising: packages ask in this way whether an optional one is installed.
    """

    def __init__(self, finder):
        self._finder = finder

    def find_spec(self, name, path=None, target=None):
        found = self._finder.find_spec(name, path, target)
        is_hidden = found is not None and name.partition(".")[0] in HIDDEN and not _is_visible(found)
        return None if is_hidden else found

    def __getattr__(self, name):
        return getattr(self._finder, name)


def _is_visible(spec):
    places = [spec.origin, *(spec.submodule_search_locations or ())]
    return VISIBLE_FOLDER and any(place and Path(place).is_relative_to(VISIBLE_FOLDER) for place in places)


sys.meta_path[:] = map(Hiding, sys.meta_path)
