"""Time and memory of training steps; every measurement has a process of its own, because its peak is the process's."""

import ctypes
import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch
from measurement import Row
from model_floors import reversible_bytes
from model_pair import Case, build_ours, build_peer, example_batch
from model_rates import MachineRates

from modeling_dalle_collab import DalleCollabConfig
from modeling_dalle_collab.configuration_dalle_collab import RECOMPUTE_CHOICES
from pipelines.features.memory_estimate.models.dalle_collab_compute import training_flops

# The peer's counterpart. Without reversible layers it adds up one stream instead of two: about the same work, but
# another function, so its loss is another.
PEER_REVERSIBLE = {"reversible": True, "none": False}
MOST_DIFFERENT = 1e-4
TINY_SIZES = {"text_vocab_size": 11, "codebook_size": 7, "text_sequence_length": 3, "image_grid_size": 4}
TINY_SIZES |= {"hidden_size": 8, "num_hidden_layers": 6, "num_attention_heads": 2, "head_dim": 12}


class LossesDiffer(ValueError):
    """The two models do not compute the same, so their times cannot be compared."""


@dataclass(frozen=True, kw_only=True)
class StepPlan:
    """What one process measures."""

    config: DalleCollabConfig
    """Its `recompute` is how ours, and the peer correspondingly, gets its activations back."""
    is_ours: bool
    """Ours, or the peer."""
    batch: int
    """Sequences in a step."""
    num_steps: int
    """Timed steps; where there are more than one, another goes before them."""
    num_threads: int
    """Of torch."""


@dataclass(frozen=True, kw_only=True)
class StepFigures:
    """What one process measured."""

    loss: float
    """Of the first step; there is no optimizer, so of any."""
    seconds: list[float]
    """Of each timed step: forward and backward."""
    peak_bytes: int
    """Most resident memory during the first step above that of the loaded model."""
    num_parameters: int
    """Parameters of the model, shared ones once."""


def measure_training(case: Case, rates: MachineRates, log: Callable[[str], None]) -> list[Row]:
    """Compare steps for every way to get activations back. Raises LossesDiffer."""
    rows, losses = [], []
    for recompute in RECOMPUTE_CHOICES:
        figures: dict[bool, list[StepFigures]] = {True: [], False: []}
        for is_ours in (True, False) * case.num_rounds:
            if not is_ours and recompute not in PEER_REVERSIBLE:
                continue
            log(f"{case.name}: training steps, {recompute}, {'ours' if is_ours else 'peer'}")
            measured = _in_own_process(_plan(case, recompute, is_ours))
            if measured is None:
                log(f"{case.name}: not enough memory for that; left out")
                continue
            figures[is_ours].append(measured)
            if is_ours or PEER_REVERSIBLE[recompute]:
                losses.append(measured.loss)
                check_losses(losses)
        rates.sample()
        rows += _rows(case, recompute, figures[True], figures[False], rates)
    return rows


def check_losses(losses: list[float]) -> None:
    """Raise LossesDiffer unless all agree."""
    if max(losses) - min(losses) > MOST_DIFFERENT:
        raise LossesDiffer(
            f"Losses of the same weights and inputs are {min(losses):.6f} and {max(losses):.6f}, expected to agree to "
            f"{MOST_DIFFERENT}. Run the tests of the model: pytest tests/modeling_dalle_collab"
        )


def _plan(case: Case, recompute: str, is_ours: bool) -> StepPlan:
    config = DalleCollabConfig.from_dict({**case.config.to_dict(), "recompute": recompute})
    return StepPlan(
        config=config,
        is_ours=is_ours,
        batch=case.batch,
        num_steps=case.num_steps,
        num_threads=torch.get_num_threads(),
    )


