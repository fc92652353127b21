"""How long a volunteer waits: from the command to the first gradient that counts, for `training.py`."""

import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console

from pipelines.chaos.chaos_swarm import REPOSITORY, ChaosSwarm, SwarmPlan

COMMAND = [
    sys.executable, "-m", "pipelines.command_line.main", "join", REPOSITORY, "--host", "/ip4/127.0.0.1/tcp/0",
    "--micro-batch-size", "4", "--shuffle-buffer", "64",
]  # fmt: skip
SIGN = "First gradient counted"


def seconds_to_first_gradient(folder: Path) -> float:
    """Start a swarm with one trainer, let another machine join with the command, and return the seconds it took.

    Raises:
        RuntimeError: the command ended before its first gradient counted.
    """
    plan = SwarmPlan(folder=folder, num_peers=1, seconds_per_batch=0.2)
    with ChaosSwarm(plan, Console(stderr=True)) as swarm:
        trainer = swarm.trainers[0]
        swarm.wait_until(lambda: any(e["event"] == "epoch" for e in trainer.events()), "The trainer's first epoch")
        token = swarm.hub.create_user("volunteer")
        environment = {**swarm.hub.environment(), "HF_TOKEN": token, "OMP_NUM_THREADS": "1"}
        started = time.monotonic()
        with subprocess.Popen(
            COMMAND, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            printed = []
            try:
                for line in process.stdout:
                    printed.append(line)
                    if SIGN in line:
                        return time.monotonic() - started
            finally:
                process.terminate()
        raise RuntimeError("The volunteer's command ended before its first gradient counted:\n" + "".join(printed))
