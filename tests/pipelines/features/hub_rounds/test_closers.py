"""Who closes rounds may lie or be late: everybody sees it, and the next publisher's lists count."""

import contextlib
import dataclasses
import hashlib

import pytest
from hub_round_parts import TinyRun, close_round, log_in
from running_programs import wait_for

from hub_tools.local_hub import LocalHub
from pipelines.core.signing.signed_statement import signed_text
from pipelines.features.hub_rounds.auditing import audited
from pipelines.features.hub_rounds.exchange import RoundExchange
from pipelines.features.hub_rounds.files import HubAwayError
from pipelines.features.hub_rounds.reading import IncompleteError, OtherStateError, replayed
from pipelines.features.hub_rounds.statements import fingerprint
from pipelines.features.hub_rounds.stepping import FalseListError


def put_list(run, key, closed):
    """Put a list as a publisher does, whatever it says."""
    text = signed_text(closed, key)
    paths = {run.files.list_path(fingerprint(key.public), number): text for number in (closed.round, None)}
    run.files.put(run.files.run_bucket, paths)


def test_a_list_that_names_another_state_is_seen_by_all_and_the_next_publisher_closes_the_round(rounds):
    run = rounds(closers=2)
    state = run.state()
    run.put(state, "honest", run.contribution(state, 0))
    first = run.closer(0, state=state)
    second = run.closer(1)
    put_list(run, run.keys[0], dataclasses.replace(close_round(first), state="f" * 64))
    reader, follower = run.reader(), run.state()
    with pytest.raises(FalseListError, match="lead to the state"):
        next(replayed(reader, follower))
    assert reader.publishers() == [run.keys[1].public]
    with pytest.raises(FalseListError):
        second.keep_up()
    second.state.restore(None)
    closed = close_round(second)  # at once: nobody comes before it any more
    follower.restore(None)
    assert run.follow(reader, follower) == closed and follower.digest == closed.state == state.digest
    found = list(audited(run.reader(), run.state(), None))
    assert [(one.round, one.publisher, one.fault is None) for one in found] == [
        (1, fingerprint(run.keys[0].public), False),
        (1, fingerprint(run.keys[1].public), True),
    ]


def test_of_two_that_have_closed_a_round_the_first_by_the_list_of_keys_counts(rounds):
    run = rounds(closers=2)
    state = run.state()
    late = run.contribution(state, 1)
    run.put(state, "early", run.contribution(state, 0))
    run.put(state, "late", late, at="elsewhere")
    first, second = run.closer(0, state=state), run.closer(1)
    path = run.files.offer_path(1, hashlib.sha256(late).hexdigest())
    closed = close_round(first)
    run.files.put(run.files.bucket_of("late"), {path: late})
    second._close()  # it has not heard of the first one's list
    assert second.state.digest != closed.state
    reader, follower = run.reader(), run.state()
    assert run.follow(reader, follower) == closed
    with pytest.raises(OtherStateError, match="led to the state"):
        second.keep_up()
    second.state.restore(None)
    second._follow(None)
    assert second.state.digest == closed.state


def test_a_list_of_contributions_that_are_not_there_is_waited_for(rounds):
    run = rounds()
    state = run.state()
    run.put(state, "honest", run.contribution(state, 0))
    closed = close_round(run.closer(state=state))
    path = run.files.copy_path(1, closed.members[0].pointer.digest)
    run.files.put(run.files.run_bucket, {}, delete=[path])
    with pytest.raises(IncompleteError, match="is not there"):
        run.reader().closed_round(run.state().terms())


def test_a_newcomer_repeats_the_rounds_to_equal_bits(rounds):
    run = rounds()
    state = run.state()
    closer = run.closer(state=state)
    for number in range(3):
        for user in ("ada", "bert"):
            run.put(state, user, run.contribution(state, 10 * number + len(user)))
        close_round(closer)
    newcomer = run.state()
    assert [closed.closed.round for closed in replayed(run.reader(), newcomer)] == [1, 2, 3]
    assert newcomer.digest == state.digest


