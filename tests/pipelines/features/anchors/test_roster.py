"""Who enters an anchor's roster, and who leaves it."""

from pipelines.core.swarm.records import sender_name
from pipelines.features.anchors.roster import EPOCHS_REMEMBERED, EPOCHS_TO_ENTER, NEW_IN_AN_EPOCH, Roster


def rounds(roster, number, senders):
    for _ in range(number):
        roster.note_round(senders)


def test_the_first_peers_enter_a_roster_together_after_some_rounds():
    roster = Roster()
    rounds(roster, EPOCHS_TO_ENTER - 1, ["ann", "bob"])
    assert roster.names == ()
    roster.note_round(["ann", "bob"])
    assert set(roster.names) == {sender_name("ann"), sender_name("bob")}


def test_five_hundred_keys_that_come_at_once_enter_a_few_in_an_epoch_and_those_who_go_leave():
    roster, crowd = Roster(), [f"key{number}" for number in range(500)]
    rounds(roster, EPOCHS_TO_ENTER, ["ann", "bob"])
    rounds(roster, EPOCHS_TO_ENTER, ["ann", "bob", *crowd])
    assert len(roster.names) == 2 + NEW_IN_AN_EPOCH
    rounds(roster, EPOCHS_REMEMBERED, ["ann"])
    assert roster.names == (sender_name("ann"),)
