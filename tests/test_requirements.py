"""setup.cfg holds the ranges, constraints.txt pins a version within each, and what repeats a range agrees with it."""

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from pipelines.features.admission_service.space import REQUIREMENTS

ROOT = Path(__file__).parents[1]
REPEATED = {
    **{
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in ROOT.glob("spaces/*/requirements.txt")
    },
    "the admission service's Space": REQUIREMENTS,
}


def requirements(text: str) -> dict[str, Requirement]:
    """Return the requirements of a text, one a line, by normalised name; comments are left out."""
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    return {canonicalize_name(found.name): found for found in map(Requirement, filter(None, lines))}


@pytest.fixture(scope="module")
def ranges(setup_cfg):
    """Return what setup.cfg asks for, installed, in its extras and for the tests."""
    asked = requirements(
        "\n".join([setup_cfg["options"]["install_requires"], *setup_cfg["options.extras_require"].values()])
    )
    return {name: found for name, found in asked.items() if name != setup_cfg["metadata"]["name"]}


@pytest.fixture(scope="module")
def pins():
    return requirements((ROOT / "constraints.txt").read_text(encoding="utf-8"))


def test_every_requirement_is_pinned_within_its_range(ranges, pins):
    missing = sorted(ranges.keys() - pins.keys())
    assert missing == [], "constraints.txt pins none of these: make constraints, or add NAME==VERSION"
    versions = {name: next(iter(pins[name].specifier)).version for name in ranges}
    outside = {name: version for name, version in versions.items() if version not in ranges[name].specifier}
    assert outside == {}, "constraints.txt pins these outside their range: make constraints"


def test_every_constraint_is_one_exact_public_version(pins):
    loose = [str(pin) for pin in pins.values() if [part.operator for part in pin.specifier] != ["=="] or pin.url]
    local = [str(pin) for pin in pins.values() if "+" in str(pin.specifier)]
    assert (loose, local) == ([], [])


@pytest.mark.parametrize("place", REPEATED)
def test_a_range_that_is_repeated_for_a_space_is_that_of_setup_cfg(place, ranges):
    repeated = requirements(REPEATED[place])
    assert repeated
    differing = [str(found) for name, found in repeated.items() if found.specifier != ranges[name].specifier]
    assert differing == []


def test_the_card_of_a_space_names_the_gradio_that_is_tested(pins):
    cards = {path: path.read_text(encoding="utf-8") for path in ROOT.glob("spaces/*/README.md")}
    named = {found[1] for text in cards.values() if (found := re.search(r"^sdk_version: (\S+)$", text, re.MULTILINE))}
    assert {f"=={version}" for version in named} == {str(pins["gradio"].specifier)}


def test_make_installs_with_the_constraints_and_again_when_they_change():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (stamp,) = [line for line in makefile.splitlines() if line.startswith("$(STAMP):")]
    assert "constraints.txt" in stamp.split()
    assert "pip install --constraint constraints.txt --editable '.[test]'" in makefile
