"""LAMB against the paper's formula written out here, in float32 and with 8-bit statistics."""

import threading

import pytest
import torch
from bitsandbytes import functional as quantization
from hivemind.optim.state_averager import dump_optimizer_state, load_optimizer_state
from installed_features import ALL_OPTIMIZERS

from pipelines.core.block_quantisation import (
    Statistic,
    initial_state,
    read_statistic,
    write_statistic,
)
from pipelines.core.equal_arithmetic import SPAN
from pipelines.core.optimizers.adamw import AdamW
from pipelines.core.optimizers.choice import OPTIMIZERS, linear_schedule, optimizer_type
from pipelines.core.optimizers.lamb import Lamb
from pipelines.core.optimizers.parameter_groups import weight_decay_groups
from pipelines.core.run import sections

SETTINGS = dict(lr=0.02, betas=(0.9, 0.96), eps=1e-6)


def made_up(shape, seed, scale=1.0):
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def lamb_by_the_formula(parameter, gradients, *, lr, betas, eps, weight_decay=0.0, max_gradient_norm=None):
    """You et al., 2020, algorithm 2, in float64."""
    parameter, (beta1, beta2) = parameter.double(), betas
    mean, square = torch.zeros_like(parameter), torch.zeros_like(parameter)
    for step, gradient in enumerate(gradients, start=1):
        gradient = gradient.double()
        if max_gradient_norm is not None:
            gradient = gradient * min(1.0, max_gradient_norm / (gradient.norm().item() + 1e-6))
        mean = beta1 * mean + (1 - beta1) * gradient
        square = beta2 * square + (1 - beta2) * gradient**2
        direction = mean / (1 - beta1**step) / ((square / (1 - beta2**step)).sqrt() + eps) + weight_decay * parameter
        parameter = parameter - lr * parameter.norm() / direction.norm() * direction
    return parameter.float()


def train(optimizer_settings, gradients, shape=(64, 80), kind=Lamb, **group):
    parameter = torch.nn.Parameter(made_up(shape, 0))
    optimizer = kind([dict(params=[parameter], **group)], **(SETTINGS | optimizer_settings))
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step()
    return parameter.detach(), optimizer


@pytest.mark.parametrize(
    "settings", [{}, dict(weight_decay=0.3), dict(max_gradient_norm=4.0), dict(max_gradient_norm=1e9, eps=0.1)]
)
def test_float32_statistics_follow_the_formula(settings):
    gradients = [made_up((64, 80), seed, 0.1 * seed) for seed in range(1, 8)]
    trained, _ = train(dict(bits=32, **settings), gradients)
    expected = lamb_by_the_formula(made_up((64, 80), 0), gradients, **(SETTINGS | settings))
    torch.testing.assert_close(trained, expected, rtol=2e-5, atol=2e-6)


def test_the_first_step_moves_by_the_learning_rate_times_the_weight_norm_along_the_gradients_signs():
    trained, _ = train(dict(bits=32), [made_up((64, 80), 1)])
    start = made_up((64, 80), 0)
    assert (trained - start).norm().item() == pytest.approx(0.02 * start.norm().item(), rel=1e-5)
    assert torch.equal((start - trained).sign(), made_up((64, 80), 1).sign())


def test_eight_bit_statistics_stay_close_to_the_formula_and_are_not_adam():
    gradients = [made_up((64, 80), seed) for seed in range(1, 21)]
    start = made_up((64, 80), 0)
    expected = lamb_by_the_formula(start, gradients, **SETTINGS)
    trained, _ = train(dict(bits=8), gradients)
    moved = (expected - start).norm()
    assert (trained - expected).norm() < 0.05 * moved
    assert not torch.equal(trained, expected), "the statistics are really in 8 bits"
    adam = torch.nn.Parameter(start.clone())
    optimizer = torch.optim.Adam([adam], **SETTINGS)
    for gradient in gradients:
        adam.grad = gradient
        optimizer.step()
    assert (adam.detach() - expected).norm() > 0.1 * moved


def test_one_8bit_step_is_the_formula_between_the_librarys_own_quantisations():
    parameter, gradient = torch.nn.Parameter(made_up((64, 80), 0)), made_up((64, 80), 1)
    optimizer = Lamb([parameter], **SETTINGS, bits=8)
    parameter.grad = gradient
    optimizer.step()
    state = optimizer.state[parameter]
    for name, value, is_signed in (("exp_avg", 0.1 * gradient, True), ("exp_avg_sq", 0.04 * gradient**2, False)):
        code = quantization.create_dynamic_map(signed=is_signed)
        quantised, quant_state = quantization.quantize_blockwise(value.flatten(), code=code, blocksize=256)
        difference = (state[name].int() - quantised.int()).abs()
        assert difference.max() <= 1 and (difference > 0).float().mean() < 0.01, "but for rounding"
        torch.testing.assert_close(state[f"{name}_absmax"], quant_state.absmax)


