"""Draws at a run's servers and prints what came of it as JSON.

Usage: swarm_client.py ORG/RUN CANDIDATES [PROGRESS_FILE]. The number of candidates that are there is written to the
progress file, again and again.
"""

import json
import sys
from pathlib import Path

from hub_tools.endpoint import prepare_hub_client
from hub_tools.processes.process_group import guard_process_group
from pipelines.core.swarm.network_options import NetworkOptions
from pipelines.features.serving.draw.drawing_client import connect


def main(repository: str, candidates: str, progress: str = "/dev/null") -> None:
    guard_process_group()
    prepare_hub_client()
    network = NetworkOptions(client_mode=True, startup_timeout_seconds=240.0)
    with connect(repository, network=network) as client:
        drawn = client.draw(
            client.request("a small red star"),
            range(int(candidates)),
            on_progress=lambda done, _total: Path(progress).write_text(str(done), encoding="utf-8"),
        )
    codes = [candidate.codes.tolist() for candidate in drawn.candidates]
    print(json.dumps(dict(seconds=drawn.seconds, codes=codes, num_lost=drawn.num_lost)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
