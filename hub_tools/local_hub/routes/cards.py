"""The YAML block at the top of a README: reading it for listings, and reporting what is wrong with it."""

import re
import sqlite3
from typing import cast

import yaml

from ...foreign.json_texts import collection_paused
from ..store.object_store import ObjectStore
from ..store.trees import find_entry

FRONT_MATTER = re.compile(r"\A﻿?\s*---[ \t]*\r?\n(.*?)(?:\r?\n)?---[ \t]*(?:\r?\n|\Z)", re.DOTALL)
MAX_CARD_BYTES = 4 << 20
MAX_CARD_NODES = 50_000
TAG_FIELDS = {"datasets": "dataset:", "license": "license:", "base_model": "base_model:", "library_name": ""}


class CardError(ValueError):
    """The YAML block of a README cannot be used."""


def front_matter(text: str) -> dict:
    """Return the YAML block of a README as plain JSON values; {} where there is none. Raises CardError."""
    match = FRONT_MATTER.match(text)
    if match is None:
        return {}
    try:
        with collection_paused():
            data = yaml.safe_load(match.group(1))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise CardError(f"The YAML block of README.md cannot be read: {error}") from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise CardError(f"The YAML block of README.md must be a mapping, not {type(data).__name__}")
    return cast("dict", _PlainValues().plain(data))


def card_of_commit(connection: sqlite3.Connection, objects: ObjectStore, commit: sqlite3.Row) -> dict:
    """Return the card data of a commit; {} without a README or with an unusable one."""
    entry = find_entry(connection, commit, "README.md")
    if entry is None or entry["size"] > MAX_CARD_BYTES:
        return {}
    try:
        return front_matter(objects.path_of(entry["sha256"]).read_text("utf-8", "replace"))
    except CardError:
        return {}


def tags_of_card(card: dict) -> list[str]:
    """Return the tags by which listings find a repository."""
    tags = list(_names(card.get("tags")))
    for field, prefix in TAG_FIELDS.items():
        tags += [prefix + name for name in _names(card.get(field))]
    tags += list(_names(card.get("pipeline_tag")))
    return list(dict.fromkeys(tags))


def _names(value: object) -> list[str]:
    values = value if isinstance(value, list) else [value]
    return [name for name in values if isinstance(name, str) and name]


class _PlainValues:
    """Copies a YAML document to JSON values; refuses one that aliases blow up."""

    def __init__(self) -> None:
        self.num_nodes = 0

    def plain(self, value: object) -> object:
        self.num_nodes += 1
        if self.num_nodes > MAX_CARD_NODES:
            raise CardError(f"The YAML block of README.md has more than {MAX_CARD_NODES} values")
        if isinstance(value, dict):
            return {str(key): self.plain(item) for key, item in value.items()}
        if isinstance(value, (list, tuple, set)):
            return [self.plain(item) for item in value]
        finite = not isinstance(value, float) or abs(value) < float("inf")
        return value if isinstance(value, (str, int, float, type(None))) and finite else str(value)
