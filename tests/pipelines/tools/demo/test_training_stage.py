"""Which peers the demo starts again, what it waits for, and what it says: with peers that follow a script."""

import contextlib
import io
import os
import shutil
import signal
import time

import pytest
from demo_peers import ScriptedStages
from rich.console import Console

from pipelines.tools.demo.demo_plan import Accounts, DemoPlan
from pipelines.tools.demo.running.peers import MOST_STARTS, SECONDS_OF_SILENCE, epoch_of
from pipelines.tools.demo.running.stall_timeout import LEAST_SECONDS
from pipelines.tools.demo.stages import StageError
from pipelines.tools.demo.training_stage import MOST_RENEWALS, SECONDS_TO_HAND_OVER, Training, training_text

NUM_EPOCHS = 12
ACCOUNTS = Accounts(organiser="", volunteers=("", ""), visitor="")


class Scene:
    """A training of scripted peers, and what was told about it."""

    def __init__(self, folder, hub, **scripts):
        self.told = io.StringIO()
        named = {"auxiliary": ["look(0); stay()"], "trainer-0": ["step(0); stay()"], "trainer-1": ["step(0); stay()"]}
        named |= {name.replace("_", "-"): script for name, script in scripts.items()}
        (folder / "work").mkdir()
        self.stages = ScriptedStages(folder, hub.environment(), Console(file=self.told, width=1000), named)
        plan = DemoPlan(name="scripted", output=folder, run_settings=dict(num_epochs=NUM_EPOCHS))
        self.training = Training(self.stages, plan, ACCOUNTS, hub)
        self.later = 0.0

    @contextlib.contextmanager
    def running(self):
        """Run the peers; at the end they are stopped at once, as when somebody presses Ctrl-C."""
        with contextlib.suppress(KeyboardInterrupt), self.training.running():
            yield
            raise KeyboardInterrupt

    def look_until(self, condition):
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, self.told.getvalue()
            self.training.look(time.monotonic() + self.later)
            time.sleep(0.01)

    def told_so(self, words):
        return lambda: words in self.told.getvalue()


def test_a_trainer_that_dies_is_started_again_and_a_line_says_why(tmp_path, hub):
    scene = Scene(tmp_path, hub, auxiliary=["look(3); stay()"], trainer_1=["fail('no luck')", "look(4); stay()"])
    with scene.running():
        scene.look_until(scene.told_so("Trainer 2 ended with exit code 1 in epoch 3: it is started again. (no luck)"))
        scene.look_until(lambda: scene.training._newest_epoch == 4)


def test_a_trainer_that_never_stays_is_given_up_while_the_other_trains(tmp_path, hub):
    scene = Scene(tmp_path, hub, trainer_1=["fail('no luck')"])
    with scene.running():
        scene.look_until(scene.told_so("Trainer 2 has ended too often: the demo goes on without it. (no luck)"))
    assert scene.told.getvalue().count("Trainer 2 ended with exit code 1") == MOST_STARTS - 1


def test_when_nobody_can_train_the_demo_ends_in_a_line_with_the_reason(tmp_path, hub):
    scene = Scene(tmp_path, hub, trainer_0=["fail('no disk')"], trainer_1=["fail('no luck')"])
    with (
        pytest.raises(StageError, match=r"Trainer . ended with exit code 1 in epoch 0 of 12, .*: no (disk|luck) Logs"),
        scene.running(),
    ):
        scene.look_until(lambda: False)


def test_an_auxiliary_peer_that_dies_is_started_again_with_the_trainers_left_alone(tmp_path, hub):
    scene = Scene(tmp_path, hub, auxiliary=["look(3); stay()", "look(5, held=5); stay()"])
    with scene.running():
        scene.look_until(lambda: scene.training._newest_epoch == 3)
        scene.training._auxiliary.program.kill()
        scene.look_until(lambda: scene.training._newest_epoch == 5)
    assert "The auxiliary peer ended with exit code -9 in epoch 3: it is started again." in scene.told.getvalue()
    assert "Trainer" not in scene.told.getvalue().replace("Trainer 1, Trainer 2", "")


