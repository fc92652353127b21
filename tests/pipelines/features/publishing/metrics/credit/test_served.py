"""Credit for served candidates: what audits have found right, by day and user, and nothing else."""

import pytest

from pipelines.features.publishing.metrics.credit.served import (
    MOST_CANDIDATES,
    MOST_USERS_OF_A_DAY,
    day_of,
    read_served,
    served_in,
    to_parquet,
    with_credit,
)

NOON = 1_795_262_400.0  # 2026-11-21
TODAY = "2026-11-21"


def test_each_audit_adds_to_the_day_and_files_hold_what_was_added(tmp_path):
    first = with_credit({("2026-11-20", "ann"): 3}, {(TODAY, "ann"): 8, (TODAY, "bob"): 4})
    days = with_credit(first, {(TODAY, "ann"): 2})
    assert days == {("2026-11-20", "ann"): 3, (TODAY, "ann"): 10, (TODAY, "bob"): 4}
    path = tmp_path / "served-2026-11.parquet"
    path.write_bytes(to_parquet(days))
    assert read_served(path) == days and day_of(NOON) == TODAY
    assert served_in(days, "today", NOON) == dict(ann=10, bob=4) and served_in(days, "all", NOON) == dict(ann=13, bob=4)
    assert served_in({("2026-11-15", "ann"): 1, ("2026-11-14", "ann"): 2}, "week", NOON) == dict(ann=1)


def test_names_that_cost_nothing_fill_no_file():
    crowd = {(TODAY, f"name {number:04d}" + "x" * 200): 1 + number for number in range(2 * MOST_USERS_OF_A_DAY)}
    days = with_credit({("2026-11-20", "ann"): 1}, crowd)
    assert len(days) == MOST_USERS_OF_A_DAY + 1 and max(len(user) for _, user in days) == 96
    assert min(number for (day, _), number in days.items() if day == TODAY) == MOST_USERS_OF_A_DAY + 1
    assert with_credit(days, {(TODAY, "greedy"): 2**62})[TODAY, "greedy"] == MOST_CANDIDATES


def test_a_damaged_file_is_named_and_rows_that_cannot_be_true_are_left_out(tmp_path):
    path = tmp_path / "served-2026-11.parquet"
    path.write_bytes(b"PAR1 nothing")
    with pytest.raises(ValueError, match=r"served-2026-11.parquet is damaged"):
        read_served(path)
    path.write_bytes(
        to_parquet({(TODAY, "ann"): -5, (TODAY, "bob"): 2 * MOST_CANDIDATES, (TODAY, ""): 1, ("", "c"): 1})
    )
    assert read_served(path) == {}
