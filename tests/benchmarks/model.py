"""Our model beside dalle-pytorch 1.6.6 with equal weights: training steps and generation, in one run.

Usage: python tests/benchmarks/model.py [--quick] [--case small|paper|paper-256] [--threads N]
"""

import argparse
import os
import sys

import torch
from measurement import Row, write_results
from model_generation import measure_generation, measure_precision
from model_pair import SIZES, Case, benchmark_case
from model_rates import MachineRates
from model_training import LossesDiffer, measure_training
from rich.console import Console

CASES = tuple(SIZES)


def measure_case(case: Case, console: Console) -> list[Row]:
    """Measure all of a case on the CPU, and the machine's own rates throughout."""
    rates = MachineRates(case.config, num_rows=case.batch * case.config.sequence_length)
    rates.sample()
    rows = [*measure_training(case, rates, console.log), *measure_generation(case, rates, console.log)]
    if case.name == "small":
        rows += measure_precision(case, console.log)
    return [*rows, *rates.rows(f"{case.name}, this machine")]


def main() -> None:
    """Measure all, print the table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the small case, fewer layers and repeats: a minute")
    parser.add_argument("--case", choices=CASES, help="only this size (default: all)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of torch (default: one for each core)")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    console = Console(stderr=True, log_path=False, highlight=False)
    names = (arguments.case,) if arguments.case else CASES[:1] if arguments.quick else CASES
    rows = []
    try:
        for case in (benchmark_case(name, arguments.quick) for name in names):
            rows += measure_case(case, console)
    except LossesDiffer as error:
        sys.exit(str(error))
    print(f"written to {write_results('model', rows, is_whole=arguments.case is None, is_quick=arguments.quick)}")


if __name__ == "__main__":
    main()
