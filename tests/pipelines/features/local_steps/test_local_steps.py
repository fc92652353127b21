"""The inner and outer optimizers of local steps, without a swarm."""

import json

import pytest
import torch
from installed_features import ALL_OPTIMIZERS
from swarm_of_processes import tiny_run

from pipelines.core.optimizers.choice import optimizer_parts, optimizer_type, parameter_groups
from pipelines.core.optimizers.schedule import learning_rate
from pipelines.core.run.training_run import TrainingRun
from pipelines.features.local_steps.local_steps import InnerSteps
from pipelines.features.local_steps.nesterov import Nesterov


@pytest.fixture
def model():
    torch.manual_seed(0)
    return torch.nn.Linear(5, 3)


def local_run(**changes):
    return tiny_run(**(dict(local_steps=2, inner_batch_size=8) | changes))


def steps_of(run, model):
    parameters = [p for group in optimizer_parts(run, model)["params"] for p in group["params"]]
    return parameters, InnerSteps(run, model, parameters)


@pytest.mark.parametrize("momentum", [0.9, 0.0])
def test_nesterov_equals_torchs_step_for_step(momentum):
    torch.manual_seed(0)
    ours, theirs = (torch.nn.Parameter(torch.ones(7)) for _ in range(2))
    optimizer = Nesterov([ours], lr=0.3, momentum=momentum)
    reference = torch.optim.SGD([theirs], lr=0.3, momentum=momentum, nesterov=momentum > 0)
    assert bool(optimizer.state) == (momentum > 0), "newcomers download nothing that is always zero"
    for _ in range(5):
        ours.grad = torch.randn(7)
        theirs.grad = ours.grad.clone()
        optimizer.step()
        reference.step()
        torch.testing.assert_close(ours, theirs)


def test_nesterov_refuses_a_gradient_that_is_not_finite_and_changes_nothing():
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = Nesterov([parameter], lr=1.0, momentum=0.9)
    parameter.grad = torch.tensor([1.0, float("nan"), 0.0])
    with pytest.raises(ValueError, match="global gradient norm is nan"):
        optimizer.step()
    assert parameter.tolist() == [1.0] * 3
    assert not optimizer.state[parameter]["momentum"].any()


def test_the_pseudo_gradient_is_the_start_minus_what_was_reached(model):
    parameters, steps = steps_of(local_run(), model)
    start = [parameter.detach().clone() for parameter in parameters]
    steps.step([torch.ones_like(parameter) for parameter in parameters], epoch=3, scale=0.5, share=1.0)
    receivers = [torch.empty_like(parameter) for parameter in parameters]
    steps.take_pseudo_gradient(receivers)
    for parameter, before, receiver in zip(parameters, start, receivers, strict=True):
        torch.testing.assert_close(receiver, before - parameter)
        assert receiver.abs().max() > 0
    steps.take_pseudo_gradient(receivers)  # progress is measured from here on
    assert not any(receiver.any() for receiver in receivers)


def test_progress_made_while_the_round_was_under_way_stays_on_top_of_its_result(model):
    parameters, steps = steps_of(local_run(), model)
    steps.take_pseudo_gradient([torch.empty_like(parameter) for parameter in parameters])
    with torch.no_grad():
        for parameter in parameters:
            parameter.add_(0.25)
    synchronised = [torch.full_like(parameter, 2.0) for parameter in parameters]
    steps.rebase(synchronised)
    for parameter in parameters:
        torch.testing.assert_close(parameter.detach(), torch.full_like(parameter, 2.25))
    steps.restart(synchronised)
    receivers = [torch.empty_like(parameter) for parameter in parameters]
    steps.take_pseudo_gradient(receivers)
    assert all((parameter == 2.0).all() for parameter in parameters)
    assert not any(receiver.any() for receiver in receivers)


@pytest.mark.parametrize("kind", ALL_OPTIMIZERS)
def test_an_inner_step_is_the_optimizers_own_with_clipped_gradient_and_the_rate_of_its_share(model, kind):
    run = local_run(inner_optimizer=kind, max_gradient_norm=1.0)
    expected = torch.nn.Linear(5, 3)
    expected.load_state_dict(model.state_dict())
    parameters, steps = steps_of(run, model)
    gradients = [torch.randn_like(parameter) for parameter in parameters]
    groups = parameter_groups(run, expected)
    options = dict(lr=0.5 * learning_rate(run, 1), betas=run.betas, eps=run.epsilon)
    reference = (
        torch.optim.AdamW(groups, **options) if kind == "adamw" else optimizer_type(kind)(groups, bits=32, **options)
    )
    others = [p for group in groups for p in group["params"]]
    for parameter, gradient in zip(others, gradients, strict=True):
        parameter.grad = 2 * gradient
    torch.nn.utils.clip_grad_norm_(others, 1.0)
    reference.step()
    steps.step(gradients, epoch=1, scale=2.0, share=0.5)
    for parameter, other in zip(parameters, others, strict=True):
        torch.testing.assert_close(parameter, other)


def test_outer_steps_are_muons_where_it_makes_dense_inner_steps_unless_others_are_chosen():
    def outer(**settings):
        run = TrainingRun.from_mapping(json.loads(TrainingRun(run_id="a", **settings).to_json()))
        return run.outer_learning_rate, run.outer_momentum

    assert outer(local_steps=15, inner_optimizer="muon") == (0.7, 0.8)
    assert outer(local_steps=15, inner_optimizer="muon", outer_momentum=0.0) == (0.7, 0.0)
    assert outer(local_steps=15, inner_optimizer="muon", outer_learning_rate=1.0, outer_momentum=0.0) == (1.0, 0.0)
    assert outer(local_steps=15, inner_optimizer="muon", synchronisation="sparse", aggregation_rule="mean") == (1, 0)
    assert [outer(), outer(local_steps=15), outer(inner_optimizer="muon")] == [(1.0, 0.0)] * 3


def test_the_outer_optimizer_is_the_shared_state_and_does_not_decay_weights(model):
    parts = optimizer_parts(local_run(outer_learning_rate=0.5, outer_momentum=0.8), model)
    optimizer = parts["optimizer"](parts["params"])
    assert isinstance(optimizer, Nesterov)
    assert parts["scheduler"] is None
    assert [(group["lr"], group["momentum"]) for group in optimizer.param_groups] == [(0.5, 0.8)] * 2
    assert not any("weight_decay" in group for group in optimizer.param_groups)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(local_steps=0), "local_steps is 0"),
        (dict(inner_optimizer="sgd"), "inner_optimizer is 'sgd'; expected one of lamb"),
        (dict(outer_momentum=1.0), "outer_momentum is 1.0; expected at least 0 and less than 1"),
        (dict(delay_gradient_averaging=True), "delay_optimizer_step is off"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        tiny_run(**changes)


def test_an_epoch_gathers_the_samples_of_all_its_local_steps():
    assert tiny_run(target_batch_size=32).samples_per_epoch == 32
    assert tiny_run(target_batch_size=32, local_steps=50).samples_per_epoch == 1600
