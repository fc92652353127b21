"""Training with threads whose number follows what else the machine does, beside fixed numbers, for `training.py`."""

import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch

from pipelines.core.gradients.computation import ComputeGradient, GradientComputation
from pipelines.core.run.training_run import TrainingRun
from pipelines.features.local_computation.adaptive_threads import AdaptiveThreads
from pipelines.features.local_computation.thread_choice import halves
from pipelines.features.torch_devices import num_cores
from pipelines.tasks.choice import open_task

MICRO_BATCH = 4
MODEL = dict(
    text_vocab_size=256, codebook_size=1024, text_sequence_length=16, image_grid_size=8, hidden_size=128,
    num_hidden_layers=8, num_attention_heads=4, head_dim=32, recompute="none",
)  # fmt: skip
SECONDS_TO_NOTICE = 60.0
SECONDS_OF_A_TURN, NUM_TURNS = 10.0, 4


@dataclass(frozen=True, kw_only=True)
class ThreadRates:
    """Samples per second in one situation: medians of turns that follow each other."""

    situation: str
    adaptive: float
    fixed: dict[int, float]
    """By number of threads."""


def measure_thread_rates(quick: bool) -> Iterator[ThreadRates]:
    """Yield the rates on a quiet machine, beside a process that keeps a core busy, and on a quiet one again.

    A minute passes after each change before it is measured.
    """
    run = TrainingRun(run_id="bench", model_config=MODEL, dataset_repository="a/b", dataset_revision="c")
    task = open_task(run, "bench/run")
    computation = GradientComputation(task, task.new_model(), device="cpu", precision="fp32", compiled=False)
    adaptive = AdaptiveThreads(computation.backward, halves(num_cores()))
    batch = task.made_up_batch(MICRO_BATCH)

    def rate(compute: ComputeGradient, seconds: float) -> float:
        num_samples, started = 0, time.perf_counter()
        while (passed := time.perf_counter() - started) < seconds:
            compute(batch, 1.0)
            num_samples += MICRO_BATCH
        return num_samples / passed

    scale = 0.05 if quick else 1.0
    for situation, others in (("quiet", nullcontext), ("a core is busy", _busy_core), ("quiet again", nullcontext)):
        with others():
            rate(adaptive, SECONDS_TO_NOTICE * scale)
            rates = defaultdict(list)
            for _ in range(1 if quick else NUM_TURNS):
                rates[0].append(rate(adaptive, SECONDS_OF_A_TURN * scale))
                for number in halves(num_cores()):
                    rates[number].append(rate(_with_threads(number, computation.backward), SECONDS_OF_A_TURN * scale))
        medians = {number: statistics.median(found) for number, found in rates.items()}
        yield ThreadRates(situation=situation, adaptive=medians.pop(0), fixed=medians)


def _with_threads(number: int, compute: ComputeGradient) -> ComputeGradient:
    torch.set_num_threads(number)
    return compute


@contextmanager
def _busy_core() -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()