def test_what_a_closer_could_not_publish_is_dropped_with_the_state_that_it_led_to(rounds, monkeypatch):
    run = rounds()
    closer, follower = run.closer(), run.state()
    run.put(follower, "honest", run.contribution(follower, 0))
    with monkeypatch.context() as patch, pytest.raises(HubAwayError, match="hf auth login"):
        patch.setattr(closer, "_copy", lambda *_: patch.setenv("HF_TOKEN", "hf_expired"))
        while True:
            closer._sleep_until(closer._files.clock() + closer.keep_up())
    assert closer.state.epoch == 1
    closer.restore(None)
    closer.keep_up()
    assert run.reader().present().round == 0, "the list of a state that the closer has left is published"


def test_a_token_that_the_hub_refuses_in_mid_run_ends_nothing_until_it_has_been_refused_for_long(
    rounds, monkeypatch, caplog
):
    run = rounds()
    closer, follower = run.closer(), run.state()
    reader = run.reader()
    reader.present()
    exchange = RoundExchange(reader, "honest", run.key_of("honest"), 20.0)
    run.put(follower, "honest", run.contribution(follower, 0))
    try:
        with monkeypatch.context() as patch:
            patch.setenv("HF_TOKEN", "hf_expired")
            exchange.begin(follower.terms(), reader.files.clock(), None)
            wait_for(lambda: "no longer lets this process read" in caplog.text, "the line about the token", 20)
            assert exchange.outcome() is None
        assert caplog.text.count("no longer lets") == 1 and "hf auth login" in caplog.text
        assert close_round(closer) == exchange.outcome(20).closed
        with monkeypatch.context() as patch, pytest.raises(OSError, match="refuses the token") as refused:
            patch.setenv("HF_TOKEN", "hf_expired")
            patch.setattr("pipelines.features.hub_rounds.files.SECONDS_OF_REFUSALS", 0.0)
            reader.present()
        assert not isinstance(refused.value, HubAwayError)
    finally:
        exchange.close()


def test_of_a_hub_that_refuses_one_of_many_pointers_a_closer_asks_for_that_one_alone_again(tmp_path, monkeypatch):
    with LocalHub(tmp_path, controlled=True) as hub:
        hub.alice_token = hub.create_user("alice")
        hub.create_organization("org", {"alice": "admin"})
        log_in(monkeypatch, hub)
        run = TinyRun()
        with contextlib.closing(run):
            state, users = run.state(), [f"user{number}" for number in range(6)]
            for number, user in enumerate(users):
                run.put(state, user, run.contribution(state, number))
            closer = run.closer(state=state)
            hub.controls.refuse(503, 2, path="*/resolve/*now.json")
            hub.controls.reset_request_counts()
            closed = close_round(closer)
            asked = hub.controls.request_counts()["alice"]["resolvers"]
    assert {member.pointer.user for member in closed.members} == set(users)
    assert asked <= 2 * len(users) + 2 + 4  # a pointer and bytes of each, what was refused, and lists of others


def test_the_deadline_is_that_of_the_list_which_led_to_the_state_not_of_a_publisher_that_is_gone(rounds):
    run = rounds(closers=2)
    first = run.closer(0)
    state = first.state
    run.put(state, "ada", run.contribution(state, 0))
    closed = close_round(first)
    second = run.closer(1)
    run.put(state, "ada", run.contribution(state, 1))
    second._follow(None)
    second.state.step(
        [closed.members[0].pointer], [run.contribution(run.state(), 0)]
    )  # a round that only it has closed
    own = second._list(previous=closed.state, members=closed.members, left_out=(), now=0.0, deadline=7.0)
    second._publish(own)
    assert run.reader().present().round == 1
    assert run.reader().present(second.state.digest) == own
