"""A swarm of Petals on this machine, used by a client that loses a server; runs in a Python that has Petals.

Usage: python petals_peer.py MODEL_FOLDER WORK_FOLDER [PLACE SIGNAL_NUMBER]; see `petals_beside.py`, which starts it.
The last line of its output is JSON. All settings are Petals' defaults, except float32, loopback addresses, and a given
throughput instead of a speed test over the internet.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
from petals import AutoDistributedModelForCausalLM
from petals_clock import SPANS, Clock, generated, measured_runs
from transformers import AutoModelForCausalLM

START_SECONDS = 240
LIMIT_SECONDS = 210


class TooLong(BaseException):
    """The time is over. Petals' client catches every `Exception` and tries again."""


class Server:
    """A process group of Petals' own server program."""

    def __init__(self, model: str, work: Path, name: str, layers: range, entries: list) -> None:
        self.name, self.log = name, work / f"petals-{name}.log"
        joining = ["--initial_peers", *entries] if entries else ["--new_swarm"]
        command = [sys.executable, "-m", "petals.cli.run_server", model, "--dht_prefix", "beside", *joining]
        command += ["--block_indices", f"{layers.start}:{layers.stop}", "--torch_dtype", "float32", "--device", "cpu"]
        command += ["--throughput", "1000", "--host_maddrs", "/ip4/127.0.0.1/tcp/0", "--no_auto_relay"]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, cwd=work)

    def said(self, pattern: str) -> str:
        """Wait until the log has this, and return its group."""
        deadline = time.monotonic() + START_SECONDS
        while (found := re.search(pattern, self.log.read_text())) is None:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(self.log.read_text())
            time.sleep(0.1)
        return found.group(1)

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


def too_long(*_: object) -> None:
    raise TooLong


def main(model: str, work: Path, place: int | None = None, number: int = 0) -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(2 * START_SECONDS)
    servers, entries = {}, []
    try:
        for name, layers in SPANS.items():
            server = Server(model, work, name, layers, entries)
            servers[name] = server
            if not entries:
                entries = [server.said(r"Running a server on \['([^']+)'")]
        by_peer = {server.said(r"Running a server on \['[^']+/(\w+)'"): server for server in servers.values()}
        for server in servers.values():
            server.said(r"(Started)")
        local = AutoModelForCausalLM.from_pretrained(model, torch_dtype=torch.float32)
        across = AutoDistributedModelForCausalLM.from_pretrained(
            model, initial_peers=entries, dht_prefix="beside", torch_dtype=torch.float32
        )
        found = measured_runs(local, across)

        def hit() -> None:
            session = across.transformer.h.active_session._server_sessions[-1]
            signal.alarm(LIMIT_SECONDS)
            by_peer[session.span.peer_id.to_base58()].signal(number)

        if place is not None:
            clock = Clock(place, hit)
            with contextlib.suppress(TooLong):
                found["tokens after"] = generated(across, clock)
            found["wait"] = clock.wait() if len(clock.times) > place + 1 else None
        print(json.dumps(found), flush=True)
    finally:
        for server in servers.values():
            server.signal(signal.SIGCONT)
            server.signal(signal.SIGKILL)
    os._exit(0)  # the client's daemon threads may wait for a stopped server


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:]))
