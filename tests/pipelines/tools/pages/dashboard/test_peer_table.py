"""Who trains and who has gone, decided from one look at the swarm to the next."""

import math

import pytest
from dashboard_material import LIFETIME, NOW, look, metrics, peer_values

from pipelines.tools.pages.dashboard.peer_table import COLUMNS, PeerState, alive, page_of, summarise, track
from pipelines.tools.pages.dashboard.swarm.swarm_snapshot import SwarmSnapshot
from pipelines.tools.pages.table_order import in_order, next_order


def states(tracked):
    return {key: one.state for key, one in tracked.items()}


def test_a_peer_that_stops_renewing_its_record_has_gone_long_before_the_record_expires():
    known = track({}, look(peer_values("a"), peer_values("b")), LIFETIME)
    for second in range(1, 30):
        now = NOW + second
        # b renews every 14 s, a never again; both records are still valid.
        renewed = NOW + second - second % 14
        known = track(known, look(peer_values("a"), peer_values("b", renewed=renewed), time=now), LIFETIME)
        assert known["b"].state is PeerState.TRAINING
        assert known["a"].state is (PeerState.GONE if second > LIFETIME / 2 + 5 else PeerState.TRAINING)
    assert known["a"].last_seen == NOW


def test_a_record_that_is_missing_means_gone_at_once_and_is_forgotten_in_the_end():
    known = track({}, look(peer_values("a"), peer_values("b")), LIFETIME)
    known = track(known, look(peer_values("b", renewed=NOW + 1), time=NOW + 1), LIFETIME)
    assert states(known) == {"a": PeerState.GONE, "b": PeerState.TRAINING}
    later = track(known, look(peer_values("b", renewed=NOW + 700), time=NOW + 700), LIFETIME)
    assert set(later) == {"b"}
    assert track(known, look(peer_values("a", renewed=NOW + 9), time=NOW + 9), LIFETIME)["a"].state == "training"


def test_a_record_that_claims_to_be_valid_for_years_is_believed_no_longer_than_others():
    record = dict(peer_values("a"), valid_until=NOW + 1e9)
    known = track({}, look(record), LIFETIME)
    assert known["a"].last_seen == NOW
    assert track(known, look(record, time=NOW + 21), LIFETIME)["a"].state is PeerState.GONE


def test_a_peer_epochs_behind_the_others_is_catching_up():
    known = track({}, look(peer_values("a", epoch=3), peer_values("b"), peer_values("c", epoch=11)), LIFETIME)
    assert states(known) == {"a": PeerState.CATCHING_UP, "b": PeerState.TRAINING, "c": PeerState.TRAINING}


def test_names_and_figures_are_remembered_while_an_epoch_lasts_longer_than_its_figures():
    known = track({}, look(peer_values("a", metrics=metrics("a"))), LIFETIME)
    nameless = dict(peer_values("a", renewed=NOW + 60), introduction=None)
    known = track(known, look(nameless, time=NOW + 60), LIFETIME)
    assert known["a"].peer.username == "a" and known["a"].peer.figures.num_samples == 100


@pytest.mark.parametrize(
    ("name", "value"),
    [("loss", math.nan), ("loss", 1e300), ("samples_per_second", math.inf), ("num_samples", -5), ("epoch", 10**12)],
)
def test_figures_that_cannot_be_true_are_left_out_and_counted(name, value):
    tracked = track({}, look(peer_values("liar", metrics=metrics("liar", **{name: value})), peer_values("b")), LIFETIME)
    assert tracked["liar"].peer.figures is None and tracked["liar"].peer.num_impossible == 1
    assert summarise(tracked, NOW, 0) is None
    honest = track(tracked, look(peer_values("b", metrics=metrics("b"))), LIFETIME)
    assert summarise(honest, NOW, 0)["loss"] == 2.0


def test_text_of_peers_is_one_short_line():
    introduction = dict(username="a\nb\x1b[31m" + "c" * 500, device=None, package_version="1\u202e2")
    (peer,) = look(peer_values("x", introduction=introduction)).peers
    assert peer.username.startswith("a b\ufffd[31mccc") and len(peer.username) == 96
    assert peer.device == "" and peer.package_version == "12"


def test_a_line_that_is_no_look_is_refused():
    with pytest.raises((KeyError, TypeError, ValueError)):
        SwarmSnapshot.from_values(dict(time=1.0, peers=[dict(key="a")], num_auxiliaries=0, verdict=None))


def test_the_table_comes_in_pages_the_fastest_first_and_is_searched_by_words():
    peers = [peer_values(f"peer-{number:03d}", speed=float(number)) for number in range(250)]
    tracked = track({}, look(*peers), LIFETIME)
    page = page_of(tracked, page=3)
    assert (page.num_pages, page.first_row, len(page.rows), page.num_found) == (3, 201, 50, 250)
    assert page_of(tracked).rows[0].peer.username == "peer-249"
    assert page_of(tracked, page=99).page == 3 and page_of(tracked, page=-4).page == 1
    found = page_of(tracked, "TRAINING peer-01")
    assert found.num_found == 10 and found.num_peers == 250
    assert page_of(tracked, "nobody").rows == ()


def test_a_column_is_sorted_the_largest_first_and_at_the_second_click_the_smallest():
    order = next_order("", "speed", COLUMNS)
    assert (order, next_order(order, "speed", COLUMNS)) == ("-speed", "speed")
    assert next_order(order, "user", COLUMNS) == "-user"
    assert [next_order(order, other, COLUMNS) for other in ("<b>", None, ["user"])] == [order] * 3
    tracked = track(
        {}, look(*(peer_values(name, speed=speed) for name, speed in (("a", 1.0), ("b", 3.0), ("c", 2.0)))), LIFETIME
    )
    for order, names in (("-speed", "bca"), ("speed", "acb"), ("-user", "cba"), ("", "bca"), ("-nothing", "bca")):
        assert "".join(row.peer.username for row in page_of(tracked, order=order).rows) == names
    unknown = [dict(a=None), dict(a=1), dict(a=2)]
    assert [row["a"] for row in in_order(unknown, "a", dict(a=lambda row: row["a"]))] == [1, 2, None]


def test_those_that_have_gone_come_last():
    tracked = track({}, look(peer_values("fast", speed=99.0), peer_values("slow")), LIFETIME)
    tracked = track(tracked, look(peer_values("slow", renewed=NOW + 5), time=NOW + 5), LIFETIME)
    assert [one.peer.username for one in page_of(tracked).rows] == ["slow", "fast"]
    assert [one.peer.username for one in alive(tracked)] == ["slow"]
