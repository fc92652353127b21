"""Probes the swarm without taking part: dials every entry address, reads clocks and records, asks for calls back.

It leaves no trace: the probing peer tells nobody its DHT id, so that it enters no routing table.
"""

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any

from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.p2p import P2P, P2PDaemonError, PeerID
from hivemind.p2p.p2p_daemon_bindings.utils import ControlFailure
from hivemind.proto import dht_pb2
from hivemind.utils.auth import AuthorizerBase
from hivemind.utils.multiaddr import Multiaddr

from pipelines.core.admission.tokens import TokenCheck
from pipelines.core.swarm.dialling import PeerAddress, connect, parse_address
from pipelines.core.swarm.network_options import NetworkOptions
from pipelines.core.swarm.records import RecordKind
from pipelines.features.reachability.dial_back import MOST_ADDRESSES, SECONDS_BETWEEN_CALLS, ask_for_dial_back
from pipelines.features.reachability.tcp_calls import Call, call
from pipelines.features.servers.record_validation import signed_values, valid_records
from pipelines.tools.doctor.probing.probe_result import EntryFinding, SwarmFinding

STARTUP_TIMEOUTS = (15.0, 60.0, 180.0)
"""Time-outs of the libp2p daemon: each one longer, because a busy machine only needs time."""

CALL_SECONDS = 5.0
RPC_SECONDS = 5.0
NUM_PINGS = 3
"""A lost ping is retried; the fastest one gives the best clock."""

DIAL_BACK_SECONDS = 12.0
MOST_LOOKUP_CALLS = 24
NODES_PER_ROUND = 4
"""Nodes asked in one round of a lookup in the DHT."""


def probe_swarm(
    swarm_id: str,
    entry_addresses: Sequence[str],
    options: NetworkOptions,
    *,
    startup_timeouts: Sequence[float] = STARTUP_TIMEOUTS,
    authorizer: AuthorizerBase | None = None,
    check: TokenCheck | None = None,
    kinds: Collection[RecordKind] = (),
    now: Callable[[], float] = time.time,
    announce: Callable[[str], None] = lambda name: None,
) -> SwarmFinding:
    """Start a libp2p daemon as the peer would, probe the swarm, and stop the daemon; failures are in the finding.

    A daemon that does not start in time is started again with the next time-out. `check` tells whose records of these
    `kinds` count; None: they are not read. `now` is this machine's clock.
    """

    async def look() -> SwarmFinding:
        announce("libp2p daemon")
        async with _daemon(options, startup_timeouts) as (p2p, finding):
            if p2p is None:
                return finding
            probe = _Probe(p2p, authorizer, check, kinds, now, announce)
            finding = dataclasses.replace(finding, entries=await probe.look_at_entries(swarm_id, entry_addresses))
            return finding if options.client_mode else await probe.ask_others(finding)

    return asyncio.run(look())


@asynccontextmanager
async def _daemon(
    options: NetworkOptions, startup_timeouts: Sequence[float]
) -> AsyncIterator[tuple[P2P | None, SwarmFinding]]:
    p2p, error, num_starts, started = None, "", 0, 0.0
    for seconds in startup_timeouts:
        num_starts, started = num_starts + 1, time.monotonic()
        try:
            p2p = await P2P.create(
                host_maddrs=list(options.host_addresses),
                announce_maddrs=list(options.announce_addresses) or None,
                identity_path=str(options.identity_file) if options.identity_file else None,
                dht_mode="client" if options.client_mode else "server",
                startup_timeout=seconds,
                use_relay=True,
            )
            break
        except (P2PDaemonError, OSError, ValueError) as failure:
            error = str(failure)
            if "failed to start in" not in error:
                break  # only slowness is worth a retry
    if p2p is None:
        yield None, SwarmFinding(daemon_seconds=None, daemon_error=error, num_daemon_starts=num_starts)
        return
    try:
        yield p2p, SwarmFinding(daemon_seconds=time.monotonic() - started, num_daemon_starts=num_starts)
    finally:
        await p2p.shutdown()


