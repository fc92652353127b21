"""Progress is a bar for a person and a few lines for a log."""

import io

from rich.console import Console

from hub_tools.printing.stage_progress import stage_progress


def test_a_log_gets_the_first_and_the_last_line_of_each_stage():
    log = io.StringIO()
    with stage_progress(Console(file=log, width=80)) as report:
        for done in range(1, 101):
            report("sampling", done, 100, "image codes")
        report("reading", 1234, None, "pictures")
    assert log.getvalue().splitlines() == [
        "sampling: 1 of 100 image codes",
        "sampling: 100 of 100 image codes",
        "reading: 1,234 pictures",
    ]


def test_a_terminal_gets_one_bar_per_stage():
    screen = io.StringIO()
    with stage_progress(Console(file=screen, force_terminal=True, width=120)) as report:
        report("sampling", 7, 7, "image codes")
        report("decoding", 1, 2, "pictures")
    shown = screen.getvalue().splitlines()
    assert any("sampling" in line and "7/7" in line for line in shown)
    assert any("decoding" in line and "1/2" in line and "pictures" in line for line in shown)
