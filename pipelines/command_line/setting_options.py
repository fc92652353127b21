"""`--set NAME=VALUE`: settings of a run on the command line."""

import json
from collections.abc import Sequence
from typing import Any


def parse_settings(texts: Sequence[str] | None) -> dict[str, Any]:
    """Return values by name; a value that is no JSON is text.

    Raises:
        ValueError: one of them is not NAME=VALUE.
    """
    return dict(_parse_setting(text) for text in texts or ())


def _parse_setting(text: str) -> tuple[str, Any]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise ValueError(f"--set got {text!r}; expected NAME=VALUE, for example --set target_batch_size=256.")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
