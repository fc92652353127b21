"""A stranger's connection to a swarm that lets everybody draw: a libp2p daemon of its own, no node of the DHT."""

from collections.abc import Sequence

from hivemind.p2p import P2P, P2PDaemonError

from pipelines.core.swarm.network_options import NetworkOptions
from pipelines.core.swarm.node import SwarmUnreachableError


class Visitor:
    """What a `PeerLoop` asks a DHT node for: the connection to a daemon, here one that ends with the loop."""

    def __init__(self, repository: str, entries: Sequence[str], options: NetworkOptions) -> None:
        self._repository, self._entries, self._options = repository, list(entries), options

    async def replicate_p2p(self) -> P2P:
        """Start the daemon; it finds servers through the entries.

        Raises:
            SwarmUnreachableError: no entry answers.
        """
        try:
            return await P2P.create(
                initial_peers=self._entries,
                dht_mode="client",
                host_maddrs=["/ip4/127.0.0.1/tcp/0"],
                startup_timeout=self._options.startup_timeout_seconds,
            )
        except (P2PDaemonError, TimeoutError) as error:
            raise SwarmUnreachableError(
                f"No entry address of {self._repository} answers ({len(self._entries)} tried: {error}). Its "
                f"organiser starts one with: dalle-collab run assist {self._repository} --stay"
            ) from error
