"""Training and generation on a GPU, beside what it could do at best; as many cells as fit into the time.

Usage: python tests/benchmarks/gpu.py [--quick] [--minutes 8] [--peak-tflops N]
Without a GPU, or with --quick, a tiny model runs through all cells: so the command is known to work where it counts.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from measurement import Row, median_seconds, write_results
from model_generation import peer_seconds
from model_pair import SIZES, build_peer, example_batch
from model_training import PEER_REVERSIBLE, TrainingStep
from rich.console import Console
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from modeling_dalle_collab import DalleCollabConfig, DalleCollabForConditionalGeneration
from modeling_dalle_collab.attention_dalle_collab import visible_mask
from modeling_dalle_collab.configuration_dalle_collab import ATTENTION_KINDS, RECOMPUTE_CHOICES
from pipelines.memory_estimate.models.dalle_collab_compute import training_flops

# Dense products in 16 bits with float32 sums, in TFLOP/s, from the vendor's data sheets; the first name that fits.
PEAKS = {
    **{"H200": 989.0, "H100 PCIe": 756.0, "H100": 989.0, "A100": 312.0, "A10G": 70.0, "A10": 125.0, "L40S": 362.0},
    **{"L4": 121.0, "T4": 65.0, "RTX 4090": 165.2, "RTX 3090": 71.0},
}
PRECISIONS = {"bfloat16": torch.bfloat16, "float16": torch.float16}
LOSS_SCALE = 2.0**12
"""Of float16: a fixed one, since no step is taken."""

CANDIDATES = (1, 8, 128)
NUM_CODES = 64
"""Timed codes of each candidate; a whole picture of the paper's size has 1,024."""

PEER_CODES = 16
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
    compiles: bool
    """Whether compiled cells are worth their minutes."""

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


def sizes_of_a_gpu() -> list[Size]:
    """Return the paper's model, and one of 1.1 billion parameters: the same without shared layers."""
    layers = DalleCollabConfig().num_hidden_layers
    pattern = DalleCollabConfig().attention_pattern
    unshared = (pattern * layers)[: layers - 1]
    return [
        Size(name="paper", config=DalleCollabConfig(conv_window="corner", **SIZES["paper"]), batch=64),
        Size(name="1.1 B unshared", config=DalleCollabConfig(attention_pattern=unshared), batch=32, has_peer=False),
    ]


def tiny_size() -> Size:
    """Return a model for a CPU."""
    return Size(name="tiny", config=DalleCollabConfig(conv_window="corner", **TINY), batch=2)


def cells(sizes: list[Size], machine: Machine) -> Iterator[Cell]:
    """Yield what is measured, what matters most first."""
    for size in sizes:
        yield f"{size.name}: training, bfloat16", lambda size=size: _training(size, machine, "reversible", "bfloat16")
        yield f"{size.name}: generation", lambda size=size: _generation(size, machine, compiled=False)
    for size in sizes:
        for recompute in (one for one in RECOMPUTE_CHOICES if one != "reversible"):
            yield (
                f"{size.name}: training, bfloat16, {recompute}",
                lambda size=size, recompute=recompute: _training(size, machine, recompute, "bfloat16"),
            )
        yield f"{size.name}: training, float16", lambda size=size: _training(size, machine, "reversible", "float16")
    for kind in ATTENTION_KINDS:
        yield f"attention, {kind}", lambda kind=kind: _attention(sizes[0], machine, kind)
    if machine.compiles:
        yield f"{sizes[0].name}: training, compiled", lambda: _training(sizes[0], machine, "none", "bfloat16", True)
        yield f"{sizes[0].name}: generation, compiled", lambda: _generation(sizes[0], machine, compiled=True)


def measure(sizes: list[Size], machine: Machine, seconds: float, log: Callable[[str], None]) -> list[Row]:
    """Measure cell after cell until the time is over; say which were left out."""
    rows, end = [], time.monotonic() + seconds
    for name, cell in cells(sizes, machine):
        if time.monotonic() > end:
            log(f"left out, the time is over: {name}")
            continue
        log(name)
        try:
            rows += cell()
        except torch.OutOfMemoryError:
            log(f"not enough memory: {name}")
    return rows


def _training(size: Size, machine: Machine, recompute: str, precision: str, compiled: bool = False) -> Iterator[Row]:
    config = DalleCollabConfig.from_dict({**size.config.to_dict(), "recompute": recompute})
    model = DalleCollabForConditionalGeneration(config).to(machine.device)
    if compiled:
        model.compile()
    batch, ours, peak = _halved_until_it_fits(model, size.batch, machine, precision)
    peer = None
    if size.has_peer and recompute in PEER_REVERSIBLE and precision == "bfloat16" and not compiled:
        del model
        peer = _peer_step_seconds(config, PEER_REVERSIBLE[recompute], batch, machine)
    kind = f"{precision}, {recompute}{', compiled' if compiled else ''}"
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


def _peer_step_seconds(config: DalleCollabConfig, reversible: bool, batch: int, machine: Machine) -> float | None:
    peer = build_peer(config, reversible=reversible).to(machine.device)
    text, codes = (part.to(machine.device) for part in example_batch(config, batch))
    step = TrainingStep(peer, lambda: peer(text, codes, return_loss=True))
    try:
        return median_seconds(_step_in(step, machine, torch.bfloat16, 1.0), 3)
    except torch.OutOfMemoryError:
        return None


