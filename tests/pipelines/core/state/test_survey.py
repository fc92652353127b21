"""What one reading of the swarm's records decides: the state to take, and whether a peer can tell at all."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from pipelines.core.epoch.acquaintances import Acquaintances
from pipelines.core.signing.publisher_keys import PublisherKey
from pipelines.core.state.anchors import Anchorage, AnchorWatch, statement_of
from pipelines.core.state.survey import StateSurvey
from pipelines.core.state.transfer import StateTransfer
from pipelines.core.swarm.peer_records import AnchorRecord
from pipelines.core.swarm.records import STATES, sender_name

TRAINER, STRANGER = b"trainer", b"stranger"


def claim(epoch, digest="right"):
    return SimpleNamespace(peer_id=f"peer {digest}", epoch=epoch, digest=digest, shares=True)


def seen_with(claims=None, epochs=None, voters=(), *, has_anchors=True, anchor_epoch=None, believes_strangers=False):
    present = None
    if anchor_epoch is not None:
        present = SimpleNamespace(epoch=anchor_epoch, digest="right", returns=False)
    return StateSurvey(
        claims=claims or {},
        epochs=epochs or {},
        voters=voters,
        believes_strangers=believes_strangers,
        users={},
        anchorage=Anchorage(has_anchors=has_anchors, present=present),
    )


def test_in_a_run_with_anchors_claims_of_strangers_say_nothing():
    seen = seen_with({STRANGER: claim(9, "wrong")}, {STRANGER: 9})
    assert seen.verdict() is None and seen.newest_epoch() == 0
    assert seen.is_without_word and seen.is_among_strangers


def test_known_voters_are_believed_while_no_anchor_is_there():
    seen = seen_with({TRAINER: claim(5), STRANGER: claim(9, "wrong")}, {TRAINER: 5, STRANGER: 9}, voters={TRAINER})
    assert (seen.newest_epoch(), seen.verdict().digest) == (5, "right")
    assert not seen.is_without_word and not seen.is_among_strangers


def test_an_anchor_whose_state_nobody_serves_yet_still_says_which_epoch_it_is():
    seen = seen_with({STRANGER: claim(4, "wrong")}, {STRANGER: 4}, anchor_epoch=4)
    assert seen.verdict() is None and seen.newest_epoch() == 4
    assert seen.is_without_word and not seen.is_among_strangers


def test_an_anchors_word_hides_a_state_one_epoch_ahead_until_it_is_overdue():
    ahead = {TRAINER: claim(5), STRANGER: claim(9, "wrong")}
    seen = seen_with(ahead, {TRAINER: 5, STRANGER: 9}, voters={TRAINER}, anchor_epoch=4)
    assert (seen.newest_epoch(), seen.newest_epoch(is_overdue=True)) == (4, 5)


@pytest.mark.parametrize("believes_strangers", [True, False])
def test_without_anchors_all_claims_count_for_who_knows_nobody(believes_strangers):
    seen = seen_with({STRANGER: claim(3)}, {STRANGER: 3}, has_anchors=False, believes_strangers=believes_strangers)
    assert seen.newest_epoch() == (3 if believes_strangers else 0)
    assert not seen.is_without_word and not seen.is_among_strangers


def test_a_refused_digest_is_not_taken():
    seen = seen_with({TRAINER: claim(5)}, {TRAINER: 5}, voters={TRAINER})
    assert seen.verdict({"right"}) is None


def test_while_nobody_trains_no_peer_waits_for_word():
    assert not seen_with().is_without_word and not seen_with().is_among_strangers


def voters_at(*states):
    """What is seen of trainers that all vote, from (epoch, digest); their senders' names are `names(...)`."""
    claims = {
        f"t{number}".encode(): SimpleNamespace(peer_id=f"t{number}", epoch=epoch, digest=digest, shares=True)
        for number, (epoch, digest) in enumerate(states)
    }
    return seen_with(claims, {key: claim.epoch for key, claim in claims.items()}, voters=set(claims))


def names(*numbers):
    return {sender_name(f"t{number}") for number in numbers}