def test_what_is_outside_the_span_that_is_written_stays():
    statistic, values = Statistic(name="any_name", is_signed=True), made_up(5 * 256 + 77, 0)
    parameter, span = torch.zeros(len(values) + 4096), slice(4096, len(values) + 4096)
    state = initial_state(parameter, 8, (statistic,))
    write_statistic(state, statistic, span, values)
    assert not state["any_name"][:4096].any() and not state["any_name_absmax"][:16].any()
    assert (read_statistic(state, statistic, span) - values).norm() < 0.02 * values.norm()


@pytest.mark.parametrize("name", ALL_OPTIMIZERS)
def test_a_mean_of_gradients_keeps_its_signs(name):
    parameter, gradient = torch.nn.Parameter(torch.zeros(64, 80)), made_up((64, 80), 1)
    optimizer = optimizer_type(name)([parameter], **SETTINGS, bits=8)
    parameter.grad = gradient
    optimizer.step()
    declared = optimizer.statistics
    for statistic in declared:
        kept = read_statistic(optimizer.state[parameter], statistic, slice(0, gradient.numel()))
        clear = gradient.flatten().abs() > 0.1
        signs = gradient.flatten().sign() if statistic.is_signed else torch.ones(gradient.numel())
        assert torch.equal(kept.sign()[clear], signs[clear])


def test_a_step_leaves_the_number_of_threads_as_it_was():
    number = torch.get_num_threads()
    train(dict(bits=8), [made_up((1024, 1024), 1)], shape=(1024, 1024))
    seen = []
    thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert (torch.get_num_threads(), seen) == (number, [number])


def test_a_weight_of_zero_norm_is_moved_with_a_trust_ratio_of_one():
    parameter = torch.nn.Parameter(torch.zeros(8))
    optimizer = Lamb([parameter], **SETTINGS, bits=32)
    parameter.grad = torch.ones(8)
    optimizer.step()
    torch.testing.assert_close(parameter.detach(), torch.full((8,), -0.02))


def test_the_weight_norm_in_the_trust_ratio_is_bounded():
    parameter = torch.nn.Parameter(torch.full((4,), 1e6))
    optimizer = Lamb([parameter], **SETTINGS, bits=32)
    parameter.grad = torch.ones(4)
    optimizer.step()
    torch.testing.assert_close(parameter.detach(), torch.full((4,), 1e6 - 0.02 * 10_000.0 / 2.0))


def test_theglobal_norm_over_all_parameters_is_clipped():
    gradients = [torch.full((3,), 30.0), torch.full((2, 2), 20.0)]
    parameters = [torch.nn.Parameter(torch.ones_like(gradient)) for gradient in gradients]
    optimizer = Lamb(parameters, **SETTINGS, max_gradient_norm=4.0, bits=32)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.clone()
    optimizer.step()
    norm = (3 * 30.0**2 + 4 * 20.0**2) ** 0.5
    for parameter, gradient in zip(parameters, gradients, strict=True):
        assert torch.equal(parameter.grad, gradient), "the gradient itself is left alone"
        mean = optimizer.state[parameter]["exp_avg"]
        torch.testing.assert_close(mean, 0.1 * gradient.flatten() * 4.0 / norm, rtol=1e-5, atol=0)


def test_a_parameter_without_a_gradient_is_left_alone():
    parameters = [torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3))]
    optimizer = Lamb(parameters, **SETTINGS, weight_decay=0.1)
    parameters[0].grad = torch.ones(3)
    optimizer.step()
    assert torch.equal(parameters[1].detach(), torch.ones(3)) and int(optimizer.state[parameters[1]]["step"]) == 0
    assert not torch.equal(parameters[0].detach(), torch.ones(3))


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("bits", [8, 32])
@pytest.mark.parametrize("name", ALL_OPTIMIZERS)
def test_a_gradient_that_is_not_finite_changes_nothing(value, bits, name):
    kind = optimizer_type(name)
    before, optimizer = train(dict(bits=bits, weight_decay=0.1), [made_up((64, 80), 1)], kind=kind, is_orthogonal=True)
    (parameter,) = optimizer.param_groups[0]["params"]
    before, state = before.clone(), {name: tensor.clone() for name, tensor in optimizer.state[parameter].items()}
    parameter.grad[3, 5] = float(value)
    with pytest.raises(ValueError, match=r"The global gradient norm is (nan|inf); the step is refused"):
        optimizer.step()
    assert torch.equal(parameter.detach(), before)
    assert all(torch.equal(tensor, state[name]) for name, tensor in optimizer.state[parameter].items())


@pytest.mark.parametrize(
    ("bits", "shape", "num_bytes"), [(8, (512, 512), 2.04), (32, (512, 512), 8.01), (8, (64,), 8.2)]
)
def test_statistics_take_two_bytes_per_parameter_and_small_tensors_stay_in_float32(bits, shape, num_bytes):
    parameter = torch.nn.Parameter(torch.ones(shape))
    state = Lamb([parameter], **SETTINGS, bits=bits).state[parameter]
    taken = sum(tensor.numel() * tensor.element_size() for tensor in state.values()) / parameter.numel()
    assert num_bytes - 0.1 < taken <= num_bytes


