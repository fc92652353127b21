"""Notebooks are whole; one of them is committed with the pictures that it draws, all others without outputs."""

from pathlib import Path

import nbformat
import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "spaces").rglob("*.ipynb"))


WITH_OUTPUTS = "inference.ipynb"
MOST_BYTES = 200_000


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_is_committed_with_no_outputs_but_those_that_people_are_to_see(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert notebook.cells[0].source.startswith("# ") and cells
    if path.name != WITH_OUTPUTS:
        assert all(not cell.outputs and cell.execution_count is None for cell in cells)
        return
    (picture,) = [output for output in cells[-1].outputs if "image/png" in output.get("data", {})]
    told = [output.text for cell in cells for output in cell.outputs if output.output_type == "stream"]
    assert path.stat().st_size < MOST_BYTES and set(picture.data) == {"image/png", "text/plain"}
    assert told[0].startswith("demo/scenes: a ") and not any("/root" in text or "Error" in text for text in told)
