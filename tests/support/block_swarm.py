"""Block servers in processes of their own, and a client of theirs in this one."""

import contextlib
import json
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from forked_processes import ForkedProcess, fork_server
from hivemind.p2p import P2P
from running_programs import wait_for
from support_files import SUPPORT

from hub_tools.processes.event_files import read_events
from pipelines.core.swarm.streams.introductions import Introductions
from pipelines.core.swarm.streams.peer_loop import PeerLoop
from pipelines.features.servers.server_record import ServerRecord
from pipelines.features.serving.blocks.client.stream_swarm import StreamSwarm
from pipelines.features.serving.entering import ClientConnection
from pipelines.tools.chaos.faults.link_proxy import LinkLimits, LinkProxy

NAMESPACE, HOST = "a-run", "/ip4/127.0.0.1/tcp/0"
START_SECONDS = 240


class ServingPeer:
    """A peer that serves layers of a model; what it said when it was ready."""

    def __init__(self, folder: Path, name: str, model: Path, layers: range, memory: int, rate: float) -> None:
        self.name, self.layers, self.rate = name, layers, rate
        self._log, settings, self.output = (folder / f"{name}{end}" for end in ("-ready.json", ".json", ".log"))
        self._log.unlink(missing_ok=True)
        values = dict(log=str(self._log), model=str(model), layers=[layers.start, layers.stop], memory=memory)
        values["limits"] = dict(streams_per_peer=64)
        settings.write_text(json.dumps(values), encoding="utf-8")
        self.process = ForkedProcess(fork_server(), str(SUPPORT / "stream_peer.py"), [str(settings)], self.output)

    def wait(self) -> None:
        own = dict(process=self.process, log=self.output)
        (ready,) = wait_for(lambda: read_events(self._log), "ready", START_SECONDS, **own)
        self.addresses, self.peer = ready["addresses"], ready["peer"]
        self.revision = ready["revision"]

    def record(self) -> ServerRecord:
        return ServerRecord(
            peer_id=self.peer, username=self.name, state="online", revision=self.revision, epoch=0, precision="float32",
            package_version="", first_layer=self.layers.start, end_layer=self.layers.stop, layer_rate=self.rate,
        )  # fmt: skip

    def signal(self, number: int) -> None:
        self.process.signal_group(number)

    def end(self) -> None:
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGKILL)


class OwnDaemon:
    """What a `PeerLoop` asks a DHT node for: a connection to a libp2p daemon, here one of this process."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = list(addresses)

    async def replicate_p2p(self) -> P2P:
        return await P2P.create(initial_peers=self._addresses, host_maddrs=[HOST], startup_timeout=120)


@contextlib.contextmanager
def serving_peers(
    folder: Path, model: Path, spans: dict[str, range], *, memory: int = 2**28, rates: Mapping[str, float] = {}
) -> Iterator[dict[str, ServingPeer]]:
    """Start a server for each span, and end all of them."""
    peers = {
        name: ServingPeer(folder, name, model, layers, memory, rates.get(name, 100.0)) for name, layers in spans.items()
    }
    try:
        for peer in peers.values():
            peer.wait()
        yield peers
    finally:
        for peer in peers.values():
            peer.end()


@contextlib.contextmanager
def client_of(peers: dict[str, ServingPeer]) -> Iterator[StreamSwarm]:
    """Connect to the servers, whose spans are known without records."""
    addresses = [address for peer in peers.values() for address in peer.addresses]
    with PeerLoop(OwnDaemon(addresses)) as loop:
        place = ClientConnection(
            loop=loop, namespace=NAMESPACE, introductions=Introductions(None), names_users=False,
            servers=lambda: {peer.peer.encode(): peer.record() for peer in peers.values()},
            complain=lambda complaints: None,
        )  # fmt: skip
        swarm = StreamSwarm(place)
        try:
            yield swarm
        finally:
            swarm.close()


@contextlib.contextmanager
def cuttable_link(peer: ServingPeer) -> Iterator[Callable[[], None]]:
    """Let clients reach a server through a proxy; yield what makes everything vanish that would pass from then on."""
    address = peer.addresses[0]
    port = int(address.split("/tcp/")[1].split("/")[0])
    with LinkProxy(lambda port: None) as proxy:
        link = proxy.add(peer.name, port)
        peer.addresses = [address.replace(f"/tcp/{port}/", f"/tcp/{link.proxy_port}/")]
        yield lambda: proxy.limit(peer.name, LinkLimits(is_cut=True))
