"""Training steps and generation on a GPU, in bfloat16; only where there is one."""

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from measurement import Row, median_seconds
from model_generation import CANDIDATES_OF_A_CAPTION, peer_seconds
from model_pair import Case, build_ours, build_peer, example_batch
from model_training import PEER_REVERSIBLE, TrainingStep, prepare_step

from modeling_dalle_collab import DalleCollabConfig
from modeling_dalle_collab.configuration_dalle_collab import RECOMPUTE_CHOICES
from pipelines.memory_estimate.models.dalle_collab_compute import training_flops

# Dense products in bfloat16 with float32 sums, in TFLOP/s, from the vendor's data sheets; the first name that fits.
PEAKS = {
    **{"H200": 989.0, "H100 PCIe": 756.0, "H100": 989.0, "A100": 312.0, "A10G": 70.0, "A10": 125.0, "L40S": 362.0},
    **{"L4": 121.0, "RTX 4090": 165.2, "RTX 3090": 71.0},
}
BATCHES = {"small": 32, "paper": 8, "paper-256": 32}
PEER_CODES = 16
# The layers of "reversible" are never compiled (see reversible_dalle_collab.py), so there is little to gain.
COMPILED = ("partial", "none")


def peak_tflops() -> float | None:
    """Return what the first GPU could do at best, where we know it."""
    name = torch.cuda.get_device_name(0)
    return next((peak for part, peak in PEAKS.items() if part in name), None)


def measure_gpu(case: Case, peak: float | None, log: Callable[[str], None], device: str = "cuda") -> list[Row]:
    """Compare training steps and the time for a caption's candidates; `peak` is in TFLOP/s."""
    rows = []
    for recompute in RECOMPUTE_CHOICES:
        log(f"{case.name}: training steps on the GPU, {recompute}")
        config = DalleCollabConfig.from_dict({**case.config.to_dict(), "recompute": recompute})
        rows += _training_rows(_Steps(config, f"{case.name} on the GPU", BATCHES[case.name], device), peak)
    log(f"{case.name}: {CANDIDATES_OF_A_CAPTION} candidates on the GPU")
    return [*rows, _candidates_row(case, device)]


@dataclass(frozen=True)
class _Steps:
    """Training steps of one configuration."""

    config: DalleCollabConfig
    title: str
    batch: int
    device: str

    def seconds(self, is_ours: bool, compiled: bool = False) -> float | None:
        """Return the median of a step; None where there is no such step or not enough memory for it."""
        if not is_ours and self.config.recompute not in PEER_REVERSIBLE:
            return None
        try:
            step = prepare_step(self.config, is_ours, self.batch, self.device)
            if compiled:
                step.model.compile()
            return median_seconds(lambda: self._run(step), 5)
        except torch.cuda.OutOfMemoryError:
            return None

    def _run(self, step: TrainingStep) -> None:
        with torch.autocast(torch.device(self.device).type, dtype=torch.bfloat16):
            loss = step.loss()
        step.model.zero_grad(set_to_none=True)
        loss.backward()
        loss.item()  # waits for the GPU
        _wait(self.device)


def _training_rows(steps: _Steps, peak: float | None) -> Iterator[Row]:
    peer = steps.seconds(is_ours=False)
    for kind, compiled in (("", False), (", compiled", True)):
        if compiled and steps.config.recompute not in COMPILED:
            continue
        if (ours := steps.seconds(is_ours=True, compiled=compiled)) is None:
            continue
        case = f"{steps.title}, batch {steps.batch}, {steps.config.recompute}{kind}"
        yield Row(case=case, metric="training step, bfloat16", unit="s", ours=ours, peer=peer)
        tokens = steps.batch * steps.config.sequence_length
        yield Row(case=case, metric="tokens", unit="1/s", ours=tokens / ours, peer=peer and tokens / peer)
        if peak is not None:
            # Work that is done twice is not counted (Chowdhery et al. 2022, arXiv:2204.02311, appendix B).
            least = steps.batch * training_flops(steps.config, "none") / (peak * 1e12)
            metric = f"use of {peak:.0f} TFLOP/s"
            yield Row(case=case, metric=metric, unit="1", ours=least / ours, peer=peer and least / peer, floor=1.0)


def _candidates_row(case: Case, device: str) -> Row:
    text = example_batch(case.config, 1)[0].to(device)
    model = build_ours(case.config).to(device, torch.bfloat16)
    options = dict(num_candidates=CANDIDATES_OF_A_CAPTION, candidate_batch_size=CANDIDATES_OF_A_CAPTION)

    def generate() -> None:
        model.generate_image_codes(text, **options)
        _wait(device)

    return Row(
        case=f"{case.name} on the GPU, bfloat16 (peer: from {PEER_CODES} codes)",
        metric=f"{CANDIDATES_OF_A_CAPTION} candidates of a caption",
        unit="s",
        ours=median_seconds(generate, 1),
        peer=_peer_candidates_seconds(case, text, device),
    )


def _peer_candidates_seconds(case: Case, text: torch.Tensor, device: str) -> float | None:
    """Return how long the peer would take if all its steps were as fast as the first; None without the memory."""
    peer = build_peer(case.config, optimize_for_inference=True).eval().to(device)
    try:
        with torch.autocast(torch.device(device).type, dtype=torch.bfloat16):
            first, others = peer_seconds(peer, text, CANDIDATES_OF_A_CAPTION, PEER_CODES, wait=lambda: _wait(device))
    except torch.cuda.OutOfMemoryError:
        return None
    return first + statistics.median(others) * (case.config.num_image_codes - 1)


def _wait(device: str) -> None:
    """Wait until the GPU has done what it was told."""
    if device != "cpu":
        torch.cuda.synchronize()
