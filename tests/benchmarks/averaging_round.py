"""One averaging round between two real averagers in two processes on this machine, for `line.py`."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from pipelines.training.averaging import AveragingRound


def run_rounds(compression: str, num_parameters: int, num_rounds: int) -> AveragingRound:
    """Average a gradient of two peers `num_rounds` times; return the first peer's figures, the last round's seconds."""
    peers: list[subprocess.Popen] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for number in range(2):
                arguments = [str(number), folder, compression, str(num_parameters), str(num_rounds)]
                command = [sys.executable, "-W", "ignore", __file__, *arguments]
                peers.append(subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL))
            for peer in peers:
                if peer.wait(timeout=300) != 0:
                    raise RuntimeError(f"A peer of the averaging benchmark ended with exit code {peer.returncode}.")
            return AveragingRound(**json.loads((Path(folder) / "figures.json").read_text(encoding="utf-8")))
        finally:
            for peer in peers:
                if peer.poll() is None:
                    os.killpg(peer.pid, signal.SIGKILL)


def be_a_peer(number: int, folder: Path, compression: str, num_parameters: int, num_rounds: int) -> None:
    """Average random gradients with the other peer."""
    import dataclasses

    from pipelines.training.averaging import SwarmGradientAverager
    from pipelines.training.peer_options import PeerOptions
    from pipelines.training.swarm import open_dht, visible_addresses
    from pipelines.training.training_run import TrainingRun
    from pipelines.training.wire_codec import averaging_compression

    torch.set_num_threads(1)
    run = TrainingRun(
        run_id="bench", model_config={}, dataset_repository="a/b", dataset_revision="c",
        averaging_compression=compression,
    )  # fmt: skip
    address_file = folder / "address"
    entry = () if number == 0 else (_wait_for(address_file),)
    parameter = torch.nn.Parameter(torch.randn(num_parameters // 1024, 1024))
    with open_dht("bench/run", entry, PeerOptions(host_addresses=("/ip4/127.0.0.1/tcp/0",))) as dht:
        if number == 0:
            temporary = folder / "address.partial"
            temporary.write_text(visible_addresses(dht)[0])
            temporary.rename(address_file)
        averager = SwarmGradientAverager(
            [parameter], dht=dht, prefix="bench", compression=averaging_compression(run), target_group_size=2,
            min_matchmaking_time=2.0, request_timeout=0.8, allreduce_timeout=60.0, next_chunk_timeout=20.0, start=True,
        )  # fmt: skip
        for _ in range(num_rounds):
            parameter.grad = torch.randn_like(parameter)
            averager.accumulate_grads_(batch_size=1)
            averager.step(timeout=60.0)
            averager.notify_used_averaged_gradients()
        averager.shutdown()  # answers to the other peer may go on until here
        if number == 0:
            (folder / "figures.json").write_text(json.dumps(dataclasses.asdict(averager.last_round)))


def _wait_for(path: Path) -> str:
    while not path.exists():
        time.sleep(0.1)
    return path.read_text()


if __name__ == "__main__":
    be_a_peer(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
