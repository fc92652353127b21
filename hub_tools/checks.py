"""Checks of user settings: one line that names the setting, what was seen and what was expected."""

import difflib
from collections.abc import Iterable


def check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    """Raise ValueError unless the value is one of the choices."""
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; expected one of {', '.join(map(str, choices))}.")


def check_positive(settings: object, *names: str) -> None:
    """Raise ValueError unless each of these attributes is above 0, or None where that is allowed."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and not value > 0:
            raise ValueError(f"{name} is {value}; expected a number above 0.")


def check_counts(settings: object, *names: str) -> None:
    """Raise ValueError unless each of these attributes is at least 1, or None where that is allowed."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and not value >= 1:
            raise ValueError(f"{name} is {value}; expected at least 1.")


def check_known(names: Iterable[str], known: Iterable[str], *, of: str, cure: str) -> None:
    """Raise ValueError that names what is not known, and the known names that come nearest."""
    known = sorted(known)
    if unknown := sorted(set(names) - set(known)):
        near = [match for name in unknown for match in difflib.get_close_matches(name, known, n=2)]
        nearest = f"; nearest: {', '.join(dict.fromkeys(near))}" if near else ""
        raise ValueError(f"Unknown setting {', '.join(unknown)} of {of}{nearest}. {cure}")
