"""The settings of a static Space, which has no program to read variables: a file, written when it is bundled."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from ..endpoint import current_endpoint
from ..places import is_repository_name
from ..printing.marked_up import escaped
from ..run_files import NEWEST_PICTURE, REEL_FOLDER

SETTINGS_FILE = "settings.json"
HUB = "hub"
"""The Hub that the page reads from; unless it is set, the one that the Space is bundled for."""

ADDRESSES = (HUB, "source_code")
"""Settings that are web addresses."""

SPACE_VARIABLES = {
    "landing_page": "LANDING_SPACE",
    "training_dashboard": "DASHBOARD_SPACE",
    "text_to_image_demo": "DEMO_SPACE",
    "memory_calculator": "CALCULATOR_SPACE",
    "join_training": "JOIN_SPACE",
}
"""In which variable a page with a program is told where another one is, by the project's names for the Spaces."""

TITLE_OF_LINKS = '<meta property="og:title"'
REPOSITORIES = ("run",)
"""Settings that name a repository, `ORG/NAME`. All others name a Space or give its address."""


def parse_settings(texts: Iterable[str]) -> dict[str, str]:
    """Return settings by name from texts such as `run=my-org/birds`. Raises ValueError for a text without `=`."""
    settings = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise ValueError(f"--set got {text!r}, expected NAME=VALUE, for example --set run=my-org/birds")
        settings[name] = value
    return settings


def write_page_settings(space: Path, settings: Mapping[str, str]) -> None:
    """Write the settings into a Space's `settings.json`, which names what can be set, with defaults.

    Raises ValueError for a Space without that file, an unknown name, and a value that is not an address or repository.
    """
    path = space / SETTINGS_FILE
    if not path.is_file():
        raise ValueError(
            f"The Space {space.name} has no {SETTINGS_FILE}, --set {'='.join(next(iter(settings.items())))} would have "
            "no effect: it reads the environment of the program. Set variables there, or with publish space --set"
        )
    known = json.loads(path.read_text("utf-8"))
    if unknown := sorted(set(settings) - set(known)):
        raise ValueError(f"The page has no setting {', '.join(unknown)}. There are: {', '.join(known)}")
    values = {**known, HUB: current_endpoint(), **settings}
    for name, value in values.items():
        if value:
            is_address = name in ADDRESSES or (name not in REPOSITORIES and "://" in value)
            (_check_address if is_address else check_repository)(name, value)
    path.write_text(json.dumps(values, indent=2) + "\n", "utf-8")
    page = space / "index.html"
    if values.get("run") and page.is_file():
        page.write_text(
            page.read_text("utf-8").replace(TITLE_OF_LINKS, preview_of_links(values) + TITLE_OF_LINKS), "utf-8"
        )


def preview_of_links(values: Mapping[str, str]) -> str:
    """Return the tag for the run's newest picture, which is shown where a link to the page is shared."""
    address = f"{values[HUB].rstrip('/')}/{values['run']}/resolve/main/{REEL_FOLDER}/{NEWEST_PICTURE}"
    return f'<meta property="og:image" content="{escaped(address)}">\n'


def _check_address(name: str, value: str) -> None:
    parts = urlsplit(value)
    is_plain = parts.scheme in ("http", "https") and parts.hostname and not parts.username and not parts.query
    if not is_plain or (name == HUB and parts.path.strip("/")):
        example = "https://huggingface.co" if name == HUB else "https://example.org/code"
        raise ValueError(f"{name} is {value!r}, expected a web address such as {example}")


def check_repository(name: str, value: str) -> None:
    """Raise ValueError, which begins with what is named, for anything but `ORG/NAME`."""
    if not is_repository_name(value):
        raise ValueError(f"{name} is {value!r}, expected ORG/NAME")
