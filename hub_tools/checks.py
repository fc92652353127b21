"""Checks of user settings: one line that names the setting, what was seen and what was expected."""

import difflib
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard

MOST_LAYERS, LARGEST_SIZE = 4096, 10**7
"""Configurations of models come from strangers; a larger number is a mistake or a joke."""


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a stranger's value is a number, finite, and one that a float holds: 10**400 of JSON is not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


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


def check_model_sizes(settings: Mapping[str, object]) -> None:
    """Raise ValueError for numbers of a model's configuration that no model has: they would take hours or all memory.

    Counts of layers and experts are at most `MOST_LAYERS`, other whole numbers at most `LARGEST_SIZE`.
    """
    for name, value in settings.items():
        most = MOST_LAYERS if re.search("layer|expert|block|depth|group", name) else LARGEST_SIZE
        if isinstance(value, float) and not is_number(value):
            raise ValueError(f"{name} is {value} in the model's settings; expected a number.")
        if type(value) is int and abs(value) > most:
            raise ValueError(f"{name} is {str(value)[:40]} in the model's settings; expected at most {most}.")
        if isinstance(value, list | tuple) and len(value) > MOST_LAYERS:
            raise ValueError(
                f"{name} has {len(value)} entries in the model's settings; expected at most {MOST_LAYERS}."
            )


def check_loaded(model: Any, found: Mapping[str, Iterable[str]], place: str, *, may_have_others: bool = True) -> None:
    """Raise ValueError unless a checkpoint had all parameters of its model, by transformers' loading info, all finite.

    What it lacks is random otherwise; what it has besides is not used, and may be a head of another task.
    """
    missing, others = sorted(found["missing_keys"]), [] if may_have_others else sorted(found["unexpected_keys"])
    damaged = [name for name, parameter in model.named_parameters() if not parameter.isfinite().all()]
    for seen, names in (("lack", missing), ("have the unknown", others), ("are not finite numbers in", damaged)):
        if names:
            raise ValueError(
                f"The weights of {place} {seen} {names[0]} ({len(names)} such parameters), expected those of its "
                "config.json. Download them again, or load an earlier checkpoint: --revision COMMIT"
            )
