"""Decisions about what a machine can do: precision, upload, patience. No swarm."""

import asyncio
import itertools
import threading
import time
from functools import partial

import pytest
import torch
from made_up_tasks import made_up_batch as batch_of_the_run
from made_up_tasks import made_up_task
from model_task import ModelTask
from swarm_of_processes import tiny_run

from modeling_dalle_collab.compiled_dalle_collab import compiled
from pipelines.core.averaging.group.time_limits import AttemptTimes, RoundTimes, adapted_timeout
from pipelines.core.gradients.computation import (
    GOOD_STEPS_BEFORE_GROWTH,
    GradientComputation,
    LossScale,
    UsableGradients,
    is_worth_compiling,
    resolve_precision,
)
from pipelines.core.peer.pausing import PauseSwitch
from pipelines.core.peer.volunteer import last_epoch
from pipelines.core.run.compute_options import ComputeOptions
from pipelines.core.swarm.network_options import NetworkOptions
from pipelines.core.swarm.upload_limit import UploadLimit, pass_bytes


def gradient_of(precision, *, recompute, batch):
    run = tiny_run(model_config=dict(tiny_run().model_config, recompute=recompute), run_id="same-parameters")
    task = made_up_task(run)
    model = task.new_model()
    computation = GradientComputation(task, model, device="cpu", precision=precision, compiled=False)
    loss = UsableGradients(computation.backward, model.parameters(), precision=precision).compute(batch)
    return loss.mean, torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("recompute", ["none", "reversible"])
@pytest.mark.parametrize(("precision", "tolerance"), [("bf16", 0.02), ("fp16", 0.005)])
def test_short_precisions_compute_nearly_the_gradient_of_fp32_in_fp32_tensors(precision, tolerance, recompute):
    batch = batch_of_the_run(tiny_run(), seed=1, batch_size=4)
    exact_loss, exact = gradient_of("fp32", recompute=recompute, batch=batch)
    loss, gradient = gradient_of(precision, recompute=recompute, batch=batch)
    assert gradient.dtype == torch.float32
    assert loss == pytest.approx(exact_loss, rel=1e-3)
    distance = (gradient - exact).norm() / exact.norm()
    assert 0 < distance < tolerance


def test_an_overflow_in_float16_is_dropped_and_halves_the_scale():
    model = torch.nn.Linear(2, 1)
    losses = iter([1.0, 2.0, 3.0])

    def backward(batch, factor):
        (model.weight.sum() * (factor if next(losses_to_overflow) else 0.0)).backward()
        if factor > 2.0**15:
            model.weight.grad.fill_(float("inf"))
        return next(losses)

    losses_to_overflow = itertools.repeat(True)
    gradients = UsableGradients(backward, model.parameters(), precision="fp16")
    assert gradients.compute(None) is None
    assert model.weight.grad is None
    assert gradients.scale.value == 2.0**15
    assert gradients.compute(None) == 2.0
    assert model.weight.grad.tolist() == [[1.0, 1.0]]


def test_the_loss_scale_grows_after_a_long_time_without_overflow():
    scale = LossScale(value=8.0)
    for _ in range(GOOD_STEPS_BEFORE_GROWTH):
        assert scale.value == 8.0
        scale = scale.after(True)
    assert scale == LossScale(value=16.0)
    assert scale.after(False) == LossScale(value=8.0)
    assert LossScale(value=1.0).after(False).value == 1.0


class RaggedTask(ModelTask):
    """One whose batches have many lengths."""

    def compiling_pays(self):
        return False


def test_automatic_choices_follow_the_device():
    assert resolve_precision("auto", "cpu") == "fp32"
    assert resolve_precision("bf16", "cpu") == "bf16"
    pictures, ragged = ModelTask(tiny_run()), RaggedTask(tiny_run())
    assert not is_worth_compiling("auto", "cpu", pictures)
    assert not is_worth_compiling("auto", "cuda", ragged)
    assert is_worth_compiling("auto", "cuda", pictures)
    assert is_worth_compiling("on", "cpu", ragged)
    assert not is_worth_compiling("off", "cuda", pictures)


@pytest.mark.slow
# torch 2.14 meets its own warning while it traces a function within another's forward pass
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("kind", ["text-to-image", pytest.param("fill-mask", marks=pytest.mark.long)])
def test_where_the_compiler_fails_gradients_are_computed_without_it(kind, caplog, monkeypatch):
    run = tiny_run(kind)
    task, batch = made_up_task(run), batch_of_the_run(run, seed=0, batch_size=2)
    model = task.new_model()
    computation = GradientComputation(task, model, device="cpu", precision="fp32", compiled=True)
    expected = computation.backward_as_it_is(batch, 1.0)
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    torch._dynamo.reset()
    compiled.cache_clear()

    def fail(graph, inputs):
        raise RuntimeError("there is no compiler")

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=fail))
    with torch._dynamo.config.patch(suppress_errors=False):
        for _ in range(2):
            assert computation.backward(batch, 1.0) == expected
    compiled.cache_clear()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, 3 * gradients[name])
    if kind == "text-to-image":
        failures = [line for line in caplog.messages if line.startswith("The compiler failed; _attention_branch goes")]
        assert len(failures) == 1 and "there is no compiler" in failures[0]


def test_an_upload_limit_spaces_bytes_out_and_saves_nothing_up():
    limit = UploadLimit(8)  # a million bytes a second
    assert [limit.book(500_000, now=now) for now in (10.0, 10.0, 10.0)] == [0.0, 0.5, 1.0]
    assert limit.book(500_000, now=100.0) == 0.0
    assert limit.book(500_000, now=100.1) == pytest.approx(0.4)


