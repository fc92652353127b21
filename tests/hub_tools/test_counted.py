"""Counts in messages are followed by the singular or the plural."""

from hub_tools.counted import counted


def test_one_thing_is_no_plural():
    assert [counted(number, "peer") for number in (0, 1, 1200)] == ["0 peers", "1 peer", "1,200 peers"]
    assert [counted(number, "address", "addresses") for number in (1, 2)] == ["1 address", "2 addresses"]
