"""Training and generation on a GPU, beside what it could do at best; as many cells as fit into the time.

Usage: python tests/benchmarks/gpu.py [--quick] [--minutes 8] [--peak-tflops N]
Without a GPU, or with --quick, a tiny model runs through all cells: so the command is known to work where it counts.
"""

import argparse
import multiprocessing
import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
import torch.nn.functional as F
from measurement import Row, median_seconds, write_results
from model_generation import peer_seconds
from model_pair import SIZES, build_peer, example_batch
from model_training import TrainingStep
from rich.console import Console
from torch.nn.attention.flex_attention import flex_attention

from modeling_dalle_collab import DalleCollabConfig, DalleCollabForConditionalGeneration
from modeling_dalle_collab.attention_dalle_collab import visible_blocks, visible_mask
from modeling_dalle_collab.configuration_dalle_collab import ATTENTION_KINDS
from pipelines.features.memory_estimate.models.dalle_collab_compute import training_flops

# Dense products in 16 bits with float32 sums, in TFLOP/s, from the vendor's data sheets; the first name that fits.
PEAKS = {
    **{"H200": 989.0, "H100 PCIe": 756.0, "H100": 989.0, "A100": 312.0, "A10G": 70.0, "A10": 125.0, "L40S": 362.0},
    **{"L4": 121.0, "T4": 65.0, "RTX 4090": 165.2, "RTX 3090": 71.0},
}
PRECISIONS = {"bfloat16": torch.bfloat16, "float16": torch.float16}
LOSS_SCALE = 2.0**12
"""Of float16: a fixed one, since no step is taken."""

CANDIDATES = (1, 8, 128)
NUM_CODES = 256
"""Timed codes of each candidate; a whole picture of the paper's size has 1,024."""

PEER_CODES = 16
PEER_BATCH = 16
"""With 64 sequences of the paper's size it accesses memory that is not its own; its step is scaled up from these."""

ATTENTION_BATCH = 8
CELL_SECONDS = 180.0
"""After so long a part of a cell is given up."""

