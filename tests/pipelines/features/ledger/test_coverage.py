import pytest

from pipelines.core.run.spans import Span
from pipelines.features.ledger.coverage import NewestPass, coverage, newest_pass
from pipelines.features.ledger.ledger_files import (
    STATE_FILE,
    Booking,
    overlaps,
    read_bookings,
    read_state,
    write_bookings,
    write_state,
)


def booking(epoch, *span, name="ann"):
    return Booking(epoch, Span(*span), name, f"user of {name}")


BOOKINGS = [
    booking(1, 0, 2, 0, 0, 10),
    booking(1, 0, 2, 0, 10, 12, name="ben"),
    booking(2, 0, 2, 1, 0, 10),
    booking(1500, 1, 2, 0, 5, 10, name="ben"),
]


def test_bookings_are_written_by_thousands_of_epochs_and_read_again(tmp_path):
    assert read_bookings(tmp_path) == []
    write_bookings(tmp_path, BOOKINGS, since=0)
    assert read_bookings(tmp_path) == BOOKINGS
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ledger-000000.parquet", "ledger-000001.parquet"]
    before = (tmp_path / "ledger-000000.parquet").stat().st_mtime_ns
    write_bookings(tmp_path, [*BOOKINGS, booking(1600, 1, 0, 0, 0, 1)], since=1500)
    assert len(read_bookings(tmp_path)) == 5
    assert (tmp_path / "ledger-000000.parquet").stat().st_mtime_ns == before, "older ones are left alone"


def test_another_file_and_a_damaged_one_are_named(tmp_path):
    (tmp_path / "ledger-000000.parquet").write_bytes(b"PAR1 no more")
    with pytest.raises(ValueError, match=r"ledger-000000\.parquet is not a ledger of this version"):
        read_bookings(tmp_path)
    for text in ("{", "[]", '{"format": 2}', "{}", '{"format": 1}', '{"format": 1, "passes": 1}'):
        (tmp_path / STATE_FILE).write_text(text)
        with pytest.raises(ValueError, match=r"ledger\.json is not a ledger of this version"):
            read_state(tmp_path / STATE_FILE)


def test_what_counted_twice_is_found_and_neighbours_are_not():
    assert overlaps(BOOKINGS) == []
    again = booking(3, 0, 2, 0, 8, 11)
    assert {one for pair in overlaps([*BOOKINGS, again]) for one in pair} == {BOOKINGS[0], again, BOOKINGS[1]}
    other_pass = booking(3, 7, 2, 0, 0, 12)
    assert overlaps([*BOOKINGS, other_pass]) == []


def test_coverage_is_by_pass():
    one, two = coverage([*BOOKINGS, booking(9, 0, 2, 1, 2, 6)])
    assert (one.pass_number, one.num_records, one.num_twice, one.num_peers) == (0, 22, 4, 2)
    assert (one.first_epoch, one.last_epoch) == (1, 9)
    assert (two.pass_number, two.num_records, two.num_twice, two.num_peers) == (1, 5, 0, 1)
    assert coverage([]) == []


def test_the_newest_pass_is_the_last_one_in_which_something_is_done(tmp_path):
    state = dict(
        finished_passes=[[0, 100]],
        pass_records=100,
        passes=[dict(pass_number=1, num_done=40), dict(pass_number=2, num_done=0)],
        accounts=[],
    )
    write_state(tmp_path / STATE_FILE, state)
    assert newest_pass(read_state(tmp_path / STATE_FILE)) == NewestPass(pass_number=1, share=0.4)
    assert newest_pass(dict(state, passes=[])) == NewestPass(pass_number=0, share=1.0)
    assert newest_pass(dict(state, finished_passes=[], passes=[])) is None and newest_pass(None) is None
    for damaged in (dict(state, passes=[5]), dict(state, finished_passes=[[0]]), dict(state, finished_passes=["a"])):
        assert newest_pass(damaged) is None
    assert newest_pass(dict(state, pass_records="many")) == NewestPass(pass_number=1, share=None)