def test_a_frozen_peer_counts_as_dead_after_some_silence(tmp_path, hub):
    scene = Scene(tmp_path, hub, auxiliary=["look(3); stay()"])
    with scene.running():
        scene.look_until(lambda: all(peer.epoch >= 1 for peer in scene.training._trainers))
        os.kill(scene.training._trainers[0].program.process.pid, signal.SIGSTOP)
        while not scene.training._trainers[0].program.is_frozen:
            time.sleep(0.01)
        scene.later = SECONDS_OF_SILENCE + 1
        scene.look_until(scene.told_so("Trainer 1 has been stopped by a signal in epoch 3: it is started again."))
    assert "Trainer 2 has been" not in scene.told.getvalue()


def test_whoever_hangs_the_demo_goes_on_when_the_last_epoch_is_published(tmp_path, hub):
    scene = Scene(tmp_path, hub, auxiliary=[f"look({NUM_EPOCHS}, {NUM_EPOCHS}, {NUM_EPOCHS}); sys.exit(0)"])
    with scene.training.running():
        scene.look_until(scene.training.is_published)
        for peer in scene.training._trainers:
            if peer.program is not None:
                os.kill(peer.program.process.pid, signal.SIGSTOP)
    assert "it is started again" not in scene.told.getvalue()
    assert scene.told.getvalue().count("\n") <= 1, "one line says who had not left"


def test_trainers_that_left_with_the_last_state_come_back_for_the_auxiliary_peer_that_has_not_got_it(tmp_path, hub):
    last = [f"step({NUM_EPOCHS - 1})"]
    scene = Scene(tmp_path, hub, auxiliary=["look(11, held=8); stay()"], trainer_0=last, trainer_1=last)
    with scene.running():
        scene.look_until(lambda: scene.training._alone_since is not None)
        assert scene.told.getvalue() == ""
        scene.later = SECONDS_TO_HAND_OVER + 1
        scene.look_until(scene.told_so("Trainer 2 ended with exit code 0 in epoch 12: it is started again."))


def test_when_nothing_advances_all_are_started_again_and_then_the_demo_says_what_it_saw(tmp_path, hub):
    scene = Scene(tmp_path, hub)
    with (
        pytest.raises(StageError, match=r"Nothing has advanced for 30\d s in epoch 1 of 12, also after all "),
        scene.running(),
    ):
        for number in range(MOST_RENEWALS + 1):
            scene.look_until(lambda: all(peer.epoch >= 0 for peer in scene.training._peers))
            scene.training.look(time.monotonic() + LEAST_SECONDS + 1)
            assert scene.told.getvalue().count("all are started again from the newest checkpoint") == number + 1
    assert "trainer 1 runs and is in epoch 1" in scene.told.getvalue()


def test_a_hub_that_dies_is_started_again_at_its_address(tmp_path, hub):
    scene = Scene(tmp_path, hub)
    endpoint = hub.endpoint
    with scene.running():
        hub.kill()
        scene.look_until(scene.told_so("The demo's Hub has ended: it is started again."))
    assert hub.endpoint == endpoint


def test_a_folder_that_somebody_removes_ends_the_demo_in_a_line(tmp_path, hub):
    scene = Scene(tmp_path, hub)
    with pytest.raises(StageError, match="was removed while the demo ran in it"), scene.running():
        scene.look_until(lambda: scene.training._auxiliary.epoch == 0)
        shutil.rmtree(tmp_path / "work")
        scene.training.look(time.monotonic())


def test_an_event_shows_the_epoch_that_a_peer_has_come_to():
    assert epoch_of(dict(event="step", epoch=3, ended_epoch=True)) == 4
    assert epoch_of(dict(event="step", epoch=3, ended_epoch=False)) == 3
    assert epoch_of(dict(event="joined", epoch=7)) == 7
    assert epoch_of(dict(event="entered")) == -1
    assert epoch_of(dict(swarm_epoch=9, held_epoch=8, published_epoch=4)) == 9


def test_what_a_run_is_doing_in_a_line():
    assert training_text({}) == "0 trainers" and training_text(dict(num_trainers=1, summary=None)) == "1 trainer"
    summary = dict(loss=2.0, num_peers=1, samples_per_second=12.4, share_averaged=1.0)
    assert training_text(dict(summary=summary)) == "loss 2.000, 1 peer, 12 samples/s, 100% averaged"