def _rows(
    case: Case, recompute: str, ours: list[StepFigures], peer: list[StepFigures], rates: MachineRates
) -> list[Row]:
    if not ours:
        return []
    title = f"{case.name}, batch {case.batch}, {recompute}"
    floor = rates.least_seconds(case.batch * training_flops(case.config, recompute))
    streams = reversible_bytes(case.config, case.batch, ours[0].num_parameters)
    memory_floor = streams / 2**20 if recompute == "reversible" else None
    seconds, mebibytes = (
        [statistics.median(values(figures)) if figures else None for figures in (ours, peer)]
        for values in (_all_seconds, _all_mebibytes)
    )
    return [
        Row(case=title, metric="training step", unit="s", ours=seconds[0], peer=seconds[1], floor=floor),
        Row(case=title, metric="peak of a step", unit="MiB", ours=mebibytes[0], peer=mebibytes[1], floor=memory_floor),
    ]


def _all_seconds(figures: list[StepFigures]) -> list[float]:
    return [seconds for measured in figures for seconds in measured.seconds]


def _all_mebibytes(figures: list[StepFigures]) -> list[float]:
    return [measured.peak_bytes / 2**20 for measured in figures]


def _in_own_process(plan: StepPlan) -> StepFigures | None:
    """Return what a new process measures; None where the memory of this machine is not enough."""
    context = multiprocessing.get_context("forkserver")  # its imports are paid once
    context.set_forkserver_preload(
        ["modeling_dalle_collab", "pipelines.tasks.text_to_image.conversion.dalle_pytorch_checkpoint"]
    )
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        try:
            return pool.submit(measure_steps, plan).result()
        except BrokenProcessPool:
            return None


def measure_steps(plan: StepPlan) -> StepFigures | None:
    """Run the steps in this process; None where torch cannot have the memory."""
    torch.set_num_threads(plan.num_threads)
    _limit_memory()
    try:
        # What the libraries load for themselves at their first step is not the model's.
        tiny = DalleCollabConfig(conv_window="corner", recompute=plan.config.recompute, **TINY_SIZES)
        prepare_step(tiny, plan.is_ours, batch=1)()
        return _measure(plan)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "allocate memory" not in str(error):
            raise
        return None


def _measure(plan: StepPlan) -> StepFigures:
    step = prepare_step(plan.config, plan.is_ours, plan.batch)
    before = _forget_peak()
    started = time.perf_counter()
    loss = step()
    seconds, peak = [time.perf_counter() - started], _peak_bytes()
    for _ in range(plan.num_steps if plan.num_steps > 1 else 0):
        started = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - started)
    return StepFigures(
        loss=loss,
        seconds=seconds[1:] or seconds,
        peak_bytes=peak - before,
        num_parameters=sum(parameter.numel() for parameter in step.model.parameters()),
    )


class TrainingStep:
    """A forward and a backward pass over always the same batch, from no gradients; there is no optimizer."""

    def __init__(self, model: torch.nn.Module, loss: Callable[[], torch.Tensor]) -> None:
        self.model, self.loss = model.train(), loss

    def __call__(self) -> float:
        """Return the loss."""
        self.model.zero_grad(set_to_none=True)
        loss = self.loss()
        loss.backward()
        return loss.item()


def prepare_step(config: DalleCollabConfig, is_ours: bool, batch: int, device: str = "cpu") -> TrainingStep:
    """Load a model and a batch."""
    text, codes = (part.to(device) for part in example_batch(config, batch))
    if is_ours:
        model = build_ours(config).to(device)
        return TrainingStep(model, lambda: model(text, codes, return_logits=False).loss)
    peer = build_peer(config, reversible=PEER_REVERSIBLE[config.recompute]).to(device)
    return TrainingStep(peer, lambda: peer(text, codes, return_loss=True))


def _limit_memory() -> None:
    """Let this process fail alone before the machine runs out of memory."""
    limit = int(psutil.Process().memory_info().data + 0.9 * psutil.virtual_memory().available)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.RLIM_INFINITY))


def _forget_peak() -> int:
    """Return resident bytes, from which on `_peak_bytes` counts; memory that is only kept for later is given back."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return psutil.Process().memory_info().rss


def _peak_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
