"""A swarm in virtual time whose peers train on the leases of a ledger, die and join; also a benchmark's material."""

import json
import random
from collections import Counter

from pipelines.core.run.block_order import BlockOrder
from pipelines.features.ledger.ledger import Ledger, LedgerOptions

ROWS = 64


def order(num_shards=10, groups=8, seed=0):
    return BlockOrder(lambda: num_shards, lambda shard: [ROWS] * groups, seed)


def options(**changes):
    return LedgerOptions(
        **(dict(epoch_records=0, least_lease=128, horizon_seconds=60.0, expiry_seconds=180.0) | changes)
    )


def first_of(spans, num_records):
    """The first records of some spans."""
    taken = []
    for span in spans:
        if num_records > 0:
            taken.append(span._replace(stop=min(span.stop, span.start + num_records)))
            num_records -= taken[-1].num_records
    return taken


class VirtualSwarm:
    """Peers that train on their leases in virtual time, die, join, and an anchor that restarts from what it wrote."""

    def __init__(self, num_peers, num_shards, batch, *, deaths, seed, restart_every=50):
        self.order, self.deaths, self.restart_every, self.batch = order(num_shards), deaths, restart_every, batch
        self.options = options(least_lease=ROWS, epoch_records=batch)
        self.ledger, self.random = Ledger(self.order, self.options), random.Random(seed)
        self.trained, self.booked = Counter(), Counter()
        """How often each record was trained on, and booked, by pass, shard, group and place."""

        self.peers, self.num_peers, self.num_met, self.now, self.in_flight = {}, num_peers, 0, 0.0, 0

    def run_epoch(self, epoch):
        self.now += 20
        while len(self.peers) < self.num_peers:
            self.peers[f"peer {self.num_met}"] = self.random.choice([1, 2, 4])
            self.num_met += 1
        self.ledger.meet({name: name for name in self.peers}, self.now)
        self.ledger.expire(self.now)
        self.ledger.grant(self.now)
        total = sum(self.peers.values())
        for name, speed in list(self.peers.items()):
            used = first_of(self.ledger.lease_of(name), -(-self.batch * speed // total))
            self.count(self.trained, used)
            if self.random.random() < self.deaths:  # before its round: nothing came of it
                self.in_flight += sum(span.num_records for span in used)
                del self.peers[name]
            else:
                self.count(self.booked, self.ledger.book(name, epoch, used, self.now + 20))
        if epoch % self.restart_every == self.restart_every - 1:
            state = json.loads(json.dumps(self.ledger.to_json()))
            self.ledger = Ledger.from_json(self.order, self.options, state, self.now)

    @staticmethod
    def count(counter, spans):
        for span in spans:
            counter.update((*span.block, place) for place in range(*span.interval))
