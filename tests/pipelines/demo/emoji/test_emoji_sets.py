import json
import os
import subprocess
import sys

import pytest

from pipelines.demo.emoji.emoji_sets import STYLES, read_drawings, read_names

NOTO = STYLES[1]


def change(source, style, name, **fields):
    path = source / "node_modules" / style.package / name
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_drawings_are_whole_svg_files_by_code_points_without_variation_selectors(make_sets, make_entry):
    source = make_sets([make_entry("1F34E", "red apple")])
    icons = {"heart": {"body": "<b/>", "width": 20}, "apple": {"body": "<a/>"}}
    change(source, NOTO, "icons.json", icons=icons, aliases={"love": {"parent": "heart"}})
    change(source, NOTO, "chars.json", **{"2764-fe0f": "love", "1f34e": "apple"})
    drawings = read_drawings(source, NOTO)
    assert drawings.keys() == {"2764", "1f34e"}
    assert drawings["2764"].endswith('viewBox="0 0 20 16"><b/></svg>')
    assert drawings["1f34e"].endswith('viewBox="0 0 16 16"><a/></svg>')


def test_a_mirrored_alias_is_drawn_mirrored(make_sets, make_entry):
    source = make_sets([make_entry("1F449", "hand")])
    change(source, NOTO, "icons.json", aliases={"left": {"parent": "1F449", "hFlip": True}})
    change(source, NOTO, "chars.json", **{"1f448": "left"})
    assert '<g transform="translate(16 0) scale(-1 1)"><circle' in read_drawings(source, NOTO)["1f448"]


def test_what_is_missing_or_damaged_names_the_command_that_fetches_it(make_sets, make_entry, tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"expected the npm package openmoji. Fetch it: dalle-collab demo emoji-f"
    ):
        read_names(tmp_path)
    source = make_sets([{"hexcode": "1F34E"}])
    with pytest.raises(ValueError, match=r"list of emoji in .* is damaged; expected objects with annotation, group"):
        read_names(source)
    change(source, NOTO, "chars.json", **{"1f34e": "absent"})
    with pytest.raises(ValueError, match=r"iconify-json/noto in .* is damaged \(KeyError\('absent'\)\)"):
        read_drawings(source, NOTO)
    (source / "node_modules" / NOTO.package / "icons.json").write_text("{")
    with pytest.raises(ValueError, match=r"icons.json is damaged: .*Fetch it again: dalle-collab demo emoji-fetch"):
        read_drawings(source, NOTO)


def test_without_npm_the_fetch_says_how_to_get_it(tmp_path):
    code = "from pathlib import Path; from pipelines.demo.emoji.emoji_sets import *; fetch_emoji_sets(Path('x'))"
    environment = {**os.environ, "PATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and "npm was not found" in done.stderr
