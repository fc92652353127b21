"""Notebooks executed as a person would, cell by cell, in a kernel of their own."""

from collections.abc import Mapping
from pathlib import Path

import nbclient
import nbformat

SECONDS_FOR_A_CELL = 150


def executed(path: Path, environment: Mapping[str, str], folder: Path) -> nbformat.NotebookNode:
    """Return the notebook with what its cells show in this environment; a cell that fails fails the test."""
    notebook = nbformat.read(path, as_version=4)
    resources = dict(metadata=dict(path=str(folder)))
    client = nbclient.NotebookClient(
        notebook, timeout=SECONDS_FOR_A_CELL, kernel_name="python3", resources=resources, record_timing=False
    )
    return client.execute(env=dict(environment))


def outputs_of(notebook: nbformat.NotebookNode) -> list[str]:
    """Return, for each code cell, the text and HTML that it has shown in the end."""
    return ["\n".join(map(_text, cell.outputs)) for cell in notebook.cells if cell.cell_type == "code"]


def _text(output: nbformat.NotebookNode) -> str:
    if output.output_type == "stream":
        return output.text
    return "\n".join(str(value) for kind, value in output.data.items() if kind.startswith("text/"))