def _step_in(step: TrainingStep, machine: Machine, dtype: torch.dtype, scale: float) -> Callable[[], None]:
    def run() -> None:
        with torch.autocast(torch.device(machine.device).type, dtype=dtype):
            loss = step.loss()
        step.model.zero_grad(set_to_none=True)
        (loss * scale).backward()
        machine.wait()

    return run


def _generation(size: Size, machine: Machine, *, compiled: bool) -> Iterator[Row]:
    torch.manual_seed(0)
    model = DalleCollabForConditionalGeneration(size.config).to(machine.device, torch.bfloat16).eval()
    text = example_batch(size.config, 1)[0].to(machine.device)
    number = min(NUM_CODES, size.config.num_image_codes)
    for window in (1,) if compiled else (1, None):
        for num_candidates in CANDIDATES if machine.device != "cpu" else CANDIDATES[:2]:
            options = dict(
                num_candidates=num_candidates, candidate_batch_size=num_candidates, num_image_codes=number,
                window=window, compile_step=compiled,
            )  # fmt: skip

            def draw(options: dict[str, object] = options) -> None:
                model.generate_image_codes(text, **options)
                machine.wait()

            seconds = median_seconds(draw, 1)
            kind = ", CUDA graphs" if compiled else ", guesses" if window is None else ""
            case = f"{size.name}, {num_candidates} candidates, bfloat16{kind}"
            peer = _peer_rate(size, text, num_candidates, machine) if window == 1 and not compiled else None
            metric = f"image codes, first {number}"
            yield Row(case=case, metric=metric, unit="1/s", ours=num_candidates * number / seconds, peer=peer)
            if (peak := machine.peak_mebibytes(draw)) is not None:
                yield Row(case=case, metric="peak of drawing", unit="MiB", ours=peak)


def _peer_rate(size: Size, text: torch.Tensor, num_candidates: int, machine: Machine) -> float | None:
    if not size.has_peer:
        return None
    peer = build_peer(size.config, optimize_for_inference=True).eval().to(machine.device)
    try:
        with torch.autocast(torch.device(machine.device).type, dtype=torch.bfloat16):
            number = min(PEER_CODES, size.config.num_image_codes - 1)
            _, others = peer_seconds(peer, text, num_candidates, number, wait=machine.wait)
    except torch.OutOfMemoryError:
        return None
    return num_candidates / statistics.median(others)


def _attention(size: Size, machine: Machine, kind: str) -> Iterator[Row]:
    """Compare FlexAttention, which skips blocks that nobody sees, with a masked product over everything."""
    config, batch = size.config, 8
    has_backward = machine.device != "cpu"  # torch has no backward pass of FlexAttention on a CPU
    passes = "forward and backward" if has_backward else "forward"
    places = config.text_block_length + config.num_image_codes
    mask = visible_mask(config, kind, machine.device)
    shape = (batch, config.num_attention_heads, places, config.head_dim)
    q, k, v = (
        torch.randn(shape, device=machine.device, dtype=torch.bfloat16, requires_grad=has_backward) for _ in range(3)
    )
    blocks = create_block_mask(lambda _b, _h, i, j: mask[i, j], None, None, places, places, device=machine.device)
    flex = torch.compile(flex_attention) if machine.compiles else flex_attention

    def seconds(product: Callable[[], torch.Tensor], has_backward: bool) -> float:
        def run() -> None:
            found = product()
            if has_backward:
                found.sum().backward()
            machine.wait()

        return median_seconds(run, 5)

    yield Row(
        case=f"{size.name}, attention by {kind}, batch {batch}, {passes}",
        metric="FlexAttention (peer: masked product)", unit="s",
        ours=seconds(lambda: flex(q, k, v, block_mask=blocks), has_backward),
        peer=seconds(lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=mask), has_backward),
    )  # fmt: skip


def peak_tflops() -> float | None:
    """Return what the first GPU could do at best, where we know it."""
    name = torch.cuda.get_device_name(0)
    return next((peak for part, peak in PEAKS.items() if part in name), None)


def main() -> None:
    """Measure, print the table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tiny model on the CPU: a minute")
    parser.add_argument("--minutes", type=float, default=8.0, help="begin no cell after so long (default: 8)")
    parser.add_argument("--peak-tflops", type=float, help="of the GPU in 16 bits (default: known for some GPUs)")
    arguments = parser.parse_args()
    console = Console(stderr=True, log_path=False, highlight=False)
    is_quick = arguments.quick or not torch.cuda.is_available()
    if is_quick:
        console.log("a tiny model on the CPU: its figures say nothing of a GPU")
        sizes, machine = [tiny_size()], Machine(device="cpu", peak_tflops=None, compiles=False)
    else:
        sizes = sizes_of_a_gpu()
        machine = Machine(device="cuda", peak_tflops=arguments.peak_tflops or peak_tflops(), compiles=True)
    rows = measure(sizes, machine, 60 * arguments.minutes, console.log)
    print(f"written to {write_results('gpu', rows, is_quick=is_quick)}")


if __name__ == "__main__":
    main()
