"""One process with many free keys lies about the swarm's progress and state in a run that everybody may join."""

import pytest
from swarm_of_processes import HOSTILE_PROCESS, Swarm, tiny_run

pytestmark = [pytest.mark.slow, pytest.mark.swarm]

TARGET = 300


@pytest.mark.long
def test_three_trainers_go_on_while_one_process_lies_about_epochs_samples_and_states(
    tmp_path,
):
    run = tiny_run(num_epochs=10_000, target_batch_size=TARGET)
    with Swarm(tmp_path, run, num_peers=3) as swarm:
        trainers = [swarm.start(name) for name in ("first", "second", "third")]
        for trainer in trainers:
            trainer.wait_for("step", epoch=2, has_averaged=True)
        liar = swarm.start("liar", HOSTILE_PROCESS, attacks=dict(lying_epoch=5, lying_samples=6, samples_of_new_keys=1))
        first_lie = liar.wait_for("lied")["time"]
        last = max(step["epoch"] for trainer in trainers for step in trainer.events("step"))
        for trainer in trainers:
            trainer.wait_for("step", after=first_lie, epoch=last + 8, ended_epoch=True, share_averaged=1.0)
    named = [{event["epoch"]: event["digest"] for event in trainer.events("state")} for trainer in trainers]
    newest = max(set.intersection(*map(set, named)))
    assert newest > last and len({states[newest] for states in named}) == 1, "the liars' state is nobody's"
    for epoch in range(last + 6, last + 9):
        assert sum(num_gathered(trainer, epoch) for trainer in trainers) > 0.7 * TARGET, (
            f"epoch {epoch} was ended by samples that nobody has"
        )


def num_gathered(trainer, epoch):
    """Return how many samples a trainer had when it last said so before the end of an epoch."""
    steps = [step for step in trainer.events("step") if step["epoch"] == epoch and not step["ended_epoch"]]
    return max((step["num_gathered"] for step in steps), default=0)
