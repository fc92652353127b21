"""Progress in a pipe: a line now and then, without the bar."""

import io

import pytest
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn

from hub_tools.printing import progress_lines
from hub_tools.printing.consoles import PrintableConsole, open_progress

NUM_STEPS = 20


@pytest.mark.parametrize(("every", "num_lines"), [(0.0, NUM_STEPS + 1), (1000.0, 0)])
def test_long_work_prints_lines_into_a_pipe_and_short_work_nothing(
    monkeypatch: pytest.MonkeyPatch, every: float, num_lines: int
) -> None:
    monkeypatch.setattr(progress_lines, "SECONDS_BETWEEN_LINES", every)
    pipe = io.StringIO()
    columns = TextColumn("training"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}")
    with open_progress(*columns, console=PrintableConsole(file=pipe, width=100)) as bar:
        task = bar.add_task("starting", total=NUM_STEPS)
        for step in range(1, NUM_STEPS + 1):
            bar.update(task, completed=step, description=f"error [{1 / step:.2f}]")
    lines = pipe.getvalue().splitlines()
    assert len(lines) == num_lines
    assert not lines or lines[-1].split() == ["training", f"{NUM_STEPS}/{NUM_STEPS}", "error", "[0.05]"], (
        "a bar has no use there"
    )
