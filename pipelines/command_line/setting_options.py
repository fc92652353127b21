"""`--set NAME=VALUE`: settings of a run on the command line."""

import json
from typing import Any


def parse_setting(text: str) -> tuple[str, Any]:
    """Return name and value; a value that is no JSON is text.

    Raises:
        ValueError: this is not NAME=VALUE.
    """
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise ValueError(f"--set got {text!r}; expected NAME=VALUE, for example --set target_batch_size=256.")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
