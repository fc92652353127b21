"""What a peer with sparse synchronisation sends, and what becomes of it: progress is sent once, or still to be sent."""

import pytest
import torch
from hivemind.averaging.control import StepControl
from hivemind.utils import MPFuture
from safetensors.torch import save_file
from swarm_of_processes import tiny_run

from pipelines.core.epoch.reduction import Reduction, reduction_of
from pipelines.core.optimizers.choice import optimizer_parts
from pipelines.core.state.training_state import TrainingState
from pipelines.features.publishing.checkpoint_tensors import RunState, load_training_state, save_training_state
from pipelines.features.sparse.averager import SparseAverager
from pipelines.features.sparse.mean import mean
from pipelines.features.sparse.reduction import SparseLocalSteps, SparseReduction

RUN = tiny_run(
    local_steps=4, synchronisation="sparse", aggregation_rule="mean", outer_momentum=0, sparse_error_decay=1.0
)
NUM_SAMPLES = 8


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(40, 250))
        self.bias = torch.nn.Parameter(torch.zeros(40))


class Peer:
    """A peer whose averagers' processes are never started."""

    def __init__(self, dht):
        self.model = Model()
        common = dict(dht=dht, admission=None, start=False, min_matchmaking_time=1.0)
        self.state = TrainingState("sparse", **optimizer_parts(RUN, self.model))
        self.averager = reduction_of(RUN).averager(
            averaged_tensors=self.copy(), prefix="sparse", **common, next_chunk_timeout=7.0, allreduce_timeout=40.0,
        )  # fmt: skip
        self.steps = reduction_of(RUN).gathering(self.model, self.averager, self.state)
        self.total = self.copy()

    def copy(self):
        return [parameter.detach().clone() for parameter in self.state.main_parameters]

    @torch.no_grad()
    def progress(self, seed):
        """Move the model, as inner steps would."""
        generator = torch.Generator().manual_seed(seed)
        for parameter, total in zip(self.state.main_parameters, self.total, strict=True):
            move = torch.randn(parameter.shape, generator=generator)
            parameter.add_(move)
            total.sub_(move)  # a pseudo-gradient is start minus end
        self.steps._num_samples += NUM_SAMPLES

    def loaded(self):
        """Return what would be averaged densely, or is stepped along alone."""
        found = self.copy()
        self.steps.load(found)
        return found

    def unsent(self):
        return self.steps._feedback.error

    def sent(self):
        """Return what the bytes of the contribution say."""
        return mean(self.averager.codec, [self.averager.codec.decode(self.averager._contribution)], [1.0])

    def is_asked(self, *, began, taken, scale=1.0):
        """Let a round that this peer takes part in have come so far."""
        self.averager._was_taken.value, self.averager._own_scale.value = taken, scale
        step = StepControl(0.0, deadline=0.0, allow_retries=True, weight=1.0, data_for_gather=b"")
        step.attach(trigger=MPFuture(), cancel=MPFuture())
        step.allow_allreduce()
        step.began_allreduce = began
        self.averager._round = step


def assert_close(ours, theirs):
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=0)


def plus(*lists):
    return [sum(tensors) for tensors in zip(*lists, strict=True)]


@pytest.fixture
def peer(dht):
    peer = Peer(dht)
    assert isinstance(peer.averager, SparseAverager)
    assert isinstance(peer.steps, SparseLocalSteps)
    return peer


def test_the_settings_say_which_reduction_a_run_has():
    assert type(reduction_of(tiny_run())) is Reduction
    assert isinstance(reduction_of(RUN), SparseReduction)


def test_an_attempt_lasts_as_long_as_a_silent_sender_is_waited_for(peer):
    times = peer.averager._patience.times
    assert times.seconds() == 40.0
    times.note_success(0.1)
    assert times.seconds() == 7.0


def test_what_is_not_sent_is_sent_later_and_nothing_twice(peer):
    sent = []
    for seed in range(3):
        peer.progress(seed)
        peer.steps.finish(seed)
        peer.is_asked(began=True, taken=True)
        assert_close(peer.loaded(), peer.sent())
        assert len(peer.averager._contribution) <= peer.averager.codec.most_bytes
        sent.append(peer.sent())
        peer.steps.end_epoch()
        assert_close(plus(*sent, peer.unsent()), peer.total)


@pytest.mark.parametrize(("began", "taken"), [(False, False), (False, True), (True, False)])
def test_what_came_into_no_round_is_sent_with_the_next_one(peer, began, taken):
    peer.progress(1)
    peer.steps.finish(0)
    peer.is_asked(began=began, taken=taken)
    peer.steps.end_epoch()
    peer.progress(2)
    peer.steps.finish(1)
    assert_close(plus(peer.sent(), peer.unsent()), peer.total)


