"""hivemind's interior is as the contract has it, and the project touches nothing of it that the contract leaves out.

What breaks when a release of hivemind moves something is in `hivemind_names.py`; this test says what moved.
"""

import importlib
import importlib.metadata

import pytest
from hivemind_names import CONTRACT, NOT_HIVEMINDS, Row
from hivemind_uses import all_uses, members_of, places_of


def objection_to(row: Row) -> str | None:
    """Say what has become of a name of hivemind's and what that breaks here; None if it is as it was."""
    path, _, name = row.name.rpartition(".")
    module, _, owner = path.rpartition(".")
    try:
        kind = getattr(importlib.import_module(f"hivemind.{module}"), owner)
        form = members_of(kind).get(name)
    except (ImportError, AttributeError):
        form = None
    if form == row.form:
        return None
    now = "is gone" if form is None else f"is now\n  {form}"
    used = ", ".join(f"pipelines/{file}" for file in row.files)
    return f"{row.name} was\n  {row.form}\nand {now}\nUsed in {used}: {row.reason}."


def test_everything_that_the_project_uses_of_hiveminds_interior_is_as_it_was():
    objections = [objection for row in CONTRACT if (objection := objection_to(row))]
    version = importlib.metadata.version("hivemind")
    assert not objections, f"hivemind {version} has moved {len(objections)} names:\n\n" + "\n\n".join(objections)


def test_the_contract_names_every_place_that_touches_hiveminds_interior_and_no_other():
    listed = {(row.name.rpartition(".")[2], f"pipelines/{file}") for row in CONTRACT for file in row.files}
    used = {(use.name, use.file) for use in all_uses() if use.name not in NOT_HIVEMINDS}
    missing = [place for pair in sorted(used - listed) for place in places_of(*pair)]
    assert not missing, "Find a public way, or add to tests/support/hivemind_names.py:\n" + "\n".join(missing)
    stale = [f"{name} in {file}" for name, file in sorted(listed - used)]
    assert not stale, f"No longer used; take them out of tests/support/hivemind_names.py: {'; '.join(stale)}"
    assert set(NOT_HIVEMINDS) <= {use.name for use in all_uses()}


def test_a_name_is_in_the_contract_once():
    names = [row.name for row in CONTRACT]
    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(form="(self)"), r"was\n  \(self\)\nand is now\n  async \(self, \*, step: "),
        (dict(name="averaging.averager.DecentralizedAverager._stride"), "and is gone\nUsed in pipelines/"),
        (dict(name="averaging.averager.Averager._step"), "and is gone"),
        (dict(name="averaging.average.DecentralizedAverager._step"), "and is gone"),
    ],
    ids=["signature", "name", "class", "module"],
)
def test_what_a_release_moves_is_said_with_what_it_was_and_who_needs_it(changes, message):
    row = next(row for row in CONTRACT if row.name == "averaging.averager.DecentralizedAverager._step")
    assert objection_to(row) is None
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(objection_to(row._replace(**changes)))