def test_two_streams_share_one_upload_limit():
    limit = UploadLimit(8)

    async def send(times):
        for _ in range(times):
            await pass_bytes(limit, 50_000)

    async def both():
        started = time.monotonic()
        await asyncio.gather(send(4), send(4))
        await pass_bytes(None, 10**12)
        return time.monotonic() - started

    assert asyncio.run(both()) >= 7 * 0.05


def test_a_message_without_a_load_does_not_wait_for_a_full_link():
    limit = UploadLimit(8)
    limit.book(10**12, now=time.monotonic())

    async def send():
        async with asyncio.timeout(60.0):
            await pass_bytes(limit, 0)

    asyncio.run(send())


def test_the_time_out_follows_the_rounds_within_its_bounds():
    bounds = dict(overhead=20.0, lowest=30.0, highest=120.0)
    assert adapted_timeout(120.0, [5.0, 5.0], **bounds) == 120.0  # too few rounds to tell
    assert adapted_timeout(120.0, [5.0, 8.0, 5.0], **bounds) == 20.0 + 3 * 8.0
    assert adapted_timeout(120.0, [0.1, 0.1, 0.1], **bounds) == 30.0
    assert adapted_timeout(44.0, [5.0, 60.0, 5.0], **bounds) == 120.0
    assert adapted_timeout(44.0, [9.0, 9.0, 9.0], **bounds) == 44.0  # 47 is not worth a change


def test_round_times_grow_after_a_slow_round_and_forget_it_in_time():
    times = RoundTimes(overhead=20.0, lowest=30.0, highest=120.0)
    for number in range(1, 4):
        times.note(number, 2.0)
        times.note(number, 2.0)  # looked at again between rounds
    assert times.timeout == 30.0
    times.note(4, 25.0)
    assert times.timeout == 95.0
    for number in range(5, 13):
        times.note(number, 2.0)
    assert times.timeout == 30.0


def test_an_attempt_is_given_up_when_it_takes_several_times_as_long_as_the_last_ones():
    times = AttemptTimes(lowest=4.0, highest=60.0)
    assert times.seconds() == 60.0  # nothing is known yet
    times.note_success(0.3)
    assert times.seconds() == 4.0
    times.note_success(5.0)
    times.note_success(5.0)
    assert times.seconds() == 15.0
    times.note_success(12.0)
    assert times.seconds() == 15.0  # one long round: the others have not waited so long
    times.note_failure()
    assert times.seconds() == 30.0  # whoever was only slow gets more time
    for _ in range(4):
        times.note_success(25.0)
    assert times.seconds() == 55.5
    times.note_success(25.0)
    assert times.seconds() == 60.0  # the run's own time-out is the bound
    times.note_failure()
    times.note_success(1.0, is_whole=False)
    times.note_success(1.0, is_whole=False)
    assert times.seconds() == 60.0, "who was left out may have needed more"
    for _ in range(2000):
        times.note_failure()
    assert times.seconds() == 60.0
    unbounded = AttemptTimes(lowest=None, highest=None)
    unbounded.note_success(1.0)
    assert unbounded.seconds() is None


def test_an_attempt_has_several_times_what_the_links_need_and_no_less_than_was_usual():
    times = AttemptTimes(lowest=4.0, highest=180.0)
    assert times.seconds(needed=10.0) == 30.0
    for _ in range(3):
        times.note_success(15.0)
    assert times.seconds(needed=10.0) == 45.0
    assert times.seconds(needed=50.0) == 150.0
    assert times.seconds(needed=100.0) == 180.0


def test_a_pause_ends_when_it_is_resumed_or_the_peer_stops():
    switch, stop = PauseSwitch(), threading.Event()
    assert not switch.is_on
    switch.wait_until_off(stop)
    switch.pause()
    assert switch.is_on
    threading.Timer(0.05, switch.resume).start()
    switch.wait_until_off(stop)
    assert not switch.is_on
    switch.pause()
    stop.set()
    switch.wait_until_off(stop)


def test_a_peer_leaves_after_its_own_limit_of_epochs_or_at_the_end_of_the_run():
    run = tiny_run(num_epochs=10)
    assert last_epoch(run, ComputeOptions(), 4) == 10
    assert last_epoch(run, ComputeOptions(max_epochs=3), 4) == 7
    assert last_epoch(run, ComputeOptions(max_epochs=30), 4) == 10


@pytest.mark.parametrize(
    ("options", "changes", "message"),
    [
        (ComputeOptions, dict(micro_batch_size=0), "micro_batch_size is 0; expected at least 1"),
        (ComputeOptions, dict(num_devices=0), "num_devices is 0"),
        (ComputeOptions, dict(precision="int4"), "precision is 'int4'; expected one of auto, fp32, bf16, fp16"),
        (ComputeOptions, dict(compile="yes"), "compile is 'yes'"),
        (NetworkOptions, dict(bandwidth_limit_mbit=0.0), "bandwidth_limit_mbit is 0.0; expected a number above 0"),
        (ComputeOptions, dict(max_hours=-1.0), "max_hours is -1.0"),
        (ComputeOptions, dict(max_gpu_memory=0.0), "max_gpu_memory is 0.0; expected a number above 0"),
        (ComputeOptions, dict(max_load=0), "max_load is 0; expected a percentage from 1 to 100"),
        (ComputeOptions, dict(max_load=float("nan")), "max_load is nan"),
        (NetworkOptions, dict(client_mode=True, use_relay=True), "Choose one of --client-mode and --relay"),
    ],
)
def test_options_that_cannot_work_are_refused(options, changes, message):
    with pytest.raises(ValueError, match=message):
        options(**changes)