def test_parameters_of_another_type_are_refused():
    with pytest.raises(ValueError, match=r"A parameter is torch.bfloat16; expected float32: model.float()"):
        Lamb([torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))], **SETTINGS)


@pytest.mark.parametrize("bits", [8, 32])
def test_chunks_give_the_same_bits_as_the_whole(bits):
    # One tensor of one and a half chunks, and its halves at the chunk boundary as tensors of their own.
    boundary, total = SPAN, SPAN * 3 // 2 + 77
    start, gradient = made_up(total, 0), made_up(total, 1)
    whole = torch.nn.Parameter(start.clone())
    whole.grad = gradient
    parts = [torch.nn.Parameter(part.clone()) for part in (start[:boundary], start[boundary:])]
    for part, part_of_gradient in zip(parts, (gradient[:boundary], gradient[boundary:]), strict=True):
        part.grad = part_of_gradient
    together, apart = Lamb([whole], **SETTINGS, bits=bits), Lamb(parts, **SETTINGS, bits=bits)
    together.step()
    apart.step()
    for name, tensor in together.state[whole].items():
        if name != "step":
            assert torch.equal(tensor, torch.cat([apart.state[part][name] for part in parts])), name


@pytest.mark.parametrize("bits", [8, 32])
def test_the_state_that_peers_exchange_round_trips_bit_by_bit(bits):
    gradients = [made_up((64, 80), seed) for seed in range(1, 5)]
    trained, optimizer = train(dict(bits=bits), gradients)
    metadata, tensors = dump_optimizer_state(optimizer)
    newcomer = torch.nn.Parameter(trained.clone())
    other = Lamb([newcomer], **SETTINGS, bits=bits)
    load_optimizer_state(other, metadata, [tensor.clone() for tensor in tensors])
    (parameter,) = optimizer.param_groups[0]["params"]
    for name, tensor in optimizer.state[parameter].items():
        assert other.state[newcomer][name].dtype == tensor.dtype
        assert torch.equal(other.state[newcomer][name], tensor), name
    for each in (parameter, newcomer):
        each.grad = made_up((64, 80), 9)
    optimizer.step()
    other.step()
    assert torch.equal(parameter.detach(), newcomer.detach())


def test_the_state_of_another_width_or_model_is_refused():
    _, eight = train(dict(bits=8), [made_up((64, 80), 1)])
    _, thirty_two = train(dict(bits=32), [made_up((64, 80), 1)])
    with pytest.raises(ValueError, match=r"State exp_avg of parameter 0 is torch.float32 .* expected torch.uint8"):
        eight.load_state_dict(thirty_two.state_dict())
    two = Lamb([torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3))], **SETTINGS)
    with pytest.raises(ValueError, match="The optimizer state has 1 parameters, this model has 2"):
        two.load_state_dict(eight.state_dict())


def test_the_learning_rate_warms_up_and_falls_linearly_to_zero():
    optimizer = Lamb([torch.nn.Parameter(torch.ones(3))], **(SETTINGS | dict(lr=1.0)))
    schedule = linear_schedule(optimizer, num_warmup=4, num_total=10)
    rates = []
    for _ in range(12):
        rates.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    assert rates == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6, 0.0, 0.0])
    assert linear_schedule(optimizer, num_warmup=0, num_total=10).lr_lambdas[0](0) == 1.0


def test_matrices_decay_and_vectors_do_not():
    model = torch.nn.ModuleDict(dict(linear=torch.nn.Linear(3, 2), norm=torch.nn.LayerNorm(3)))
    model.scale = torch.nn.Parameter(torch.ones(1, 1, 5))
    groups = weight_decay_groups(model.named_parameters(), 0.1)
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
    assert [tensor.shape for tensor in groups[0]["params"]] == [(2, 3)]
    assert len(groups[1]["params"]) == 4
    assert [group["weight_decay"] for group in weight_decay_groups([("scale", model.scale)], 0.1)] == [0.0]


def test_the_names_of_optimizers_are_the_same_where_runs_are_checked_and_where_optimizers_are_made():
    assert set(OPTIMIZERS) == set(sections.OPTIMIZERS)


def test_adamw_steps_as_torchs_does():
    generator = torch.Generator().manual_seed(0)
    own, other = (torch.nn.Parameter(torch.ones(6, 4)) for _ in range(2))
    settings = dict(lr=0.01, betas=(0.9, 0.95), eps=1e-6, weight_decay=0.1)
    optimizers = AdamW([own], bits=32, **settings), torch.optim.AdamW([other], **settings)
    for _ in range(5):
        own.grad = torch.rand(6, 4, generator=generator) - 0.5
        other.grad = own.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close(own, other, rtol=1e-6, atol=1e-7)
