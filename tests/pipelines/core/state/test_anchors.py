"""Whose statement counts as an anchor's, and what follows from it: pure decisions."""

from types import SimpleNamespace

import pytest

from pipelines.core.signing.publisher_keys import SECONDS_AHEAD, PublisherKey
from pipelines.core.state.anchors import (
    SECONDS_FRESH,
    AnchorWatch,
    anchorage,
    anchored,
    is_contradicted,
    statement_of,
)
from pipelines.core.state.votes import count_votes
from pipelines.core.swarm.peer_records import ANCHOR_SECONDS, AnchorRecord
from pipelines.core.swarm.records import sender_name

SWARM, NOW = "birds", 1_000_000.0
HONEST, OTHER = "a" * 64, "b" * 64
FRIEND = sender_name("friend")


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    return [PublisherKey.load_or_create(folder / f"{name}.pem") for name in ("first", "second", "thief")]


@pytest.fixture
def listed(keys):
    return [key.public for key in keys[:2]]


def said(key, *, epoch=5, digest=HONEST, time=NOW, roster=(FRIEND,), returns=False, swarm=SWARM):
    who = dict(publisher_key=key.public, roster=list(roster), signature="")
    record = AnchorRecord(epoch=epoch, digest=digest, time=time, returns=returns, **who)
    return record.copy(update=dict(signature=key.sign(statement_of(record, swarm))))


def claims(*values):
    """Claims by key from (epoch, digest)."""
    return {
        bytes([number]): SimpleNamespace(peer_id=f"peer{number}", epoch=epoch, digest=digest, shares=True)
        for number, (epoch, digest) in enumerate(values)
    }


class Board:
    """The swarm's records, as far as anchors are concerned."""

    def __init__(self, *records):
        self.records = list(records)

    def anchors(self):
        return self.records


def watch(records, listed, **options):
    return AnchorWatch(Board(*records), SWARM, lambda: listed, clock=lambda: NOW, **options)


def test_the_first_listed_anchor_that_is_alive_speaks_and_vouches(keys, listed):
    first, second = keys[:2]
    seen = anchorage([said(second, epoch=7), said(first, epoch=6)], listed, NOW)
    assert (seen.present.epoch, seen.roster, seen.has_anchors) == (6, {FRIEND}, True)
    seen = anchorage([said(second, epoch=7), said(first, epoch=6, time=NOW - SECONDS_FRESH)], listed, NOW)
    assert seen.present.epoch == 7


def test_while_all_anchors_are_away_the_newest_roster_remains(keys, listed):
    old = [said(keys[0], time=NOW - 5000, roster=["0" * 16]), said(keys[1], time=NOW - 4000)]
    seen = anchorage(old, listed, NOW)
    assert seen.present is None and seen.roster == {FRIEND} and seen.has_anchors


def test_a_roster_of_a_week_ago_vouches_for_nobody_whoever_shows_it_anew(keys, listed):
    seen = watch([said(keys[0], time=NOW - 7 * 86_400)], listed).look()
    assert seen.present is None and seen.roster == frozenset() and seen.has_anchors
    held = [said(keys[0], time=NOW - ANCHOR_SECONDS)]
    assert anchorage(held, listed, NOW).roster == frozenset() and anchorage(held, listed, NOW - 1).roster == {FRIEND}


def test_a_statement_that_a_wrong_clock_dated_years_ahead_hides_none_of_now(keys, listed):
    ahead = said(keys[0], epoch=3, time=NOW + 1e8)
    assert watch([ahead, said(keys[0])], listed).look().present.epoch == 5


def test_what_any_anchor_has_signed_is_known_also_when_another_one_speaks(keys, listed):
    both = [said(keys[0], epoch=299), said(keys[1], epoch=300)]
    seen = anchorage(both, listed, NOW)
    assert (seen.present.epoch, seen.newest_epoch) == (299, 300)
    assert anchorage(both, listed, NOW + SECONDS_FRESH).newest_epoch == 0, "the run may have returned since then"


def test_a_run_without_listed_anchors_has_none_whoever_signs(keys):
    assert not anchorage([said(keys[0])], [], NOW).has_anchors
    assert anchorage([said(keys[2])], [keys[0].public], NOW).present is None


def test_an_anchor_whose_clock_is_ahead_says_nothing_for_now(keys, listed):
    assert anchorage([said(keys[0], time=NOW + SECONDS_AHEAD)], listed, NOW).present is None
    assert anchorage([said(keys[0], time=NOW + SECONDS_AHEAD - 1)], listed, NOW).present is not None


def test_a_statement_counts_only_if_its_key_has_signed_exactly_it(keys, listed):
    genuine = said(keys[0])
    changes = [dict(epoch=9), dict(digest=OTHER), dict(time=NOW + 1), dict(roster=[]), dict(returns=True)]
    forged = [genuine.copy(update=change) for change in changes]
    forged += [said(keys[2]).copy(update=dict(publisher_key=keys[0].public)), said(keys[0], swarm="other")]
    assert watch(forged, listed).look().present is None
    assert watch([*forged, genuine], listed).look().present == genuine


