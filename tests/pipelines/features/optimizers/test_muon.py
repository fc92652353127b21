"""Muon against torch's own, written out in float64, and the exactness that gives all processors the same bits."""

import math

import pytest
import torch
from hivemind.optim.state_averager import dump_optimizer_state, load_optimizer_state

from pipelines.core.optimizers.choice import optimizer_factory, optimizer_parts, parameter_groups
from pipelines.core.optimizers.parameter_groups import in_optimizer_order
from pipelines.core.run.training_run import TrainingRun
from pipelines.features.optimizers.muon import (
    BLOCK_ROWS,
    COEFFICIENTS,
    Muon,
    _orthogonal_on_gpu,
    muon_groups,
    orthogonalise_,
)

SETTINGS = dict(lr=0.02, betas=(0.9, 0.96), eps=1e-6)
SHAPES = [(24, 24), (40, 16), (16, 40), (2, 3), (64, 80), (BLOCK_ROWS + 5, 3), (3, 2 * BLOCK_ROWS)]


def made_up(shape, seed, scale=1.0):
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def orthogonal_by_the_formula(matrix):
    """The iteration of `torch.optim.Muon`, in float64."""
    first, second, third = COEFFICIENTS
    matrix = matrix.double()
    matrix = matrix / matrix.norm().clamp(min=1e-7)
    for _ in range(5):
        gram = matrix @ matrix.T
        matrix = first * matrix + (second * gram + third * gram @ gram) @ matrix
    return matrix


def muon_by_the_formula(parameter, gradients, *, lr, betas, eps, weight_decay=0.0, max_gradient_norm=None):
    parameter, momentum = parameter.double(), betas[0]
    mean = torch.zeros_like(parameter)
    for gradient in gradients:
        gradient = gradient.double()
        if max_gradient_norm is not None:
            gradient = gradient * min(1.0, max_gradient_norm / (gradient.norm().item() + 1e-6))
        mean = momentum * mean + (1 - momentum) * gradient
        step = orthogonal_by_the_formula(momentum * mean + (1 - momentum) * gradient)
        parameter = parameter * (1 - lr * weight_decay) - lr * 0.2 * math.sqrt(max(parameter.shape)) * step
    return parameter.float()


def new_muon(*matrices, **settings):
    return Muon([dict(params=list(matrices), is_orthogonal=True)], **(SETTINGS | settings))


def train(optimizer_settings, gradients, shape=(64, 80)):
    parameter = torch.nn.Parameter(made_up(shape, 0))
    optimizer = new_muon(parameter, **optimizer_settings)
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step()
    return parameter.detach(), optimizer


@pytest.mark.parametrize("settings", [{}, dict(weight_decay=0.3), dict(max_gradient_norm=4.0), dict(betas=(0.0, 0.9))])
@pytest.mark.parametrize("shape", SHAPES)
def test_matrices_follow_the_formula(settings, shape):
    gradients = [made_up(shape, seed, 0.1 * seed) for seed in range(1, 6)]
    trained, _ = train(dict(bits=32, **settings), gradients, shape)
    expected = muon_by_the_formula(made_up(shape, 0), gradients, **(SETTINGS | settings))
    assert (trained - expected).norm() < 1e-3 * (expected - made_up(shape, 0)).norm()


def test_matrices_follow_torchs_own_muon_within_its_half_precision():
    own, other = (torch.nn.Parameter(made_up((64, 80), 0)) for _ in range(2))
    optimizers = (
        new_muon(own, weight_decay=0.1, bits=32),
        torch.optim.Muon([other], lr=0.02, weight_decay=0.1, momentum=0.9, adjust_lr_fn="match_rms_adamw"),
    )
    for seed in range(5):
        own.grad = made_up((64, 80), 1 + seed)
        other.grad = own.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    assert (own - other).norm() < 0.02 * (other - made_up((64, 80), 0)).norm()


def test_eight_bit_momentum_stays_close_to_the_formula():
    gradients = [made_up((64, 80), seed) for seed in range(1, 21)]
    expected = muon_by_the_formula(made_up((64, 80), 0), gradients, **SETTINGS)
    trained, optimizer = train(dict(bits=8), gradients)
    assert (trained - expected).norm() < 0.05 * (expected - made_up((64, 80), 0)).norm()
    assert not torch.equal(trained, expected), "the statistic is really in 8 bits"
    (state,) = optimizer.state.values()
    assert sum(tensor.numel() * tensor.element_size() for tensor in state.values()) <= 1.02 * trained.numel()


