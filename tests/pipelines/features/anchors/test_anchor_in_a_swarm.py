"""A run with an anchor, in which one process with many free keys serves a state of zeros and votes for it."""

import pytest
from swarm_of_processes import HOSTILE_PROCESS, Swarm, tiny_run

from pipelines.core.signing.publisher_keys import PublisherKey

pytestmark = [pytest.mark.slow, pytest.mark.swarm]


RUN = dict(num_epochs=10_000, target_batch_size=120, matchmaking_seconds=3.0)  # a busy machine answers late


@pytest.mark.timeout(400)
def test_an_anchor_signs_what_it_computes_and_newcomers_take_that_also_after_it_has_died(tmp_path):
    key_file = tmp_path / "key.pem"
    keys = [PublisherKey.load_or_create(key_file).public]
    with Swarm(tmp_path, tiny_run(**RUN), num_peers=2, anchor_keys=keys) as swarm:
        anchor = swarm.start(
            "anchor", "anchor_peer.py", key_file=str(key_file), checkpoint=str(tmp_path / "checkpoint")
        )
        trainers = [swarm.start(name) for name in ("first", "second")]
        wait_until_signed(anchor, 3)
        swarm.start("liar", HOSTILE_PROCESS, attacks=dict(false_votes=8)).wait_for("lied")
        newcomer = swarm.start("newcomer")
        joined = newcomer.wait_for("ready")
        newcomer.wait_for("step", ended_epoch=True, share_averaged=1.0)
        wait_until_signed(anchor, joined["epoch"] + 2)

        anchor.kill()
        swarm.entry_addresses = trainers[0].wait_for("ready")["addresses"]
        late = swarm.start("late")
        assert late.wait_for("ready")["source"] == "peers", "the anchor's roster says whom to believe"
        late.wait_for("step", ended_epoch=True, share_averaged=1.0)
    signed = anchor.events("signed")
    assert not any(event["returns"] for event in signed)
    epochs = {event["epoch"] for event in signed}
    assert len(epochs & set(range(1, max(epochs)))) > 0.6 * max(epochs), "it is in most rounds"
    assert_named(signed, [*trainers, newcomer, late])


@pytest.mark.long
@pytest.mark.timeout(400)
def test_an_anchor_that_has_died_and_comes_back_goes_on_from_the_swarms_epoch(tmp_path):
    key_file = tmp_path / "key.pem"
    keys = [PublisherKey.load_or_create(key_file).public]
    how = dict(key_file=str(key_file), checkpoint=str(tmp_path / "checkpoint"), checkpoint_epoch=3)
    with Swarm(tmp_path, tiny_run(**RUN), num_peers=2, anchor_keys=keys) as swarm:
        anchor = swarm.start("anchor", "anchor_peer.py", **how)
        trainers = [swarm.start(name) for name in ("first", "second")]
        wait_until_signed(anchor, 4)
        anchor.kill()
        swarm.entry_addresses = trainers[0].wait_for("ready")["addresses"]
        again = swarm.start("again", "anchor_peer.py", **how)
        begun = again.wait_for("ready")["epoch"]
        newest = max(step["epoch"] for step in trainers[0].events("step"))
        wait_until_signed(again, newest + 2)
    signed = again.events("signed")
    assert begun < anchor.events("signed")[-1]["epoch"] + 2 and not any(event["returns"] for event in signed)
    # Trainers write down what they have named with their next step, and an anchor signs it before that.
    assert_named([event for event in signed if begun < event["epoch"] < signed[-1]["epoch"]], trainers)


def assert_named(signed, peers):
    """The anchor computes what the trainers compute."""
    named = {(event["epoch"], event["digest"]) for peer in peers for event in peer.events("state")}
    for event in signed:
        assert (event["epoch"], event["digest"]) in named or event["epoch"] == 0


@pytest.mark.long
@pytest.mark.timeout(400)
def test_an_anchor_that_missed_the_first_rounds_has_the_run_return_and_is_in_those_that_follow(tmp_path):
    key_file, pause_file = tmp_path / "key.pem", tmp_path / "pause"
    keys = [PublisherKey.load_or_create(key_file).public]
    how = dict(key_file=str(key_file), checkpoint=str(tmp_path / "checkpoint"), pause_file=str(pause_file))
    with Swarm(tmp_path, tiny_run(**RUN), num_peers=2, anchor_keys=keys) as swarm:
        anchor = swarm.start("anchor", "anchor_peer.py", **how)
        wait_until_signed(anchor, 0)
        pause_file.touch()
        trainers = [swarm.start(name) for name in ("first", "second")]
        trainers[0].wait_for("step", epoch=3)
        pause_file.unlink()
        anchor.wait_for("signed", epoch=0, returns=True)
        wait_until_signed(anchor, 2)
        assert not anchor.events("signed")[-1]["returns"], "they train on with it"
        assert "returns to epoch 0" in anchor.log()
        named = "\n".join(trainer.log() for trainer in trainers)
    assert "anchor returns to epoch 0 from epoch" in named, "volunteers hear what becomes of their work"


def wait_until_signed(anchor, epoch):
    """Wait until an anchor has signed a state of this epoch or a later one."""
    while True:
        signed = [event["epoch"] for event in anchor.events("signed")]
        if signed and signed[-1] >= epoch:
            return
        anchor.wait_for("signed", after=anchor.events("signed")[-1]["time"] if signed else 0.0)
