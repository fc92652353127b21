"""What peers compute, send and publish is what it was when it was frozen; see `freeze.py`."""

import pytest
from freeze import COMMAND, is_equal, measure, read_frozen, without_rounding

FROZEN = read_frozen()
SECTIONS = ("aggregation", "arithmetic", "files", "messages", "protocol", "training")
DEPENDS_ON = {
    "bits": ("processor", "torch", "numpy", "bitsandbytes"),
    "by_matplotlib": ("matplotlib",),
    "by_transformers": ("tokenizers", "transformers"),
}
"""What is equal to the last bit only where these are the same: keys of `digests.json`, and of its `environment`."""

MOST_LINES = 20


@pytest.fixture(scope="module")
def measured():
    return measure()


def flat(value, path=()):
    """Yield every leaf of nested dicts and lists with its path."""
    if isinstance(value, (dict, list)) and value:
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from flat(part, (*path, key))
    else:
        yield path, value


def differences(seen, expected, belongs):
    """Return a line for everything that differs among the leaves whose path belongs to what is compared."""
    seen, expected = ({path: leaf for path, leaf in flat(value) if belongs(path)} for value in (seen, expected))
    missing = object()
    pairs = {path: (seen.get(path, missing), expected.get(path, missing)) for path in seen | expected}
    lines = [
        f"{' / '.join(map(str, path))}: {one!r}, frozen {other!r}".replace(repr(missing), "nothing")
        for path, (one, other) in pairs.items()
        if not is_equal(path, one, other)
    ]
    return (
        "\n".join([*lines[:MOST_LINES], f"({len(lines)} differences; if they are meant: {COMMAND})"]) if lines else ""
    )


@pytest.mark.parametrize("section", SECTIONS)
def test_everything_is_as_it_was_frozen_but_for_rounding(measured, section):
    found = differences(measured[section], FROZEN[section], lambda path: not DEPENDS_ON.keys() & set(path))
    assert not found, found


@pytest.mark.parametrize("kind", DEPENDS_ON)
def test_bits_are_as_they_were_frozen_with_the_same_software_and_kind_of_processor(measured, kind):
    then, now = ({name: v["environment"][name] for name in DEPENDS_ON[kind]} for v in (FROZEN, measured))
    if then != now:
        pytest.skip(f"frozen with {then}, this is {now}; what does not depend on that is compared by the other test")
    seen, expected = ({section: value[section] for section in SECTIONS} for value in (measured, FROZEN))
    found = differences(seen, expected, lambda path: kind in path)
    assert not found, found


def test_what_is_frozen_on_another_processor_changes_only_where_more_than_the_rounding_changed():
    frozen = dict(numbers=[1.0, 2.0], norm=1e-6, bits="ab", gone=1)
    seen = dict(numbers=[1.000001, 2.1], norm=2e-6, bits="cd", new=[1.0])
    assert without_rounding(seen, frozen) == dict(numbers=[1.0, 2.1], norm=2e-6, bits="cd", new=[1.0])


def test_every_part_of_the_frozen_file_is_compared():
    assert FROZEN.keys() == {"environment", *SECTIONS}
    paths = [path for section in SECTIONS for path, _ in flat(FROZEN[section])]
    assert all(any(kind in path for path in paths) for kind in DEPENDS_ON)
    assert len(paths) > 1000
