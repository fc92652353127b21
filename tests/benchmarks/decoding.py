"""Passes that a picture takes with guesses of the codes ahead, and what a pass takes at the paper's size.

Usage: python tests/benchmarks/decoding.py [--quick] [--threads N]

How many guesses turn out right depends on the model, which must be trained; how long a pass takes does not. So passes
are counted with a small model of 32 x 32 codes, trained here once, and timed with the paper's sizes and random weights.
Codes are drawn by default sampling. The floor of codes a second is that of one code at a time: all weights read in
float32 for each code.
"""

import argparse
import copy
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from measurement import Row, median_seconds, write_results
from model_floors import step_bytes, step_flops
from model_pair import benchmark_case, build_ours, example_batch
from model_rates import MachineRates
from rich.console import Console
from torch import Tensor
from trained_model import trained_model

from modeling_dalle_collab import DalleCollabForConditionalGeneration
from modeling_dalle_collab.generation_dalle_collab import _Predictor
from modeling_dalle_collab.linear_dalle_collab import use_products
from modeling_dalle_collab.sampling_dalle_collab import SamplingOptions

WINDOWS = (1, 2, 4, 8, 12, 16)
CANDIDATES = {1: WINDOWS, 8: (1, 2, 4)}
"""Windows whose passes are timed, by the number of candidates."""

SAMPLINGS = {"default sampling": {}, "top-p 0.9": {"top_p": 0.9}, "guidance 2": {"guidance_scale": 2.0}}
REPEATS = 5
CODES = "image codes: candidates, by passes a code and seconds of a pass"


def count_passes(
    model: DalleCollabForConditionalGeneration, text: Tensor, window: int, sampling: dict
) -> tuple[float, Tensor]:
    """Return the passes a code, and the codes, (caption, image)."""
    calls, rows = 0, []

    def count(done: int, total: int) -> None:
        nonlocal calls
        calls += 1

    for seed, caption in enumerate(text):
        options = dict(seed=seed, window=window, **sampling)
        rows.append(model.generate_image_codes(caption[None], on_progress=count, **options)[0, 0])
    codes = torch.stack(rows)
    return (calls - len(text)) / (codes.numel() - len(text)), codes  # the first code is that of the caption


def measure_passes(folder: Path, num_captions: int, log: Callable[[str], None]) -> tuple[list[Row], dict[int, float]]:
    """Count passes with the trained model, compare codes, and say what int8 weights do to its loss."""
    model, text, codes = trained_model(folder, log)
    rows, passes = [], {1: 1.0}
    for name, sampling in SAMPLINGS.items():
        _, expected = count_passes(model, text[:num_captions], 1, sampling)
        for window in WINDOWS[1:] if not sampling else WINDOWS[-1:]:
            log(f"passes with {name}, window {window}")
            found, drawn = count_passes(model, text[:num_captions], window, sampling)
            title = f"trained on scenes, {name}, window {window}"
            rows.append(Row(case=title, metric="passes a code", unit="1", ours=found))
            # Behind a code that rounding has decided otherwise, the rest of a picture is another.
            parted = (drawn != expected).any(dim=1).sum().item()
            metric = f"pictures that part from one code at a time, of {len(drawn)} x {drawn.shape[1]} codes"
            rows.append(Row(case=title, metric=metric, unit="1", ours=parted))
            if not sampling:
                passes[window] = found
    rounded = copy.deepcopy(model)
    rounded.use_int8_weights()
    with torch.no_grad():
        losses = [each(text, codes, return_logits=False).image_loss.item() for each in (rounded, model)]
    rows.append(
        Row(
            case="trained on scenes, int8 (peer: float32)",
            metric="held-out loss",
            unit="nat",
            ours=losses[0],
            peer=losses[1],
        )
    )
    return rows, passes


@torch.no_grad()
def pass_seconds(model: DalleCollabForConditionalGeneration, text: Tensor, num_candidates: int, window: int) -> float:
    """Return the median seconds of a pass over the first codes, products packed as in a generation."""
    options = SamplingOptions(window=window)
    products = model._packed(options)
    codes = torch.randint(0, model.config.codebook_size, (num_candidates, window))
    places = torch.arange(window).expand(num_candidates, -1)
    with use_products(products):
        predict = _Predictor(model, model.read_text(text), num_candidates, options)
        seconds = []
        for number in range(REPEATS + 1):
            started = time.perf_counter()
            predict.after(codes, places + number)
            seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[1:])


def measure_speed(name: str, quick: bool, passes: dict[int, float], log: Callable[[str], None]) -> list[Row]:
    """Time passes and captions, with float32 and int8 weights; one code at a time is window 1."""
    case = benchmark_case(name, quick)
    rates = MachineRates(case.config, num_rows=case.config.text_block_length)
    ours, (text, _) = build_ours(case.config).eval(), example_batch(case.config, 1)
    seconds, captions = {}, {}
    for weights in ("float32", "int8"):
        if weights == "int8":
            ours.use_int8_weights()
        for num_candidates, windows in CANDIDATES.items():
            for window in windows:
                log(f"{name}: {weights}, {num_candidates} candidates, window {window}")
                rates.sample()
                seconds[weights, num_candidates, window] = pass_seconds(ours, text, num_candidates, window)
        with torch.no_grad(), use_products(ours._packed(SamplingOptions())):
            captions[weights] = median_seconds(lambda: ours.read_text(text), 3)
    rates.sample()
    # Only now is the machine's best known, which the floors are made of.
    rows, places = [], range(case.num_codes)
    for (weights, num_candidates, window), taken in seconds.items():
        title = f"{name}, {weights}, {num_candidates} candidates, window {window}"
        work = num_candidates * step_flops(case.config, places)
        floor = rates.least_seconds(work, step_bytes(case.config, places, num_candidates))
        rows.append(Row(case=title, metric="a pass", unit="s", ours=taken, floor=floor))
        codes_per_second = num_candidates / (passes[window] * taken)
        rows.append(Row(case=title, metric=CODES, unit="1/s", ours=codes_per_second, floor=num_candidates / floor))
    work = 2 * case.config.text_block_length * case.config.num_hidden_layers * rates.layer_weights
    for weights, taken in captions.items():
        title = f"{name}, {weights}"
        rows.append(
            Row(case=title, metric="reading the caption", unit="s", ours=taken, floor=rates.least_seconds(work))
        )
    return [*rows, *rates.rows(f"{name}, this machine")]


def main() -> None:
    """Train once, measure all, print the table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer layers, captions and windows; still trains once")
    parser.add_argument(
        "--model", type=Path, default=Path("build/decoding"), help="folder that keeps the trained model"
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of torch (default: one for each core)")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    console = Console(stderr=True, log_path=False, highlight=False)
    rows, passes = measure_passes(arguments.model, 1 if arguments.quick else 4, console.log)
    for name in ("small",) if arguments.quick else ("small", "paper"):
        rows += measure_speed(name, arguments.quick, passes, console.log)
    print(f"written to {write_results('decoding', rows, is_quick=arguments.quick)}")


if __name__ == "__main__":
    main()
