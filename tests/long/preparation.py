"""A dataset prepared from dirty pictures by processes that are killed: is it the same to the byte, how much memory?

20,000 pictures, with dirt of every kind and squares of 8,000 and 13,000 pixels among them, are prepared with 1 and 2
workers and batches of 1, 7 and 64; each run is killed with SIGKILL three times. Before, one run goes through without
kills, and says whether memory grows. Writes `results/preparation.json`.
Usage: python tests/long/preparation.py [--samples N] [--output FILE].
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from dirty_pictures import write_dirty_tars
from killed_preparation import folder_digest, prepare_with_kills

from hub_tools.atomic_files import write_text_whole

RESULTS = Path(__file__).with_name("results") / "preparation.json"
CODEC = Path(__file__).parents[2] / "pipelines/tools/demo/pretrained/codec"
SHARD_SIZE = 1000
NUM_KILLS = 3
LARGEST_BYTES = 1.5e9


def measure(folder: Path, num_samples: int) -> dict[str, object]:
    """Prepare the same pictures again and again; return what was seen."""
    dropped = write_dirty_tars(folder / "tars", num_samples, samples_per_tar=5000, side=256, large=(13_000, 8_000))
    arguments = [str(folder / "tars"), "--codec", str(CODEC), "--shard-size", str(SHARD_SIZE)]
    runs = []
    killed = [(NUM_KILLS, workers, batch_size) for workers in (1, 2) for batch_size in (1, 7, 64)]
    for num_kills, workers, batch_size in [(0, 2, 64), *killed]:
        output = folder / f"{num_kills}-{workers}-{batch_size}"
        options = ["--workers", str(workers), "--batch-size", str(batch_size)]
        started = time.monotonic()
        held = prepare_with_kills([*arguments, *options], output, num_kills, -(-num_samples // SHARD_SIZE))
        report = json.loads((output / "report.json").read_text())
        quarter = len(held) // 4
        runs.append(
            {
                "kills": num_kills,
                "workers": workers,
                "batch_size": batch_size,
                "seconds": round(time.monotonic() - started, 1),
                "digest": folder_digest(output),
                "kept": report["kept"],
                "is_every_sample_counted": report["dropped"] == dropped and report["seen"] == num_samples,
                "peak_bytes": max(memory.resident for memory in held),
                "anonymous_bytes_by_quarter": [
                    round(statistics.median(memory.anonymous for memory in held[quarter * n : quarter * (n + 1)]))
                    for n in range(4)
                ],
            }
        )
        print(runs[-1], flush=True)
    return {"samples": num_samples, "dropped": dropped, "runs": runs}


def main() -> None:
    """Measure, write the results, and exit with 1 if anything differs or is too large."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), arguments.samples)
    write_text_whole(arguments.output, json.dumps(found, indent=1) + "\n")
    runs = found["runs"]
    is_well = (
        len({run["digest"] for run in runs}) == 1
        and all(run["is_every_sample_counted"] for run in runs)
        and max(run["peak_bytes"] for run in runs) < LARGEST_BYTES
    )
    print("the same bytes, every sample counted, memory bounded" if is_well else "NOT WELL: see above")
    sys.exit(0 if is_well else 1)


if __name__ == "__main__":
    main()