def test_what_may_be_in_the_mean_of_others_is_not_sent_again(peer):
    peer.progress(1)
    peer.steps.finish(0)
    peer.is_asked(began=True, taken=True)
    first = peer.sent()
    assert peer.steps.restart(keep_gradient=True) == 0
    assert_close(plus(first, peer.unsent()), peer.total)


@pytest.mark.parametrize("scale", [0.75, 0.25])
def test_what_the_mean_has_cut_of_it_is_sent_with_the_next_one(peer, scale):
    peer.progress(1)
    peer.steps.finish(0)
    peer.is_asked(began=True, taken=True, scale=scale)
    lost = 1 - scale - min(scale, 1 - scale)  # at most as much as has counted comes back
    first = [(scale + lost) * own for own in peer.sent()]
    peer.steps.end_epoch()
    peer.progress(2)
    peer.steps.finish(1)
    assert_close(plus(first, peer.sent(), peer.unsent()), peer.total)


def test_what_a_peer_has_stepped_along_alone_is_not_sent_again(peer):
    peer.progress(1)
    peer.steps.finish(0)
    first = [0.5 * own for own in peer.sent()]
    peer.is_asked(began=True, taken=True, scale=0.5)
    peer.steps.end_epoch()
    peer.progress(2)
    peer.steps.finish(1)  # which no round follows
    alone = peer.sent()
    peer.steps.end_epoch()
    peer.progress(3)
    peer.steps.finish(2)
    assert_close(plus(first, alone, peer.sent(), peer.unsent()), peer.total)


def test_a_contribution_says_of_how_many_samples_it_is(peer):
    peer.progress(1)
    peer.progress(2)
    peer.steps.finish(0)
    assert peer.averager.codec.decode(peer.averager._contribution).num_samples == 2 * NUM_SAMPLES


def test_a_round_that_failed_everywhere_is_taken_back(peer):
    peer.progress(1)
    peer.steps.finish(0)
    peer.is_asked(began=True, taken=True)
    assert peer.steps.take_back() == NUM_SAMPLES
    assert_close(peer.unsent(), peer.total)
    peer.steps.finish(1)
    assert_close(plus(peer.sent(), peer.unsent()), peer.total)


def test_a_round_that_failed_everywhere_while_the_next_epoch_went_on_is_taken_back(peer):
    peer.progress(1)
    peer.steps.finish(0)
    peer.is_asked(began=True, taken=True)
    peer.steps.lose_round()
    peer.steps.end_epoch()
    peer.progress(2)
    peer.steps.finish(1)
    assert_close(plus(peer.sent(), peer.unsent()), peer.total)


@pytest.mark.parametrize("keep_gradient", [True, False])
def test_progress_since_the_last_round_outlives_another_state_if_it_is_of_use(peer, keep_gradient):
    peer.progress(1)
    peer.steps.finish(0)
    peer.is_asked(began=False, taken=False)
    before = [tensor.clone() for tensor in peer.total]
    peer.steps.end_epoch()
    peer.progress(2)
    peer.steps.restart(keep_gradient=keep_gradient)
    assert_close(peer.unsent(), peer.total if keep_gradient else before)
    assert_close(peer.state.main_parameters, peer.state.optimized_parameters)


def test_progress_that_is_not_finite_is_not_sent_and_spoils_nothing(peer):
    peer.progress(1)
    before = [tensor.clone() for tensor in peer.unsent()]
    with torch.no_grad():
        peer.model.weight[0, 0] = float("nan")
    peer.steps.finish(0)
    assert peer.averager._contribution is None
    assert not any(tensor.any() for tensor in peer.loaded())
    assert_close(peer.unsent(), before)


def test_the_state_that_newcomers_take_is_parameters_alone(peer, tmp_path):
    assert set(peer.state.named_state()) == {"parameter.0", "parameter.1"}
    kept = RunState(run_id=RUN.run_id, epoch=3, loss=None, package_version="0")
    with torch.no_grad():
        peer.model.weight.fill_(2.0)
    save_file(dict(peer.model.state_dict()), tmp_path / "model.safetensors")
    save_training_state(tmp_path, peer.model, peer.state.optimizer, kept)
    assert load_training_state(tmp_path, peer.model, peer.state.optimizer) == kept
    assert all((parameter == 2.0).all() for parameter in peer.state.optimized_parameters if parameter.dim() == 2)
