"""Four free sets of emoji from npm: who drew them, under which licence, and their drawings as SVG.

Nothing of them is stored in this repository. Iconify's packages hold all four in one format, with a table from
Unicode's code points to drawings; the package of OpenMoji has Unicode's names.
"""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NAMES_PACKAGE = "openmoji"
NAMES_VERSION = "17.0.0"
VARIATION_SELECTOR = "-fe0f"


@dataclass(frozen=True, kw_only=True)
class EmojiStyle:
    """One set of emoji."""

    name: str
    """Its name in captions."""

    package: str
    """Its npm package."""

    version: str
    """The package's version; another one has other drawings."""

    license: str
    """Licence of the drawings, as in SPDX."""

    attribution: str
    """Who is to be credited, and where the set lives."""


STYLES = (
    EmojiStyle(
        name="OpenMoji",
        package="@iconify-json/openmoji",
        version="1.2.29",
        license="CC-BY-SA-4.0",
        attribution="OpenMoji, the open-source emoji and icon project, https://openmoji.org",
    ),
    EmojiStyle(
        name="Noto",
        package="@iconify-json/noto",
        version="1.2.9",
        license="Apache-2.0",
        attribution="Google, Noto Emoji, https://github.com/googlefonts/noto-emoji",
    ),
    EmojiStyle(
        name="Twemoji",
        package="@iconify-json/twemoji",
        version="1.2.5",
        license="CC-BY-4.0",
        attribution="Twitter and other contributors, Twemoji, https://github.com/jdecked/twemoji",
    ),
    EmojiStyle(
        name="Fluent",
        package="@iconify-json/fluent-emoji-flat",
        version="1.2.6",
        license="MIT",
        attribution="Microsoft, Fluent Emoji, https://github.com/microsoft/fluentui-emoji",
    ),
)


def fetch_emoji_sets(folder: Path) -> None:
    """Install the sets and Unicode's names below the folder, with npm; no script of a package is run.

    Raises:
        OSError: npm is missing, or failed; the message has its last line of output.
    """
    folder.mkdir(parents=True, exist_ok=True)
    packages = [f"{style.package}@{style.version}" for style in STYLES] + [f"{NAMES_PACKAGE}@{NAMES_VERSION}"]
    command = ["npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--ignore-scripts", *packages]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        raise OSError("npm was not found; it fetches the emoji. Install it: apt-get install npm") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise OSError(f"npm could not fetch the emoji: {last}. Check the network and run the command again.")


def read_names(source: Path) -> list[dict[str, Any]]:
    """Return OpenMoji's list of emoji: Unicode's name, groups and skin tone of each.

    Raises:
        FileNotFoundError: the folder has no such list.
        ValueError: the list is damaged.
    """
    entries = _read_json(source, NAMES_PACKAGE, "data/openmoji.json")
    needed = {"hexcode", "annotation", "group", "subgroups", "skintone"}
    if not isinstance(entries, list) or not all(isinstance(one, dict) and needed <= one.keys() for one in entries):
        raise ValueError(
            f"The list of emoji in {source} is damaged; expected objects with {', '.join(sorted(needed))}. "
            f"Fetch it again: dalle-collab demo emoji-fetch --output {source}"
        )
    return entries


def read_drawings(source: Path, style: EmojiStyle) -> dict[str, str]:
    """Return the set's drawings as SVG by their code points; those that it has under several code points as well.

    Raises:
        FileNotFoundError: the folder has no such package.
        ValueError: the package is damaged.
    """
    icons = _read_json(source, style.package, "icons.json")
    names = _read_json(source, style.package, "chars.json")
    try:
        return {code_points(key): _svg(icons, name) for key, name in names.items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"The package {style.package} in {source} is damaged ({error!r}); expected icons by name in icons.json and "
            f"names by code points in chars.json. Fetch it again: dalle-collab demo emoji-fetch --output {source}"
        ) from None


def code_points(text: str) -> str:
    """Return the code points of an emoji as all sets agree on them: lower case, without variation selectors."""
    return text.lower().replace(VARIATION_SELECTOR, "")


def _svg(icons: Mapping[str, Any], name: str) -> str:
    """Return a drawing as a file's text, with Iconify's defaults; an alias may be mirrored."""
    alias = icons.get("aliases", {}).get(name, {})
    icon = icons["icons"][alias.get("parent", name)]
    width, height = (icon.get(side, icons[side]) for side in ("width", "height"))
    body = icon["body"]
    if alias.get("hFlip"):
        body = f'<g transform="translate({width} 0) scale(-1 1)">{body}</g>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="0 0 {width} {height}">{body}</svg>'
    )


def _read_json(source: Path, package: str, name: str) -> Any:
    path = source / "node_modules" / package / name
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        cure = f"Fetch it: dalle-collab demo emoji-fetch --output {source}"
        raise FileNotFoundError(f"There is no {path}; expected the npm package {package}. {cure}") from None
    except ValueError as error:
        cure = f"Fetch it again: dalle-collab demo emoji-fetch --output {source}"
        raise ValueError(f"{path} is damaged: {error}. {cure}") from None
