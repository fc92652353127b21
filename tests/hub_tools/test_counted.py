"""Counts in messages are followed by the singular or the plural."""

import pytest

from hub_tools.counted import counted, date, duration, file_size, memory_size, nats


def test_one_thing_is_no_plural():
    assert [counted(number, "peer") for number in (0, 1, 1200)] == ["0 peers", "1 peer", "1,200 peers"]
    assert [counted(number, "address", "addresses") for number in (1, 2)] == ["1 address", "2 addresses"]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.4, "0.4 s"),
        (99.4, "99 s"),
        (100.0, "2 min"),
        (3569.0, "59 min"),
        (3571.0, "1 h 0 min"),
        (11_100.0, "3 h 5 min"),
    ],
)
def test_a_length_of_time_is_told_in_the_units_that_people_use(seconds, expected):
    assert duration(seconds) == expected


def test_a_date_has_its_zone_a_loss_its_digits_a_file_powers_of_1000_and_memory_powers_of_1024():
    assert (date(1.8e9), date(0.0), date(1e30)) == ("2027-01-15 08:00 UTC", "–", "–")
    assert (nats(0.27149), nats(2.0), nats(None), nats(float("nan"))) == ("0.2715", "2.0000", "–", "–")
    assert [file_size(number) for number in (31.2, 999.4, 999.6, 1580, 2.5e9, 123e9)] == [
        "31 bytes", "999 bytes", "1 kB", "1.6 kB", "2.5 GB", "123 GB",
    ]  # fmt: skip
    assert [memory_size(number) for number in (512 * 2**20, 8 * 2**30, 1.5 * 2**30)] == ["512 MiB", "8 GiB", "1.5 GiB"]
