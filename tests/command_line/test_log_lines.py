"""The log of a service in a file: one event is one line."""

import io
import logging

import pytest

from pipelines.command_line.terminal.consoles import MOST_CHARACTERS, LogLines, OneLineFormatter

DIAL_ERRORS = """failed to dial 12D3KooW: all dials failed
  * [/ip4/127.0.0.1/tcp/1] dial tcp4 127.0.0.1:1: connect: connection refused
  * [/ip4/10.0.0.1/tcp/2] dial backoff"""


@pytest.fixture
def log():
    written, handler = io.StringIO(), logging.StreamHandler()
    handler.setStream(written)
    handler.setFormatter(OneLineFormatter())
    logger = logging.getLogger("pipelines")
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    yield written
    logger.removeHandler(handler)
    logger.setLevel(level)


def test_what_is_printed_for_people_becomes_lines_with_time_and_level(log):
    console = LogLines.console()
    with console.status("training"):
        console.print("Published [bold]epoch 3[/] as commit abc.", "x" * 300)
        console.print("one\n\ntwo")
    lines = log.getvalue().splitlines()
    assert [line.split(" ", 3)[2] for line in lines] == ["INFO"] * 3
    assert [line.split(" ", 3)[3] for line in lines] == [f"Published epoch 3 as commit abc. {'x' * 300}", "one", "two"]


def test_errors_of_many_lines_are_one_line_within_a_limit(log):
    try:
        raise ConnectionError(DIAL_ERRORS)
    except ConnectionError as error:
        logging.getLogger("pipelines.swarm").exception("A peer is gone: %s", error)
    logging.getLogger("pipelines.swarm").warning("x" * 10 * MOST_CHARACTERS)
    first, second = log.getvalue().splitlines()
    assert "A peer is gone: failed to dial 12D3KooW: all dials failed (2 addresses tried)" in first
    assert "Traceback" in first and "127.0.0.1" not in first
    assert len(second) == MOST_CHARACTERS and second.endswith("...")
