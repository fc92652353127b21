"""Many peers of a swarm as their signed records alone, in a real DHT node: a dashboard cannot tell them from trainers.

Usage: python crowd.py SWARM_ID NUM_PEERS LIFETIME_SECONDS. Prints the node's address as one line of JSON, renews the
records in time, and ends when its standard input is closed. The first peers are rogues: markup in their names, figures
that cannot be true.
"""

import json
import random
import sys
import threading
from contextlib import AbstractContextManager
from functools import cache, partial
from pathlib import Path

from running_programs import ready_program

EPOCH = 1200
NUM_IDENTITIES = 8
"""libp2p identities that the crowd shares: their keys take long to make."""

ROGUES = (
    dict(username='<img src=x onerror="document.title=1">', samples_per_second=3.0),
    dict(username="{{constructor}} ${alert(1)} **bold**", package_version="[a](javascript:alert(1))"),
    dict(username="absurd", loss=1e12),
    dict(username="too fast", samples_per_second=1e8),
)


def crowd(swarm_id: str, num_peers: int, lifetime_seconds: float, log: Path) -> AbstractContextManager[str]:
    """Start a crowd for the length of the block; yield the address through which its swarm is found."""
    return ready_program(__file__, swarm_id, num_peers, lifetime_seconds, log=log, seconds=30)


class _Member:
    """One peer of the crowd: a key, and figures that stay the same."""

    def __init__(self, index: int) -> None:
        from admission_tokens import rsa_key
        from hivemind.dht.crypto import RSASignatureValidator
        from hivemind.utils.crypto import RSAPrivateKey

        from pipelines.core.signing.rsa_keys import peer_id_of

        private_key = RSAPrivateKey()
        self.signature = RSASignatureValidator(private_key)
        self.record_key = private_key.get_public_key().to_bytes().decode()
        self.identity = rsa_key(f"crowd {index % NUM_IDENTITIES}")
        chance, own = random.Random(index), ROGUES[index] if index < len(ROGUES) else {}
        speed = own.get("samples_per_second", chance.uniform(2.0, 40.0))
        who = dict(
            username=own.get("username", f"volunteer-{index:03d}"),
            client_mode=index % 3 == 0,
            package_version=own.get("package_version", "0.1.0"),
        )
        self.records = dict(
            progress=dict(
                peer_id=peer_id_of(self.identity.public), epoch=EPOCH, samples_accumulated=chance.randrange(100),
                samples_per_second=speed, client_mode=who["client_mode"],
            ),
            introductions=dict(who, device=chance.choice(("NVIDIA T4", "NVIDIA RTX 4090", "CPU, 8 threads"))),
            metrics=dict(
                who, epoch=EPOCH, loss=own.get("loss", chance.uniform(2.2, 2.4)), num_samples=10_000 + index,
                samples_per_second=speed, share_averaged=1.0, bytes_sent=10**9, num_rounds=EPOCH,
                round_seconds=chance.uniform(2.0, 5.0), num_refused_gradients=0, num_incomplete_rounds=0,
                num_withheld=0, suspects=[],
            ),
        )  # fmt: skip

    def token(self, swarm_id: str, now: float, expires: float) -> str:
        """Return the token that ties the member's records to its identity."""
        from pipelines.core.admission.tokens import own_admission, token_of

        admission = own_admission(swarm_id, self.identity, self.record_key, now=now, expires_at=expires)
        return token_of(admission, self.identity)


def main(swarm_id: str, num_peers: int, lifetime_seconds: float) -> None:
    """Keep the crowd's records alive until standard input ends."""
    from hivemind.utils import get_dht_time

    from hub_tools.processes.process_group import guard_process_group
    from pipelines.core.swarm.network_options import NetworkOptions
    from pipelines.core.swarm.node import open_dht, visible_addresses

    guard_process_group()
    ended = threading.Event()
    with open_dht("a/crowd", (), NetworkOptions(host_addresses=("/ip4/127.0.0.1/tcp/0",)), admission=None) as dht:
        address = visible_addresses(dht)[0]
        threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
        while True:
            now = get_dht_time()
            dht.run_coroutine(partial(_store_records, swarm_id, num_peers, now, now + lifetime_seconds))
            if address:
                print(json.dumps(address), flush=True)
                address = ""
            if ended.wait(lifetime_seconds / 4):
                return


@cache
def _members(num_peers: int) -> list[_Member]:
    """Make the members in the process of the node: its pipe carries no messages as large as all their keys."""
    return [_Member(index) for index in range(num_peers)]


async def _store_records(swarm_id: str, num_peers: int, now: float, expires: float, dht, node) -> None:
    """Put signed records into a node's own storage, past its signer, which knows one key."""
    from hivemind.dht.routing import DHTID
    from hivemind.dht.validation import DHTRecord

    serializer = node.protocol.serializer
    for member in _members(num_peers):
        owner = member.signature.local_public_key
        token = member.token(swarm_id, now, expires)
        for name, values in dict(member.records, admissions=token).items():
            values = dict(values, time=now) if name == "progress" else values
            key = DHTID.generate(source=f"{swarm_id}_{name}")
            record = DHTRecord(key.to_bytes(), serializer.dumps(owner), serializer.dumps(values), expires)
            node.protocol.storage.store(key, member.signature.sign_value(record), expires, subkey=owner)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
