"""A user's optimizer steps the shared state as its own model, with equal bits for any number of threads."""

from functools import partial

import pytest
import torch
from swarm_of_processes import tiny_run

from pipelines.core.state.digest import named_state
from pipelines.joining.own_optimizer import UnsuitableOptimizerError, own_optimizer_parts

RUN = tiny_run(num_epochs=100, num_warmup_epochs=0)
OPTIMIZERS = {
    "SGD": partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "SGD without momentum": partial(torch.optim.SGD, lr=0.1, weight_decay=0.1),
    "AdamW": partial(torch.optim.AdamW, lr=0.01),
    "Adafactor": partial(torch.optim.Adafactor, lr=0.01),
    "Muon": partial(torch.optim.Muon, lr=0.01),
    "Adagrad": partial(torch.optim.Adagrad, lr=0.01, initial_accumulator_value=0.1),
    "NAdam": partial(torch.optim.NAdam, lr=0.01),
}


def make_model(*, width=96):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(width, width, bias=False), torch.nn.Linear(width, width, bias=False))


def copies(make, model, limit=1e6):
    """Return the optimizer that would step a swarm's copy of the parameters, and its schedule."""
    parts = own_optimizer_parts(RUN.replace(max_gradient_norm=limit), model, make(model.parameters()))
    groups = [
        dict(group, params=[parameter.detach().clone().requires_grad_() for parameter in group["params"]])
        for group in parts["params"]
    ]
    optimizer = parts["optimizer"](groups)
    return optimizer, parts["scheduler"](optimizer)


def parameters_of(optimizer):
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def give_gradients(parameters, seed, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    for parameter in parameters:
        parameter.grad = scale * torch.randn(parameter.shape, generator=generator)


@pytest.mark.filterwarnings("ignore:Whether peers")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_copy_steps_as_the_optimizer_would(name):
    model, alone = make_model(), make_model()
    (copied, schedule), plain = copies(OPTIMIZERS[name], model), OPTIMIZERS[name](alone.parameters())
    assert all(torch.equal(a, b) for a, b in zip(parameters_of(copied), model.parameters(), strict=True))
    for epoch in range(5):
        for optimizer in (copied, plain):
            give_gradients(parameters_of(optimizer), seed=epoch)
        for group in plain.param_groups:
            group["lr"] = OPTIMIZERS[name].keywords["lr"] * (1 - epoch / RUN.num_epochs)
        copied.step()
        schedule.step()
        plain.step()
    for ours, theirs in zip(parameters_of(copied), alone.parameters(), strict=True):
        # NAdam's product of momenta has one factor of the step along zeros.
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5 if name != "NAdam" else 1e-2)
    assert not any(torch.equal(a, b) for a, b in zip(parameters_of(copied), model.parameters(), strict=True))


def state_after(name, num_threads, width, num_steps):
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        optimizer, _ = copies(OPTIMIZERS[name], make_model(width=width), limit=1.0)
        for step in range(num_steps):
            give_gradients(parameters_of(optimizer), seed=step)
            optimizer.step()
            assert torch.get_num_threads() == num_threads
        return named_state(optimizer)
    finally:
        torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.timeout(900)
# Muon's products are in bfloat16, in which processors without such instructions are a hundred times slower.
@pytest.mark.parametrize(
    ("name", "width", "num_steps"), [("SGD", 640, 50), ("AdamW", 640, 50), ("Adafactor", 640, 50), ("Muon", 192, 10)]
)
def test_peers_with_other_numbers_of_threads_have_equal_bits_after_many_epochs(name, width, num_steps):
    one, three = (state_after(name, num_threads, width, num_steps) for num_threads in (1, 3))
    assert one.keys() == three.keys() and all(torch.equal(one[key], three[key]) for key in one)


def test_a_long_gradient_is_clipped_and_given_back_as_it_was():
    optimizer, _ = copies(partial(torch.optim.SGD, lr=1.0), make_model(), limit=2.0)
    before = [parameter.detach().clone() for parameter in parameters_of(optimizer)]
    give_gradients(parameters_of(optimizer), seed=0, scale=10.0)
    given = [parameter.grad for parameter in parameters_of(optimizer)]
    optimizer.step()
    moved = torch.cat([(a - b).flatten() for a, b in zip(before, parameters_of(optimizer), strict=True)])
    assert moved.norm().item() == pytest.approx(2.0, rel=1e-4)
    assert all(parameter.grad is own for parameter, own in zip(parameters_of(optimizer), given, strict=True))


def test_a_gradient_that_is_not_finite_is_refused_and_nothing_has_changed():
    optimizer, _ = copies(OPTIMIZERS["AdamW"], make_model())
    before = {name: tensor.clone() for name, tensor in named_state(optimizer).items()}
    give_gradients(parameters_of(optimizer), seed=0, scale=float("nan"))
    with pytest.raises(ValueError, match="norm is nan"):
        optimizer.step()
    assert all(torch.equal(tensor, before[name]) for name, tensor in named_state(optimizer).items())


class CountsInPython(torch.optim.SGD):
    def step(self, closure=None):
        for parameter in parameters_of(self):
            self.state[parameter]["number"] = self.state[parameter].get("number", 0) + 1
        return super().step(closure)


def stepped(parameters):
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    give_gradients(parameters_of(optimizer), seed=0)
    optimizer.step()
    return optimizer


@pytest.mark.filterwarnings("ignore:Whether peers")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda parameters: torch.optim.SGD(make_model().parameters(), lr=0.1), "parameters that are not the model's"),
        (stepped, "SGD has stepped already. Give it new"),
        (torch.optim.LBFGS, "LBFGS cannot step along gradients alone: needs a closure"),
        (partial(CountsInPython, lr=0.1), "CountsInPython keeps number as int"),
        (partial(torch.optim.SparseAdam, lr=0.1), "SparseAdam cannot step along gradients alone: SparseAdam does not"),
    ],
    ids=["foreign", "stepped", "LBFGS", "counts", "sparse"],
)
def test_an_optimizer_that_a_swarm_cannot_step_with_is_refused_in_one_line(make, message):
    with pytest.raises(UnsuitableOptimizerError, match=message) as refused:
        copies(make, make_model())
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("setting", [dict(local_steps=5), dict(momentum_before_averaging=True)], ids=str)
def test_a_run_that_wants_something_else_than_steps_along_gradients_is_refused(setting):
    model = make_model()
    with pytest.raises(UnsuitableOptimizerError, match=f"The run has {next(iter(setting))}="):
        own_optimizer_parts(RUN.replace(**setting), model, torch.optim.SGD(model.parameters(), lr=0.1))
