"""What hostile volunteers put into their buckets counts for nothing, has its reason, and holds nobody up."""

import hashlib
import time

import torch
from hub_round_parts import SAMPLES, close_round, new_key

from pipelines.features.hub_rounds.closer import SECONDS_LATE
from pipelines.features.hub_rounds.closing import drawn_order
from pipelines.features.hub_rounds.exchange import seconds_for_bytes
from pipelines.features.sparse.codec import SparseCodec

SECONDS_BESIDES = 4.0
"""Between the deadline of a round and its list, besides the time for the contributions' bytes."""


def changed(text, before, after):
    assert text.count(before) == 1
    return text.replace(before, after)


def put_hostile_files(run, state, honest):
    """Put what twenty hostile volunteers have thought of; return the words by which each is left out, None: not at
    all, since its file says that it offers nothing now."""
    expected, count = {}, iter(range(1000, 2000))

    def hostile(user, words, text=None, content=None, **where):
        content = run.contribution(state, next(count)) if content is None else content
        text = run.text(state, user, content) if text is None else text(content) if callable(text) else text
        run.put(state, user, content, text, **where)
        expected[user] = words

    def saying(user, /, **changes):
        return lambda content: run.text(state, user, content, **changes)

    def rewritten(user, before, after):
        return lambda content: changed(run.text(state, user, content), before, after)

    for user in ("huge", "notjson", "nested", "stranger", "copied"):
        run.key_of(user)  # and a bucket
    hostile("huge", "more than 4096 bytes", b" " * 10**6)
    hostile("notjson", "this is no Pointer", b"\x80\xff{")
    hostile("nested", "this is no Pointer", b"[" * 4000)
    hostile("stranger", "not signed with the key", lambda content: changed(
        run.text(state, "stranger", content), run.key_of("stranger").public.encode(), new_key().public.encode()
    ))  # fmt: skip
    hostile("copied", "signed for honest", run.text(state, "honest", honest))
    hostile("replay", None, saying("replay", round=state.epoch))
    hostile("future", "of round 2; expected 1", saying("future", round=state.epoch + 2))
    hostile("elsewhere", "from the state aaaaaaaaaaaa", saying("elsewhere", state="a" * 64))
    hostile("otherrun", "of another-run", saying("otherrun", swarm_id="another-run"))
    hostile("negative", "this is no Pointer", rewritten("negative", b'"samples": 64', b'"samples": -64'))
    hostile("absurd", "no progress of this model", saying("absurd", samples=10**15, total_samples=10**15))
    hostile("nanloss", "this is no Pointer", rewritten("nanloss", b'"loss": 2.0', b'"loss": NaN'))
    hostile("fatpointer", "bytes; expected", saying("fatpointer", size=10**9))
    hostile("nobytes", "not there in time", at="elsewhere")
    swapped = run.contribution(state, 1)
    hostile("swapped", "not what its pointer says", content=swapped)
    path = run.files.offer_path(state.epoch + 1, hashlib.sha256(swapped).hexdigest())
    run.files.put(run.files.bucket_of("swapped"), {path: run.contribution(state, 2)})
    hostile("bytescopied", "the same bytes as another's", content=honest)
    other = SparseCodec([(90, 90), (7,)], k=run.run.sparse_values_per_chunk)
    hostile("other-model", "bytes; expected", content=other.encode([torch.ones(90, 90), torch.ones(7)], SAMPLES))
    none = state.codec.encode([torch.zeros(shape) for shape in state.codec.layout.shapes], SAMPLES)
    hostile("zeros", "no progress of this model", content=none)
    hostile("crowded", "not there in time", at="elsewhere")
    run.files.put(run.files.bucket_of("crowded"), {f"many/{number}": b"x" for number in range(2000)})
    hostile("deleted", None)
    run.files.put(run.files.bucket_of("deleted"), {"a": b"a"}, delete=[run.files.pointer_path])
    return expected


def test_twenty_hostile_volunteers_are_left_out_with_their_reasons_and_the_honest_one_counts(rounds):
    run = rounds()
    state = run.state()
    honest = run.contribution(state, 0)
    run.put(state, "honest", honest)
    expected = put_hostile_files(run, state, honest)
    assert len(expected) == 20
    closer = run.closer(state=state)
    deadline = closer._deadline
    closed = close_round(closer)
    took = run.files.clock() - deadline
    reasons = {one.user: one.reason for one in closed.left_out}
    # Of two who offer the same bytes before the deadline, which nobody else can have, the draw decides.
    members = [member.pointer.user for member in closed.members]
    copiers = {"honest", "bytescopied"}
    assert len(members) == 1 and members[0] in copiers, reasons
    assert reasons.pop(*copiers - {*members}) == "the same bytes as another's"
    expected.pop("bytescopied")
    assert set(reasons) == {user for user, words in expected.items() if words is not None}
    for user, reason in reasons.items():
        assert expected[user] in reason and reason.isprintable() and len(reason) <= 200, (user, reason)
    assert took < seconds_for_bytes(run.run.window_seconds) + SECONDS_BESIDES, f"{took:.1f} s"
    follower = run.state()
    assert run.follow(run.reader(), follower) == closed and follower.digest == closed.state


def test_a_pointer_after_the_deadline_is_late(rounds):
    run = rounds()
    state = run.state()
    run.put(state, "honest", run.contribution(state, 0))
    closer = run.closer(state=state)
    closer._sleep_until(closer._deadline)
    while run.files.clock() < closer._deadline + SECONDS_LATE + 1.5:
        time.sleep(0.2)
    run.put(state, "late", run.contribution(state, 1))
    closed = close_round(closer)
    assert [member.pointer.user for member in closed.members] == ["honest"]
    assert [one.user for one in closed.left_out] == ["late"] and closed.left_out[0].reason.endswith(" s late")


def test_progress_a_thousand_times_too_long_moves_the_mean_no_further_than_its_samples_allow(rounds):
    moved = {}
    for scale in (1.0, 1000.0):
        run = rounds()
        state = run.state()
        before = [parameter.detach().clone() for parameter in state.training.optimized_parameters]
        for seed, user in enumerate(("anna", "bert", "carl")):
            run.put(state, user, run.contribution(state, seed))
        run.put(state, "long", run.contribution(state, 4, scale=1e-3 * scale))
        closed = close_round(run.closer(state=state))
        assert {member.pointer.user for member in closed.members} == {"anna", "bert", "carl", "long"}
        steps = [
            (after - first).flatten() for after, first in zip(state.training.optimized_parameters, before, strict=True)
        ]
        moved[scale] = torch.cat(steps).norm().item()
    assert 0 < moved[1000.0] < 1.2 * moved[1.0]


def test_who_was_drawn_and_gives_no_bytes_is_waited_for_and_those_after_him_take_his_place(rounds):
    run = rounds(contributions_per_round=2)
    state = run.state()
    users = drawn_order(state.digest, ["ada", "bert", "cora", "dora"])
    for number, user in enumerate(users):
        run.put(state, user, run.contribution(state, number), at="elsewhere" if number == 0 else None)
    closed = close_round(run.closer(state=state))
    assert [member.pointer.user for member in closed.members] == users[1:3]
    reasons = {one.user: one.reason for one in closed.left_out}
    assert reasons == {users[0]: "its bytes were not there in time", users[3]: "not drawn"}
    follower = run.state()
    assert run.follow(run.reader(), follower) == closed and follower.digest == closed.state
