"""Entry peers of test swarms, each a process of its own with nothing but a DHT node, forked from one interpreter.

Usage: python entry_peers.py PEERS.json. Reads `{name: {"joins": [names], "clock_shift": seconds}}`, starts the peers in
that order, prints `{name: [addresses]}` as one line of JSON, and ends all of them when its standard input is closed.
"""

import json
import os
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path

from running_programs import ready_program


def started_entry_peers(folder: Path, **peers: dict) -> AbstractContextManager[dict[str, list[str]]]:
    """Start entry peers for the length of the block; yield their addresses by name."""
    settings = folder / "entry_peers.json"
    settings.write_text(json.dumps(peers), encoding="utf-8")
    return ready_program(__file__, settings, log=folder / "entry_peers.log", seconds=120)


def main(peers: dict[str, dict]) -> None:
    from hub_tools.processes.process_group import guard_process_group

    guard_process_group()
    addresses: dict[str, list[str]] = {}
    for name, settings in peers.items():
        entry_addresses = [address for other in settings.get("joins", []) for address in addresses[other]]
        addresses[name] = start_peer(entry_addresses, settings.get("clock_shift", 0.0))
    print(json.dumps(addresses), flush=True)
    sys.stdin.read()


def start_peer(entry_addresses: list[str], clock_shift: float) -> list[str]:
    """Fork a peer and return its addresses."""
    readable, writable = os.pipe()
    if os.fork() == 0:
        os.close(readable)
        serve(entry_addresses, clock_shift, writable)
    os.close(writable)
    with os.fdopen(readable) as answer:
        return json.loads(answer.readline())  # hivemind's forks keep the other end open


def serve(entry_addresses: list[str], clock_shift: float, writable: int) -> None:
    from hivemind.dht import protocol

    from pipelines.core.swarm.network_options import NetworkOptions
    from pipelines.core.swarm.node import open_dht, visible_addresses
    from pipelines.features.reachability.dial_back import offer_dial_back

    if clock_shift:
        # The clock of this machine is wrong: what hivemind reads is off by the same seconds.
        protocol.get_dht_time = lambda: time.time() + clock_shift
    options = NetworkOptions(host_addresses=("/ip4/127.0.0.1/tcp/0",))
    with open_dht("test/run", entry_addresses, options, admission=None, services=[offer_dial_back]) as dht:
        with os.fdopen(writable, "w") as answer:
            answer.write(json.dumps(visible_addresses(dht)) + "\n")
        while True:
            time.sleep(3600)  # the guard of the process group ends it


if __name__ == "__main__":
    import hivemind  # noqa: F401 - what the forks need not import again

    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
