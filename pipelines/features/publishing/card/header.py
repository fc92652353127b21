"""The YAML header of a card: what the run knows, and everything else that its organiser has written there."""

import logging
import re
from collections.abc import Mapping
from typing import Any

import yaml

from hub_tools.foreign.json_texts import collection_paused

logger = logging.getLogger(__name__)

LONGEST_HEADER = 65_536
MOST_TAGS = 64
_HEADER = re.compile(r"\A\s*---[ \t]*\r?\n(.*?)^---[ \t]*\r?$", re.DOTALL | re.MULTILINE)


def organisers_header(card: str | None) -> dict[str, object]:
    """Return the header of a card on the Hub; empty if there is none, or none that can be read."""
    match = _HEADER.match(card or "")
    if match is None:
        return {}
    try:
        if len(match.group(1)) > LONGEST_HEADER:
            raise ValueError(f"it has more than {LONGEST_HEADER} characters")
        with collection_paused():
            values = yaml.safe_load(match.group(1))
        if not isinstance(values, dict):
            raise ValueError(f"it is a {type(values).__name__}, not a mapping")
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        logger.warning("The header of README.md is lost with the next checkpoint, for it cannot be read: %s", error)
        return {}
    return {str(name): value for name, value in values.items()}


def merged_header(own: Mapping[str, Any], organisers: Mapping[str, Any]) -> str:
    """Return the header's lines: `own` where both say something, and the tags of both."""
    values = dict(own) | {name: value for name, value in organisers.items() if name not in own}
    values["tags"] = list(dict.fromkeys([*own.get("tags", ()), *_tags(organisers)]))[:MOST_TAGS]
    return f"---\n{yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=120)}---\n"


def _tags(header: Mapping[str, object]) -> list[str]:
    tags = header.get("tags")
    return [tag for tag in tags if isinstance(tag, str)] if isinstance(tags, list) else []
