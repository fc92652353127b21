"""What people wait for: a command's help, the first picture of `generate`, the first gradient after `join`.

Usage: python tests/benchmarks/waiting.py [--quick]

Seconds of wall time, each in a new process on one thread, and of the process's CPU, which other programs disturb less.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from joining import seconds_to_first_gradient
from measurement import Row, write_results

from modeling_dalle_collab import DalleCollabConfig, DalleCollabForConditionalGeneration, DalleCollabProcessor
from pipelines.data_preparation.tokenizer_training import train_tokenizer
from pipelines.demo.shipped_models import PRETRAINED_CLIP, PRETRAINED_CODEC
from pipelines.image_codes.vqgan_codec import VQGANCodec

COMMAND = [sys.executable, "-W", "ignore", "-m", "pipelines.command_line.main"]
DEMO = dict(
    text_vocab_size=256, codebook_size=1024, text_sequence_length=16, image_grid_size=8, hidden_size=128,
    num_hidden_layers=6, num_attention_heads=4, head_dim=32, attention_pattern=["row", "column"],
    feed_forward_multiplier=2,
)  # fmt: skip
"""The demo's model."""

BARE = "import torch, transformers, open_clip"
"""What nothing that draws pictures with a CLIP can do without."""


def seconds_of(command: list[str], repeats: int) -> tuple[float, float]:
    """Return the medians of a command's wall time and CPU time in seconds."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    figures = []
    for _ in range(repeats):
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        figures.append((time.perf_counter() - started, cpu))
    wall, cpu = zip(*figures, strict=True)
    return statistics.median(wall), statistics.median(cpu)


def write_run(folder: Path) -> Path:
    """Write a run of the demo's size, untrained, with the codec and the CLIP that come with the package."""
    processor = DalleCollabProcessor(
        train_tokenizer(iter(["a red circle on a blue ground", "a green star"] * 200), 256),
        image_codec_repository=str(PRETRAINED_CODEC),
        image_codec_fingerprint=VQGANCodec.from_pretrained(PRETRAINED_CODEC).fingerprint,
        clip_repository=str(PRETRAINED_CLIP),
        text_sequence_length=DEMO["text_sequence_length"],
    )
    processor.save_pretrained(folder)
    config = DalleCollabConfig(**DEMO | dict(text_vocab_size=len(processor.tokenizer)))
    DalleCollabForConditionalGeneration(config).save_pretrained(folder)
    return folder


def rows_of(case: str, wall_and_cpu: tuple[float, float], floor: tuple[float, float]) -> list[Row]:
    """Return a row for the wall time and one for the CPU time."""
    return [
        Row(case=case, metric=metric, unit="s", ours=ours, floor=least)
        for metric, ours, least in zip(("wall time", "CPU time"), wall_and_cpu, floor, strict=True)
    ]


def main() -> None:
    """Measure, print the table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one repeat, without joining")
    arguments = parser.parse_args()
    repeats = 1 if arguments.quick else 3
    bare = seconds_of([sys.executable, "-W", "ignore", "-c", BARE], repeats)
    typer = seconds_of([sys.executable, "-c", "import typer.rich_utils, rich.markdown"], repeats)
    rows = rows_of("dalle-collab --help (floor: typer and rich)", seconds_of([*COMMAND, "--help"], repeats), typer)
    with tempfile.TemporaryDirectory() as folder:
        run, output = write_run(Path(folder) / "run"), Path(folder) / "grid.png"
        for candidates in (1, 16):
            command = [*COMMAND, "generate", str(run), "a red circle", "--candidates", str(candidates), "--keep", "1"]
            seconds = seconds_of([*command, "--device", "cpu", "--output", str(output)], repeats)
            rows += rows_of(f"generate, {candidates} candidates (floor: imports of the libraries)", seconds, bare)
    if not arguments.quick:
        with tempfile.TemporaryDirectory() as folder:
            seconds = seconds_to_first_gradient(Path(folder) / "swarm")
        rows.append(Row(case="join, epochs of 4 s", metric="first gradient counted after", unit="s", ours=seconds))
    print(f"written to {write_results('waiting', rows, is_quick=arguments.quick)}")


if __name__ == "__main__":
    main()