TINY = dict(
    text_vocab_size=11, codebook_size=7, text_sequence_length=3, image_grid_size=4, hidden_size=8, num_hidden_layers=6,
    num_attention_heads=2, head_dim=12,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Size:
    """A model and the batches at which it is measured."""

    name: str
    config: DalleCollabConfig
    batch: int
    """Sequences of a training step, halved until they fit."""

    has_peer: bool = True


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Where it runs."""

    device: str
    peak_tflops: float | None

    @property
    def compiles(self) -> bool:
        """Whether compiled code is worth its minutes."""
        return self.device != "cpu"

    def wait(self) -> None:
        """Wait until the GPU has done what it was told."""
        if self.device != "cpu":
            torch.cuda.synchronize()

    def peak_mebibytes(self, action: Callable[[], object]) -> float | None:
        """Return the most memory that an action has taken; None on a CPU."""
        if self.device == "cpu":
            return None
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        action()
        self.wait()
        return torch.cuda.max_memory_allocated() / 2**20


Cell = tuple[str, Callable[[], Iterator[Row]]]
Result = TypeVar("Result")


def apart(machine: Machine, action: Callable[[], Result]) -> Result:
    """Return what an action returns in a process of its own, if there is a GPU.

    One that accesses memory that is not its own leaves a GPU useless to its process; this one must never have used it.
    Raises RuntimeError for an action that fails, with what it said, or that dies or takes longer than a cell may.
    """
    if machine.device == "cpu":
        return action()
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def run() -> None:
        try:
            sender.send((action(), None))
        except BaseException as error:
            traceback.print_exc(limit=-6)
            sender.send((None, f"{type(error).__name__}: {str(error)[:300]}"))

    process = context.Process(target=run)
    process.start()
    sender.close()
    try:
        if not receiver.poll(CELL_SECONDS):
            raise RuntimeError(f"it has not ended within {CELL_SECONDS} s")
        found, failure = receiver.recv()
    except EOFError as error:
        raise RuntimeError("its process died") from error
    finally:
        process.kill()
        process.join()
    if failure:
        raise RuntimeError(failure)
    return found


def sizes_of_a_gpu() -> list[Size]:
    """Return the paper's model, and one of 1.1 billion parameters: the same without shared layers."""
    layers = DalleCollabConfig().num_hidden_layers
    pattern = DalleCollabConfig().attention_pattern
    unshared = (pattern * layers)[: layers - 1]
    return [
        Size(name="paper", config=DalleCollabConfig(conv_window="corner", **SIZES["paper"]), batch=32),
        Size(name="1.1 B unshared", config=DalleCollabConfig(attention_pattern=unshared), batch=32, has_peer=False),
    ]


def tiny_size() -> Size:
    """Return a model for a CPU."""
    return Size(name="tiny", config=DalleCollabConfig(conv_window="corner", **TINY), batch=2)


def cells(sizes: list[Size], machine: Machine) -> Iterator[Cell]:
    """Yield what is measured, what matters most first."""
    first, *others = sizes
    yield f"{first.name}: training", lambda: _training(first, machine, "reversible", "bfloat16")
    yield f"{first.name}: generation", lambda: _generation(first, machine)
    yield f"{first.name}: training, none recomputed", lambda: _training(first, machine, "none", "bfloat16")
    yield f"{first.name}: training, uncompiled", lambda: _training(first, machine, "reversible", "bfloat16", False)
    if machine.compiles:
        yield f"{first.name}: generation, compiled", lambda: _generation(first, machine, compiled=True)
    for size in others:
        yield f"{size.name}: training", lambda size=size: _training(size, machine, "reversible", "bfloat16")
        yield f"{size.name}: generation", lambda size=size: _generation(size, machine)
    for kind in ATTENTION_KINDS:
        yield f"attention, {kind}", lambda kind=kind: _attention(first, machine, kind)
    yield f"{first.name}: training, float16", lambda: _training(first, machine, "reversible", "float16")
    yield f"{first.name}: training, half recomputed", lambda: _training(first, machine, "partial", "bfloat16")


def measure(sizes: list[Size], machine: Machine, seconds: float, log: Callable[[str], None]) -> Iterator[Row]:
    """Measure cell after cell until the time is over; say which were left out, and which could not be measured."""
    end = time.monotonic() + seconds
    for name, cell in cells(sizes, machine):
        if time.monotonic() > end:
            log(f"left out, the time is over: {name}")
            continue
        log(name)
        try:
            yield from cell()
        except RuntimeError as error:  # the other cells are measured all the same
            log(f"failed: {name}: {error}")


def _training(size: Size, machine: Machine, recompute: str, precision: str, compiled: bool = True) -> Iterator[Row]:
    config = DalleCollabConfig.from_dict({**size.config.to_dict(), "recompute": recompute})
    compiled = compiled and machine.compiles
    batch, ours, peak = apart(machine, lambda: _steps(config, size.batch, machine, precision, compiled))
    peer = None
    if size.has_peer and (recompute, precision, compiled) == ("reversible", "bfloat16", machine.compiles):
        own = min(batch, PEER_BATCH)
        peer = _or_none(lambda: batch / own * apart(machine, lambda: _peer_step_seconds(config, own, machine)))
    kind = f"{precision}, {recompute}{', compiled layers' if compiled else ''}"
    case = f"{size.name}, batch {batch}, {kind}"
    floor = None
    if machine.peak_tflops is not None:
        # Work that is done twice is not counted (Chowdhery et al. 2022, arXiv:2204.02311, appendix B): MFU.
        floor = batch * training_flops(config, "none") / (machine.peak_tflops * 1e12)
        yield Row(case=case, metric=f"MFU of {machine.peak_tflops:.0f} TFLOP/s", unit="1", ours=floor / ours,
                  peer=peer and floor / peer, floor=1.0)  # fmt: skip
    yield Row(case=case, metric="training step", unit="s", ours=ours, peer=peer, floor=floor)
    if peak is not None:
        yield Row(case=case, metric="peak of a step", unit="MiB", ours=peak)


def _or_none(action: Callable[[], Result]) -> Result | None:
    """Return what it returns; None, said on the screen by `apart`, if the peer cannot do it."""
    try:
        return action()
    except RuntimeError:
        return None


def _steps(
    config: DalleCollabConfig, batch: int, machine: Machine, precision: str, compiled: bool
) -> tuple[int, float, float | None]:
    model = DalleCollabForConditionalGeneration(config).to(machine.device)
    if compiled:
        model.compile_layers()
    return _halved_until_it_fits(model, batch, machine, precision)


def _halved_until_it_fits(
    model: torch.nn.Module, batch: int, machine: Machine, precision: str
) -> tuple[int, float, float | None]:
    """Return the batch, the seconds of a step, and its peak memory in MiB."""
    while True:
        try:
            text, codes = (part.to(machine.device) for part in example_batch(model.config, batch))
            step = TrainingStep(model, lambda: model(text, codes, return_logits=False).loss)  # noqa: B023
            run = _step_in(step, machine, PRECISIONS[precision], LOSS_SCALE if precision == "float16" else 1.0)
            peak = machine.peak_mebibytes(run)
            return batch, median_seconds(run, 3), peak
        except torch.OutOfMemoryError:
            if batch == 1:
                raise
            batch //= 2


def _peer_step_seconds(config: DalleCollabConfig, batch: int, machine: Machine) -> float:
    peer = build_peer(config, reversible=True).to(machine.device)
    text, codes = (part.to(machine.device) for part in example_batch(config, batch))
    step = TrainingStep(peer, lambda: peer(text, codes, return_loss=True))
    return median_seconds(_step_in(step, machine, torch.bfloat16, 1.0), 3)


def _step_in(step: TrainingStep, machine: Machine, dtype: torch.dtype, scale: float) -> Callable[[], None]:
    def run() -> None:
        with torch.autocast(torch.device(machine.device).type, dtype=dtype):
            loss = step.loss()
        step.model.zero_grad(set_to_none=True)
        (loss * scale).backward()
        machine.wait()

    return run


def _generation(size: Size, machine: Machine, *, compiled: bool = False) -> Iterator[Row]:
    number = min(NUM_CODES, size.config.num_image_codes)
    counts = CANDIDATES if machine.device != "cpu" else CANDIDATES[:2]
    ways: list[tuple[int, int | None]] = [(count, 1) for count in counts]
    ways += [] if compiled else [(1, None)]
    found = apart(machine, lambda: _drawing(size, machine, number, ways, compiled))
    for (num_candidates, window), (seconds, peak) in found.items():
        case = f"{size.name}, {num_candidates} candidate{'s' * (num_candidates > 1)}, bfloat16"
        case += ", guesses" if window is None else ", compiled layers" if compiled else ""
        peer = None
        if window == 1 and size.has_peer and not compiled:
            peer = _or_none(lambda count=num_candidates: apart(machine, lambda: _peer_rate(size, count, machine)))
        metric = f"image codes, first {number}"
        yield Row(case=case, metric=metric, unit="1/s", ours=num_candidates * number / seconds, peer=peer)
        if peak is not None:
            yield Row(case=case, metric="peak of drawing", unit="MiB", ours=peak)


def _drawing(
    size: Size, machine: Machine, number: int, ways: list[tuple[int, int | None]], compiled: bool
) -> dict[tuple[int, int | None], tuple[float, float | None]]:
    """Return seconds and peak memory for numbers of candidates and windows; 1 guesses nothing."""
    torch.manual_seed(0)
    model = DalleCollabForConditionalGeneration(size.config).to(machine.device, torch.bfloat16).eval()
    text, found = example_batch(size.config, 1)[0].to(machine.device), {}
    for num_candidates, window in ways:

        def draw(length: int = number, num_candidates: int = num_candidates, window: int | None = window) -> None:
            model.generate_image_codes(
                text, num_candidates=num_candidates, candidate_batch_size=num_candidates, num_image_codes=length,
                window=window, compile_step=compiled,
            )  # fmt: skip
            machine.wait()

        draw(min(2, number))  # kernels are chosen, and code is compiled
        started = time.perf_counter()
        peak = machine.peak_mebibytes(draw)
        if peak is None:
            draw()
        found[num_candidates, window] = time.perf_counter() - started, peak
    return found


def _peer_rate(size: Size, num_candidates: int, machine: Machine) -> float:
    text = example_batch(size.config, 1)[0].to(machine.device)
    peer = build_peer(size.config, optimize_for_inference=True).eval().to(machine.device)
    with torch.autocast(torch.device(machine.device).type, dtype=torch.bfloat16):
        number = min(PEER_CODES, size.config.num_image_codes - 1)
        _, others = peer_seconds(peer, text, num_candidates, number, wait=machine.wait)
    return num_candidates / statistics.median(others)


def _attention(size: Size, machine: Machine, kind: str) -> Iterator[Row]:
    """Compare FlexAttention, which skips blocks that nobody sees, with a masked product over everything."""
    has_backward = machine.device != "cpu"  # torch has no backward pass of FlexAttention on a CPU
    passes = "forward and backward" if has_backward else "forward"
    ours, peer = apart(machine, lambda: _attention_seconds(size, machine, kind, has_backward))
    yield Row(
        case=f"{size.name}, attention by {kind}, batch {ATTENTION_BATCH}, {passes}",
        metric="FlexAttention (peer: masked product)", unit="s", ours=ours, peer=peer,
    )  # fmt: skip


def _attention_seconds(size: Size, machine: Machine, kind: str, has_backward: bool) -> tuple[float, float]:
    config = size.config
    places = config.text_block_length + config.num_image_codes
    mask, blocks = visible_mask(config, kind, machine.device), visible_blocks(config, kind, machine.device)
    shape = (ATTENTION_BATCH, config.num_attention_heads, places, config.head_dim)
    q, k, v = (
        torch.randn(shape, device=machine.device, dtype=torch.bfloat16, requires_grad=has_backward) for _ in range(3)
    )
    flex = torch.compile(flex_attention) if machine.compiles else flex_attention

    def seconds(product: Callable[[], torch.Tensor]) -> float:
        def run() -> None:
            found = product()
            if has_backward:
                found.sum().backward()
            machine.wait()

        return median_seconds(run, 5)

    return (
        seconds(lambda: flex(q, k, v, block_mask=blocks)),
        seconds(lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=mask)),
    )