NEW, LATE, OTHER = (290, "new"), (289, "old"), (290, "other")


@pytest.mark.parametrize("num_in_step", [1, 2, 3, 7])
def test_one_that_is_late_does_not_contradict_a_state_that_all_others_name(num_in_step):
    """Seen before: with one in step and one late, the anchor waited 5 s, and the late one for its signature."""
    seen = voters_at(*[NEW] * num_in_step, LATE)
    assert seen.bears_out(*NEW, names(*range(num_in_step)))


@pytest.mark.parametrize(
    ("states", "senders"),
    [
        ([LATE, LATE], names(0, 1)),
        ([OTHER, LATE], names(0)),
        ([NEW, OTHER, LATE], names(0, 1)),
        ([NEW, (291, "newer")], names(0, 1)),
        ([NEW, LATE, LATE], names(0)),
        ([NEW, NEW], names()),
        ([], names()),
    ],
    ids=[
        "the anchor alone has an average",
        "who has reached it names another state",
        "they are divided",
        "somebody has gone on",
        "most were in no round with the anchor",
        "nobody was",
        "nobody is there",
    ],
)
def test_an_anchors_state_is_not_borne_out(states, senders):
    assert not voters_at(*states).bears_out(*NEW, senders)


def test_the_keys_of_one_user_bear_out_as_one():
    seen = voters_at(NEW, OTHER, OTHER, OTHER, NEW)
    users = {f"t{number}".encode(): "mallory" for number in (1, 2, 3)}
    assert not seen.bears_out(*NEW, names(*range(5)))
    assert replace(seen, users=users).bears_out(*NEW, names(*range(5)))


def test_an_anchor_that_has_died_before_it_signed_the_last_state_does_not_hide_it_for_long():
    seen = seen_with({TRAINER: claim(300)}, {TRAINER: 300}, voters={TRAINER}, anchor_epoch=299)
    assert seen.verdict() is None, "it may sign in a moment"
    assert seen.verdict(is_overdue=True).epoch == 300


class Claims:
    """The swarm's records, as far as states are concerned."""

    def __init__(self, claims, statements=()):
        self.claims, self.statements = claims, list(statements)
        self.admissions = SimpleNamespace(users=lambda owners: {owner: owner.hex() for owner in owners})

    def read(self, kind):
        if kind is STATES:
            return self.claims
        return {key: SimpleNamespace(peer_id=key, epoch=claim.epoch) for key, claim in self.claims.items()}

    def anchors(self):
        return self.statements


def newcomer(records, keys=()):
    own = SimpleNamespace(to_base58=lambda: "me", to_bytes=lambda: b"me")
    anchors = AnchorWatch(records, "birds", lambda: keys, clock=lambda: 1000.0)
    return StateTransfer(SimpleNamespace(peer_id=own, state=None), records, None, Acquaintances(), anchors)


def test_a_newcomer_takes_no_state_from_before_the_newest_signed_checkpoint_however_many_name_it():
    old = {bytes([number]): claim(5, "old") for number in range(20)}
    alone, with_one = newcomer(Claims(old)), newcomer(Claims(old | {TRAINER: claim(101)}))
    assert (alone.look().newest_epoch(), with_one.look().newest_epoch()) == (5, 5), "who is told of no checkpoint"
    alone.reached_epoch = with_one.reached_epoch = 100
    assert (alone.look().newest_epoch(), with_one.look().newest_epoch()) == (0, 101)


def test_an_anchor_that_speaks_now_may_return_to_before_the_newest_checkpoint(tmp_path):
    key = PublisherKey.load_or_create(tmp_path / "key.pem")
    digest = "a" * 64
    said = AnchorRecord(publisher_key=key.public, epoch=98, digest=digest, time=990.0, returns=True, signature="")
    said = said.copy(update=dict(signature=key.sign(statement_of(said, "birds"))))
    seen = newcomer(Claims({TRAINER: claim(98, digest)}, [said]), [key.public])
    seen.reached_epoch = 100
    assert (seen.look().verdict().epoch, seen.look().verdict().is_anchored) == (98, True)
