"""Two DHT nodes that lose each other, as both sides of a broken link do, and what they find out about each other then.

Usage: python lost_nodes.py SETTINGS.json. Writes `{"before": ..., "lost": ..., "after": ...}` to the file `results`.
"""

import json
import sys
import time
from pathlib import Path

from hub_tools.processes.process_group import guard_process_group
from pipelines.core.swarm.network_options import NetworkOptions
from pipelines.core.swarm.node import open_dht, visible_addresses

LONGEST_WAIT = 60.0


async def forget_all(_dht, node):
    """Do what a lookup does to every node that does not reply in time."""
    for peer, node_id in list(node.protocol.routing_table.peer_id_to_uid.items()):
        node.blacklist.register_failure(peer)
        await node.protocol.update_routing_table(node_id, peer, responded=False)
    return len(node.protocol.routing_table.peer_id_to_uid)


def read(dht):
    found = dht.get("key", latest=True)
    return None if found is None else found.value


def main(settings: dict) -> None:
    guard_process_group()
    options = NetworkOptions(host_addresses=("/ip4/127.0.0.1/tcp/0",))
    with (
        open_dht("test/run", (), options, admission=None) as first,
        open_dht("test/run", visible_addresses(first), options, admission=None) as second,
    ):
        expiration = time.time() + 2 * LONGEST_WAIT
        first.store("key", "before", expiration)
        before = read(second)
        lost = [dht.run_coroutine(forget_all) for dht in (first, second)]
        first.store("key", "after", expiration + 1)
        deadline = time.monotonic() + LONGEST_WAIT
        while (after := read(second)) != "after" and time.monotonic() < deadline:
            time.sleep(0.1)
        Path(settings["results"]).write_text(json.dumps(dict(before=before, lost=lost, after=after)))


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