def peak_tflops(name: str) -> float | None:
    """Return what a GPU could do at best, where we know it."""
    return next((peak for part, peak in PEAKS.items() if part in name), None)


def main() -> None:
    """Measure, print the table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tiny model on the CPU: a minute")
    parser.add_argument("--minutes", type=float, default=8.0, help="begin no cell after so long (default: 8)")
    parser.add_argument("--peak-tflops", type=float, help="of the GPU in 16 bits (default: known for some GPUs)")
    arguments = parser.parse_args()
    console = Console(stderr=True, log_path=False, highlight=False)
    gpu = Machine(device="cuda", peak_tflops=arguments.peak_tflops)
    is_quick = arguments.quick or not apart(gpu, torch.cuda.is_available)
    if is_quick:
        console.log("a tiny model on the CPU: its figures say nothing of a GPU")
        sizes, machine = [tiny_size()], Machine(device="cpu", peak_tflops=None)
    else:
        name = apart(gpu, torch.cuda.get_device_name)
        sizes, machine = sizes_of_a_gpu(), replace(gpu, peak_tflops=arguments.peak_tflops or peak_tflops(name))
    rows: list[Row] = []
    try:
        for row in measure(sizes, machine, 60 * arguments.minutes, console.log):
            rows.append(row)
    finally:  # also where it is interrupted
        print(f"written to {write_results('gpu', rows, is_quick=is_quick)}")


if __name__ == "__main__":
    main()
