import io
import threading

from rich.console import Console

from pipelines.tools.demo.running.progress_lines import ProgressLines


class Pipe(io.StringIO):
    """Sets an event when so many lines have been written."""

    def __init__(self, num_lines):
        super().__init__()
        self.num_lines, self.is_full = num_lines, threading.Event()

    def flush(self):
        if self.getvalue().count("\n") >= self.num_lines:
            self.is_full.set()


def test_a_file_gets_a_line_now_and_then_while_something_takes_long():
    pipe = Pipe(3)
    lines = ProgressLines(Console(file=pipe), seconds_between=0.02)
    with lines.doing("Training [together]"):
        lines.tell(lambda: "epoch 3/12")
        assert pipe.is_full.wait(60)
    assert all(
        line.startswith("  Training [together]: epoch 3/12, ") and line.endswith(" s so far")
        for line in pipe.getvalue().splitlines()
    )


def test_the_innermost_work_is_told_and_then_the_outer_one_again():
    pipe = Pipe(1)
    lines = ProgressLines(Console(file=pipe), seconds_between=0.02)
    with lines.doing("outer"):
        with lines.doing("inner"):
            assert pipe.is_full.wait(60)
        pipe.is_full.clear()
        pipe.num_lines = pipe.getvalue().count("\n") + 1
        assert pipe.is_full.wait(60)
    told = [line.partition(":")[0].strip() for line in pipe.getvalue().splitlines()]
    assert told[0] == "inner" and told[-1] == "outer"


def test_a_line_that_was_printed_takes_the_place_of_one():
    pipe = Pipe(1)
    lines = ProgressLines(Console(file=pipe), seconds_between=3600)
    with lines.doing("work"):
        lines.say("a line")
    assert pipe.getvalue() == "a line\n"


def test_a_reader_who_leaves_does_not_end_the_work():
    class Broken(io.StringIO):
        def write(self, text):
            tried.set()
            raise BrokenPipeError

    tried = threading.Event()
    lines = ProgressLines(Console(file=Broken()), seconds_between=0.01)
    with lines.doing("work"):
        assert tried.wait(60)


def test_what_cannot_be_told_is_left_out():
    def fail():
        raise FileNotFoundError("the log is gone")

    pipe = Pipe(1)
    lines = ProgressLines(Console(file=pipe), seconds_between=0.01)
    with lines.doing("work"):
        lines.tell(fail)
        assert pipe.is_full.wait(60)
    assert pipe.getvalue().startswith("  work: 0 s so far")
