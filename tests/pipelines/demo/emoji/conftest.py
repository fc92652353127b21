"""Small sets of emoji in the layout of the npm packages."""

import json

import pytest

from pipelines.demo.emoji.emoji_sets import STYLES

FILLS = {"OpenMoji": "#d22f27", "Noto": "#ef5350", "Twemoji": "#dd2e44", "Fluent": "#f8312f"}


def entry(hexcode, name, **more):
    fields = {"hexcode": hexcode, "annotation": name, "group": "food-drink", "subgroups": "food-fruit", "skintone": ""}
    return fields | more


def write_sets(source, entries, styles=None, bodies=None):
    """Write the list of emoji, and a circle for each in each set; `styles`: hexcode -> the sets that have it."""
    names = source / "node_modules" / "openmoji" / "data"
    names.mkdir(parents=True)
    (names / "openmoji.json").write_text(json.dumps(entries))
    for style in STYLES:
        drawn = [one["hexcode"] for one in entries if style.name in (styles or {}).get(one["hexcode"], FILLS)]
        icons = {
            code: {"body": (bodies or {}).get(code) or circle(FILLS[style.name], 3 + number % 5)}
            for number, code in enumerate(drawn)
        }
        folder = source / "node_modules" / style.package
        folder.mkdir(parents=True)
        (folder / "icons.json").write_text(json.dumps({"icons": icons, "aliases": {}, "width": 16, "height": 16}))
        (folder / "chars.json").write_text(json.dumps({code.lower(): code for code in icons}))
    return source


def circle(fill, radius):
    return f'<circle cx="8" cy="8" r="{radius}" fill="{fill}"/>'


@pytest.fixture
def make_sets(tmp_path):
    return lambda entries, **more: write_sets(tmp_path / "source", entries, **more)


@pytest.fixture
def make_entry():
    return entry