@pytest.mark.parametrize("shape", [*SHAPES, (1, 7), (7, 1), (1, 1)])
@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
def test_singular_values_become_about_one_whatever_the_shape_and_scale(shape, scale):
    matrix = made_up(shape, 0)
    matrix = matrix / matrix.norm() * (scale if scale >= 1 else 1.0)
    orthogonalise_(matrix)
    values = torch.linalg.svdvals(matrix)
    assert values.max() < 1.25 and values.median() > 0.5


def test_a_momentum_of_zeros_or_of_next_to_nothing_moves_nothing():
    for scale in (0.0, 1e-40):
        matrix = made_up((40, 16), 0, scale)
        orthogonalise_(matrix)
        assert matrix.abs().max() < 1e-25
    trained, _ = train(dict(weight_decay=0.1), [torch.zeros(64, 80)])
    torch.testing.assert_close(trained, made_up((64, 80), 0) * (1 - 0.02 * 0.1))


def test_what_a_gpu_computes_is_the_formula_but_for_half_precision():
    for shape in ((40, 16), (64, 64)):
        matrix = made_up(shape, 0)
        expected = orthogonal_by_the_formula(matrix)
        assert (_orthogonal_on_gpu(matrix).double() - expected).norm() < 0.03 * expected.norm()


@pytest.mark.parametrize("bits", [8, 32])
def test_the_state_that_peers_exchange_round_trips_bit_by_bit(bits):
    trained, optimizer = train(dict(bits=bits), [made_up((64, 80), seed) for seed in range(1, 5)])
    metadata, tensors = dump_optimizer_state(optimizer)
    newcomer = torch.nn.Parameter(trained.clone())
    other = new_muon(newcomer, bits=bits)
    load_optimizer_state(other, metadata, [tensor.clone() for tensor in tensors])
    (parameter,) = optimizer.param_groups[0]["params"]
    for name, tensor in optimizer.state[parameter].items():
        assert torch.equal(other.state[newcomer][name], tensor), name
    for each in (parameter, newcomer):
        each.grad = made_up((64, 80), 9)
    optimizer.step()
    other.step()
    assert torch.equal(parameter.detach(), newcomer.detach())


class WithEverything(torch.nn.Module):
    """A model with each kind of parameter, the layers' matrices between tables."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(7, 4)
        self.convolution = torch.nn.Conv2d(4, 4, 3)
        self.fused = torch.nn.Linear(4, 12)
        self.column = torch.nn.Linear(1, 4)
        self.norm = torch.nn.LayerNorm(4)
        self.wide = torch.nn.Linear(16, 4, bias=False)
        self.head = torch.nn.Linear(4, 7)

    def get_output_embeddings(self):
        return self.head


def test_matrices_of_layers_are_orthogonalised_and_tables_kernels_and_vectors_are_not():
    model = WithEverything()
    groups = muon_groups(model, 0.1)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    orthogonal = [names[id(p)] for group in groups if group["is_orthogonal"] for p in group["params"]]
    assert orthogonal == ["fused.weight", "wide.weight"]
    assert [id(p) for group in groups for p in group["params"]] == [id(p) for p in in_optimizer_order(model)]
    assert all(group["weight_decay"] == (0.1 if group["params"][0].squeeze().ndim > 1 else 0.0) for group in groups)


@pytest.mark.parametrize("local_steps", [1, 4])
def test_a_run_with_muon_trains_all_parameters_and_all_but_matrices_as_with_adamw(local_steps):
    models = {}
    for name in ("muon", "adamw"):
        torch.manual_seed(0)
        models[name] = model = WithEverything()
        run = TrainingRun(run_id="a", optimizer=name, inner_optimizer=name, local_steps=local_steps, optimizer_bits=32)
        if local_steps == 1:
            parts = optimizer_parts(run, model)
            optimizer = parts["optimizer"](parts["params"])
        else:
            optimizer = optimizer_factory(run)(parameter_groups(run, model))
        for number, parameter in enumerate(model.parameters()):
            parameter.grad = 0.01 * made_up(parameter.shape, number)
        optimizer.step()
    for (name, own), other in zip(models["muon"].named_parameters(), models["adamw"].parameters(), strict=True):
        assert torch.equal(own, other) == (name not in ("fused.weight", "wide.weight")), name


def test_a_model_without_matrices_is_refused():
    model = torch.nn.Sequential(torch.nn.Embedding(7, 4), torch.nn.LayerNorm(4))
    with pytest.raises(ValueError, match=r"this model has none besides its tables.*--set optimizer=adamw"):
        muon_groups(model, 0.1)