def test_of_one_anchors_statements_the_newest_counts_whatever_is_replayed(keys, listed):
    old, new = said(keys[0], epoch=4, time=NOW - 50), said(keys[0], epoch=5)
    board = Board(new, old)
    clock = iter((NOW, NOW + 10.0))
    seen = AnchorWatch(board, SWARM, lambda: listed, clock=lambda: next(clock))
    assert seen.look().present == new
    board.records = [old]
    assert seen.look().present == new, "what was seen is not forgotten when it is hidden"


def test_a_revoked_key_says_nothing_any_more(keys, listed):
    seen = watch([said(keys[0]), said(keys[1], epoch=4)], listed)
    assert seen.look().present.epoch == 5
    listed.pop(0)
    assert seen.look().present.epoch == 4


def test_an_anchor_follows_those_listed_before_it(keys, listed):
    both = [said(keys[0]), said(keys[1], epoch=4)]
    assert watch(both, listed, own_key=listed[1]).look().present.epoch == 5
    assert watch(both, listed, own_key=listed[0]).look().present is None
    assert watch(both[1:], listed, own_key=listed[0]).look().present is None
    assert watch(both[1:], listed, own_key=listed[0]).look().roster == {FRIEND}


def test_the_anchors_state_is_taken_whatever_most_say(keys):
    votes = claims((5, HONEST), *[(5, OTHER)] * 7)
    verdict = anchored(count_votes(votes, set(votes)), said(keys[0]), votes)
    assert (verdict.digest, verdict.is_anchored, verdict.donors) == (HONEST, True, ("peer0",))
    assert len(verdict.outvoted) == 7
    assert str(verdict) == "epoch 5, signed by an anchor"
    assert anchored(None, said(keys[0]), votes).digest == HONEST


def test_votes_count_without_an_anchor_and_when_it_does_not_keep_up(keys):
    votes = claims((7, OTHER), (7, OTHER), (5, HONEST))
    counted = count_votes(votes, set(votes))
    assert anchored(counted, None, votes) == counted
    assert anchored(counted, said(keys[0], epoch=5), votes) == counted
    one_ahead = claims((6, OTHER), (6, OTHER), (5, HONEST))
    assert anchored(count_votes(one_ahead, set(one_ahead)), said(keys[0], epoch=5), one_ahead).epoch == 5, (
        "it signs soon"
    )


def test_an_anchor_that_is_overdue_yields_to_most_of_the_voters_one_epoch_ahead_and_to_nobody_else(keys):
    ahead = claims((6, HONEST), (6, HONEST), (5, HONEST))
    counted = count_votes(ahead, set(ahead))
    assert anchored(counted, said(keys[0]), ahead, is_overdue=True) == counted
    assert anchored(counted, said(keys[0], returns=True), ahead, is_overdue=True).epoch == 5
    divided = claims((6, HONEST), (6, OTHER), (5, HONEST))
    assert anchored(count_votes(divided, set(divided)), said(keys[0]), divided, is_overdue=True).epoch == 5
    beside = claims((5, OTHER), (5, OTHER), (5, HONEST))
    assert anchored(count_votes(beside, set(beside)), said(keys[0]), beside, is_overdue=True).digest == HONEST


def test_nothing_is_taken_while_nobody_serves_the_anchors_state(keys):
    votes = claims((5, OTHER), (5, OTHER))
    assert anchored(count_votes(votes, set(votes)), said(keys[0]), votes) is None
    votes = claims((5, HONEST))
    assert anchored(count_votes(votes, set(votes)), said(keys[0]), votes, refused=[HONEST]) is None


def test_a_run_returns_to_the_state_that_its_anchor_names_however_far_others_are(keys):
    votes = claims((5, HONEST), *[(50, OTHER)] * 5)
    returning = said(keys[0], returns=True)
    assert anchored(count_votes(votes, set(votes)), returning, votes).epoch == 5
    assert is_contradicted(50, OTHER, returning, None) is True
    assert is_contradicted(5, HONEST, returning, None) is False
    assert is_contradicted(6, OTHER, returning, None) is None, "it may have stepped with the anchor just now"


@pytest.mark.parametrize(
    ("epoch", "digest", "expected"),
    [(5, HONEST, False), (5, OTHER, True), (4, HONEST, None), (6, OTHER, None)],
    ids=["the same", "another", "the anchor is ahead", "the anchor signs soon"],
)
def test_an_anchor_that_keeps_up_decides_whether_a_peers_state_is_the_runs(keys, epoch, digest, expected):
    assert is_contradicted(epoch, digest, said(keys[0]), None) is expected


def test_without_one_the_votes_decide(keys):
    votes = claims((9, HONEST), (9, HONEST), (9, OTHER))
    verdict = count_votes(votes, set(votes))
    for anchor in (None, said(keys[0], epoch=5)):
        assert is_contradicted(9, OTHER, anchor, verdict) is True
        assert is_contradicted(9, HONEST, anchor, verdict) is False
        assert is_contradicted(8, HONEST, anchor, verdict) is None
