"""The training state of one peer, without a network: its steps, its epochs, and what can be gone back to."""

import subprocess
import sys
import threading
from functools import partial

import pytest
import torch

from pipelines.core.optimizers.choice import linear_schedule
from pipelines.core.optimizers.lamb import Lamb
from pipelines.core.state.training_state import TrainingState

PURE = """
import importlib, pkgutil, sys
for room in ("run", "gradients", "optimizers"):
    package = importlib.import_module(f"pipelines.core.{room}")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
for name in ("training_state", "digest", "snapshot", "votes", "download"):
    importlib.import_module(f"pipelines.core.state.{name}")
sys.exit("hivemind" in sys.modules)
"""


def test_state_run_gradients_and_optimizers_do_not_load_hivemind():
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", PURE], check=False).returncode == 0


@pytest.fixture
def state():
    model = torch.nn.Linear(3, 2)
    schedule = partial(linear_schedule, num_warmup=2, num_total=10)
    state = TrainingState("birds", list(model.parameters()), partial(torch.optim.SGD, lr=1.0), schedule)
    for parameter in state.optimized_parameters:
        parameter.grad.fill_(1.0)
    state.set_epoch(2)
    yield state
    state.close()


def values(parameters):
    return [parameter.detach().clone() for parameter in parameters]


def are_equal(first, second):
    return all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_along_a_gradient_that_nobody_can_use_the_epoch_ends_without_a_step_and_training_goes_on():
    model = torch.nn.Linear(3, 2)
    state = TrainingState("birds", list(model.parameters()), partial(Lamb, lr=1.0))
    before = values(state.main_parameters)
    for parameter in state.optimized_parameters:
        parameter.grad.fill_(1e30)  # finite, as a partner may send it
    state.step()
    assert state.state_epoch == 1
    assert are_equal(state.main_parameters, before) and are_equal(state.optimized_parameters, before)
    state.close()


def test_a_step_changes_optimizer_model_epoch_and_learning_rate(state):
    before = values(state.main_parameters)
    state.changed.clear()
    state.step()
    assert (state.local_epoch, state.state_epoch, state.model_epoch) == (3, 3, 3)
    assert state.changed.is_set()
    assert are_equal(state.main_parameters, state.optimized_parameters)
    assert all(torch.allclose(own, old - 1.0) for own, old in zip(state.main_parameters, before, strict=True))
    assert state.optimizer.param_groups[0]["lr"] == pytest.approx(7 / 8)


def test_a_step_in_the_background_reaches_the_model_when_it_is_applied(state):
    may_go_on, before = threading.Event(), values(state.main_parameters)
    state.step(may_go_on.wait, in_background=True)
    state.apply_updates()
    assert (state.local_epoch, state.state_epoch, state.model_epoch) == (3, 2, 2)
    state.wait_for_updates(most_seconds=0.01)
    assert are_equal(state.main_parameters, before)
    may_go_on.set()
    state.wait_for_updates()
    assert (state.state_epoch, state.model_epoch) == (3, 3)
    assert not are_equal(state.main_parameters, before)


def test_without_an_average_an_epoch_passes_and_a_round_that_was_missed_leaves_the_state_as_it_is(state):
    def miss():
        raise ConnectionError("the others had it")

    before = values(state.optimized_parameters)
    state.step(lambda: False)
    assert (state.local_epoch, state.state_epoch) == (3, 3)
    state.step(miss)
    assert (state.local_epoch, state.state_epoch, state.model_epoch) == (4, 3, 3)
    assert are_equal(state.optimized_parameters, before)


def test_an_optimizer_that_fails_is_heard_of(state):
    state.optimizer.step = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        state.step()
    state.step(in_background=True)
    with pytest.raises(ZeroDivisionError):
        state.wait_for_updates()


def test_an_earlier_state_is_restored_with_its_epoch(state):
    state.step()
    kept = {name: tensor.clone() for name, tensor in state.named_state().items()}
    state.step()
    state.restore_state(kept, 3)
    assert (state.local_epoch, state.state_epoch, state.model_epoch) == (3, 3, 3)
    assert are_equal(state.named_state().values(), kept.values())
    assert are_equal(state.main_parameters, state.optimized_parameters)


def test_a_snapshot_is_current_until_the_next_step_and_another_peers_state_is_taken_over(state):
    manifest = state.take_snapshot()
    assert state.snapshot_is_current and manifest.epoch == 2
    kept = {name: tensor.clone() for name, tensor in state.snapshot.tensors.items()}
    state.step()
    assert not state.snapshot_is_current

    def write(snapshot):
        snapshot.begin()
        snapshot.fill(kept)
        return manifest

    state.take_over(write)
    assert state.snapshot_is_current and state.state_epoch == 2
    assert are_equal(state.optimized_parameters, [kept["parameter.0"], kept["parameter.1"]])


def test_values_that_are_not_finite_are_not_offered(state):
    with torch.no_grad():
        state.optimized_parameters[0][0, 0] = float("nan")
    assert state.take_snapshot() is None and not state.snapshot_is_current