class _Probe:
    """Probes the swarm through a running daemon."""

    def __init__(
        self,
        p2p: P2P,
        authorizer: AuthorizerBase | None,
        check: TokenCheck | None,
        kinds: Collection[RecordKind],
        now: Callable[[], float],
        announce: Callable[[str], None],
    ) -> None:
        self._p2p, self._authorizer, self._check, self._kinds = p2p, authorizer, check, kinds
        self._now, self._announce = now, announce
        self._nodes: dict[str, DHTID] = {}
        """DHT ids of the entry peers that answer, by peer id."""

    async def look_at_entries(self, swarm_id: str, addresses: Sequence[str]) -> tuple[EntryFinding, ...]:
        """Dial every address separately; then see what each answering peer finds in the DHT."""
        self._protocol = await DHTProtocol.create(
            self._p2p, DHTID.generate(), 20, 5, 5, RPC_SECONDS, client_mode=True, authorizer=self._authorizer
        )
        entries: list[EntryFinding] = []
        for text in addresses:
            self._announce(f"entry address {text}")
            entries.append(await self._look_at_entry(text, entries))
        self._announce("swarm behind the entry addresses")
        return tuple([await self._look_around(entry, swarm_id) for entry in entries])

    async def ask_others(self, finding: SwarmFinding) -> SwarmFinding:
        """Have the first entry peer that offers it call this peer's own addresses."""
        self._announce("own address, called by another peer")
        own = [parse_address(str(address)) for address in await self._p2p.get_visible_maddrs()]
        wanted = list(dict.fromkeys(a.without_peer for a in own if not a.relayed))[:MOST_ADDRESSES]
        finding = dataclasses.replace(finding, listening=tuple(wanted))
        for peer_id in dict.fromkeys(entry.peer_id for entry in finding.entries if entry.answers):
            for pause in (0.0, SECONDS_BETWEEN_CALLS):
                await asyncio.sleep(pause)
                peer = PeerID.from_base58(peer_id)
                reply = await ask_for_dial_back(self._p2p, peer, wanted, DIAL_BACK_SECONDS)
                if reply is None:
                    break  # this peer does not offer it
                if reply[1]:
                    return dataclasses.replace(finding, seen_as=reply[0], calls_back=tuple(reply[1]))
        return finding

    async def _look_at_entry(self, text: str, before: list[EntryFinding]) -> EntryFinding:
        try:
            address = parse_address(text)
            peer = PeerID.from_base58(address.peer_id)
        except Exception as error:  # the base58 library raises various errors
            return EntryFinding(call=Call(address=text, outcome="malformed", detail=str(error)))
        dialled = None
        if address.transport == "tcp" and not address.relayed:
            dialled = await call(address, CALL_SECONDS)
            if dialled.outcome != "answered":
                return EntryFinding(call=dialled, peer_id=address.peer_id)
        for other in before:
            # libp2p remembers all addresses of a peer and would use any of them: the peer is checked once.
            if other.peer_id == address.peer_id and other.answers:
                return dataclasses.replace(other, call=dialled or dataclasses.replace(other.call, address=text))
        return await self._connect_and_ping(address, peer, dialled)

    async def _connect_and_ping(self, address: PeerAddress, peer: PeerID, dialled: Call | None) -> EntryFinding:
        started = time.monotonic()
        if (problem := await self._connect(peer, address)) is not None:
            return EntryFinding(call=problem, peer_id=address.peer_id)
        answered = Call(address=address.text, outcome="answered", seconds=time.monotonic() - started)
        return await self._ping(peer, EntryFinding(call=dialled or answered, peer_id=address.peer_id))

    async def _connect(self, peer: PeerID, address: PeerAddress) -> Call | None:
        """Connect to the peer that the address names; return the failed call, or None on success."""
        multiaddress = Multiaddr(address.text.removesuffix(f"/p2p/{address.peer_id}"))
        try:
            async with asyncio.timeout(4 * CALL_SECONDS):
                await connect(self._p2p, peer, [multiaddress])
        except TimeoutError:
            return Call(address=address.text, outcome="silent", detail="libp2p gets no answer")
        except ControlFailure as error:
            said = str(error)
            if "peer id mismatch" in said:
                real = said.rsplit("remote key matches", 1)[-1].split()[0]
                return Call(address=address.text, outcome="other peer", detail=f"peer {real} answers there")
            return Call(address=address.text, outcome="failed", detail=" ".join(said.splitlines()[-1].split()))
        return None

    async def _ping(self, peer: PeerID, entry: EntryFinding) -> EntryFinding:
        request = dht_pb2.PingRequest(peer=self._protocol.node_info, validate=False)
        pings, refusal = [], ""
        for _ in range(NUM_PINGS):
            asked = self._now()
            try:
                reply = await self._protocol.get_stub(peer).rpc_ping(request, timeout=RPC_SECONDS)
                answered = self._now()
                self._nodes[entry.peer_id] = DHTID.from_bytes(reply.peer.node_id)
            except Exception as error:  # refused by an authorizer, gone, or not a hivemind peer
                refusal = str(error) or type(error).__name__
                continue
            pings.append((answered - asked, reply.dht_time - (asked + answered) / 2))
        if not pings:
            return dataclasses.replace(entry, refusal=refusal)
        seconds, offset = min(pings)
        return dataclasses.replace(entry, answers=True, ping_seconds=seconds, clock_offset=offset)

    async def _look_around(self, entry: EntryFinding, swarm_id: str) -> EntryFinding:
        """Find the other entry peers and the run's records, starting only from this entry peer."""
        if not entry.answers:
            return entry
        knows = {entry.peer_id}
        for peer_id, node_id in self._nodes.items():
            if peer_id != entry.peer_id and peer_id in (await self._lookup(entry.peer_id, node_id))[1]:
                knows.add(peer_id)
        trainers = len((await self._lookup(entry.peer_id, DHTID.generate(source=f"{swarm_id}_progress")))[0])
        found = dataclasses.replace(entry, knows=frozenset(knows), num_trainers=trainers)
        if self._check is None:
            return found
        tokens = await self._signed(entry, f"{swarm_id}_admissions")

        records = {}
        for kind in self._kinds:
            values = await self._signed(entry, f"{swarm_id}_{kind.name}")
            entries = [(owner, record, tokens.get(owner)) for owner, record in values.items()]
            records[kind] = valid_records(kind.schema, entries, self._check, now=self._now())
        return dataclasses.replace(found, records=records)

    async def _signed(self, entry: EntryFinding, key: str) -> dict[bytes, object]:
        """Return the signed values under a key of the run, by owner, starting from an entry peer."""
        return signed_values(key, (await self._lookup(entry.peer_id, DHTID.generate(source=key)))[0])

    async def _lookup(self, start: str, target: DHTID) -> tuple[dict[bytes, Any], set[str]]:
        """Walk towards an id as Kademlia does; return the dictionary stored there and the peers found on the way."""
        first = PeerID.from_base58(start)
        waiting: dict[DHTID | None, PeerID] = {None: first}
        asked: set[PeerID] = set()
        met, records = {start}, {}
        while waiting and len(asked) < MOST_LOOKUP_CALLS:
            nearest_first = sorted(waiting, key=lambda node: -1 if node is None else target.xor_distance(node))
            peers = [waiting.pop(node) for node in nearest_first[:NODES_PER_ROUND]]
            asked.update(peers)
            answers = await asyncio.gather(*(self._protocol.call_find(peer, [target]) for peer in peers))
            for answer in filter(None, answers):
                found, nearest = answer[target]
                if found is not None and isinstance(found.value, DictionaryDHTValue):
                    records.update(found.value.items())
                met.update(peer.to_base58() for peer in nearest.values())
                waiting.update({node: peer for node, peer in nearest.items() if peer not in asked})
        return records, met
