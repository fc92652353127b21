"""A client's view of the servers: which chain to take, whom to avoid, and one message with its answer."""

import contextlib
import logging
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Protocol

from torch import Tensor

from pipelines.core.swarm.streams.refusals import PeerGoneError, Refusal
from pipelines.core.swarm.streams.stream_clients import StreamClient
from pipelines.features.serving.blocks.routing import Hop, NoChainError, ServedSpan, choose_chain
from pipelines.features.serving.blocks.sessions import Answer, BlockServer, BlockSession
from pipelines.features.serving.server_blocklist import ServerBlocklist

logger = logging.getLogger(__name__)

AVOIDED_SECONDS = 60.0
PATIENCE_SECONDS = 60.0
"""How long a client waits for somebody to serve what nobody serves."""

SECONDS_BETWEEN_LOOKS = 1.0
MOST_SERVERS = 256
"""Among which a chain is chosen; of more some are drawn."""

MOST_TIMES_THE_MEDIAN = 16.0
"""What a server says of its own rate counts up to so many times that of the others."""

MOST_MEASURED = 8
"""Servers whose distance is measured before the first choice; others count as usual ones."""

LASTING = ("invalid", "malformed", "version", "not admitted", "too large")
"""Refusals that another server would repeat."""


class ServerLink(Protocol):
    """A stream to a server."""

    round_trip_seconds: float

    def ask(self, body: Mapping[str, object], tensors: Mapping[str, Tensor]) -> Answer:
        """Send a message and return its answer; raises PeerGoneError or Refusal."""

    def close(self) -> None:
        """End the stream, and with it the session."""


class Swarm(Protocol):
    """How servers are found and reached."""

    blocklist: ServerBlocklist
    """Those that have answered falsely."""

    def served(self) -> Sequence[ServedSpan]:
        """Return what is served now."""

    def connect(self, peer: str) -> ServerLink:
        """Open a stream to a server; raises PeerGoneError or Refusal."""


class Route:
    """Chooses chains through the layers of one model at one revision."""

    def __init__(
        self,
        swarm: Swarm,
        repository: str,
        revision: str,
        *,
        precision: str | None = "float32",
        patience_seconds: float = PATIENCE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`precision` is that of the servers; None: any, so that the same request may get other codes."""
        self.swarm, self.repository, self.revision, self._precision = swarm, repository, revision, precision
        self._patience, self._clock = patience_seconds, clock
        self._blocklist: dict[str, float] = {}
        self._last_resorts: dict[str, float] = {}
        """Servers that were chosen although they had failed, and since when."""

        self.took_part: set[Hop] = set()
        """All that generations' chains have consisted of."""

        self._left_out: frozenset[str] = frozenset()
        self._round_trips: dict[str, float] = {}
        self._links: dict[str, ServerLink] = {}
        self.num_failures = 0
        self._is_measured = False

    def chain(self, layers: range) -> list[Hop]:
        """Return the fastest chain; wait for missing layers as long as the patience lasts.

        Raises:
            NoChainError: names the layers, and the command that serves them.
        """
        deadline, was_told = self._clock() + self._patience, False
        if not self._is_measured:
            self._measure()
        while True:
            now = self._clock()
            self._blocklist = {peer: until for peer, until in self._blocklist.items() if until > now}
            self._last_resorts = {p: since for p, since in self._last_resorts.items() if p in self._blocklist}
            try:
                chain = choose_chain(
                    self._usable(), layers, self.revision, repository=self.repository, avoid=self._blocklist
                )
            except NoChainError as error:
                if now >= deadline:
                    raise
                if not was_told:
                    logger.warning("%s Waiting for it for up to %.0f s.", error, self._patience)
                    was_told = True
                time.sleep(SECONDS_BETWEEN_LOOKS)
                continue
            for hop in chain:
                if hop.peer in self._blocklist:
                    self._last_resorts.setdefault(hop.peer, now)
            return chain

    def _measure(self) -> None:
        """Learn how far some servers are, and which of them can be reached, before the first choice."""
        self._is_measured = True
        if named := self.swarm.blocklist.named((span.peer, span.user) for span in self.swarm.served()):
            logger.warning("%s", named)
        peers = [span.peer for span in self._usable() if span.is_online and span.revision == self.revision]
        if len(peers) > 1:
            with ThreadPoolExecutor(MOST_MEASURED) as executor:
                list(executor.map(self._measure_one, peers[:MOST_MEASURED]))

    def _measure_one(self, peer: str) -> None:
        try:
            link = self.swarm.connect(peer)
        except (PeerGoneError, Refusal) as error:
            logger.info("Server %s cannot be reached: %s", peer, error)
            self._blocklist[peer] = self._clock() + AVOIDED_SECONDS
            return
        self._round_trips[peer] = link.round_trip_seconds
        link.close()

    def others(self, hop: Hop) -> dict[str, Hop]:
        """Return other servers of the same layers, in the same precision: those who can check a hop."""
        own = {span.peer: span for span in self._usable()}
        asked = own.get(hop.peer)
        return {
            span.peer: replace(hop, peer=span.peer, user=span.user)
            for span in own.values()
            if span.peer != hop.peer
            and span.peer not in self._blocklist
            and span.is_online
            and span.revision == self.revision
            and span.start <= hop.start
            and hop.end <= span.end
            and (asked is None or span.precision == asked.precision)
        }

    @contextlib.contextmanager
    def only_others(self) -> Iterator[None]:
        """Ask no server during the block that was part of a generation, and wait for none."""
        before = self._left_out, self._patience
        self._left_out, self._patience = frozenset(hop.peer for hop in self.took_part), 0.0
        try:
            yield
        finally:
            self._left_out, self._patience = before

    def _usable(self) -> list[ServedSpan]:
        found = [
            span
            for span in self.swarm.served()
            if self._precision in (None, span.precision)
            and not self.swarm.blocklist.avoids(span.peer, span.user)
            and span.peer not in self._left_out
        ]
        if len(found) > MOST_SERVERS:  # anybody may say that he serves
            found = random.sample(found, MOST_SERVERS)
        fastest = MOST_TIMES_THE_MEDIAN * statistics.median([span.layers_per_second for span in found] or [1.0])
        return [
            replace(
                span,
                layers_per_second=min(span.layers_per_second, fastest),
                round_trip_seconds=self._round_trips.get(span.peer, span.round_trip_seconds),
            )
            for span in found
        ]

    def connect(self, hop: Hop) -> ServerLink:
        """Open a new stream to a hop's server."""
        link = self.swarm.connect(hop.peer)
        self._round_trips[hop.peer] = link.round_trip_seconds
        return link

    def avoid(self, peer: str, error: Exception) -> None:
        """Pass a server by for a while.

        Raises:
            Refusal: it was not the server's fault, so that another one would do the same.
            PeerGoneError, Refusal: this server has failed for as long as the patience lasts, and there is no other.
        """
        if isinstance(error, Refusal) and error.code in LASTING:
            raise error
        if peer in self._last_resorts:
            if self._clock() - self._last_resorts[peer] >= self._patience:
                raise error
            time.sleep(SECONDS_BETWEEN_LOOKS)
        logger.info("Server %s is passed by for %.0f s: %s", peer, AVOIDED_SECONDS, error)
        self.num_failures += 1
        self._blocklist[peer] = self._clock() + AVOIDED_SECONDS
        if (link := self._links.pop(peer, None)) is not None:
            link.close()

    def ask(self, hop: Hop, body: Mapping[str, object], tensors: Mapping[str, Tensor]) -> Answer:
        """Send a message that needs no session, over a stream that is kept; raises PeerGoneError or Refusal."""
        if hop.peer not in self._links:
            self._links[hop.peer] = self.connect(hop)
        try:
            return self._links[hop.peer].ask(body, tensors)
        except (PeerGoneError, Refusal):
            # A stream that has refused, or was idle for too long, is at its end; the server may be well.
            self._links.pop(hop.peer).close()
            self._links[hop.peer] = self.connect(hop)
            return self._links[hop.peer].ask(body, tensors)

    def close(self) -> None:
        """Close all streams that are kept."""
        for link in self._links.values():
            link.close()
        self._links.clear()


class LocalSwarm(Swarm):
    """Spans on this machine in place of others' servers: the same code, nobody else."""

    def __init__(self, servers: Mapping[str, BlockServer]) -> None:
        self._servers, self.blocklist = dict(servers), ServerBlocklist()

    def served(self) -> list[ServedSpan]:
        return [
            ServedSpan(
                peer=name,
                start=server.span.layers.start,
                end=server.span.layers.stop,
                revision=server.revision,
                layers_per_second=1000.0,
                round_trip_seconds=0.0,
            )
            for name, server in self._servers.items()
        ]

    def connect(self, peer: str) -> "LocalLink":
        return LocalLink(self._servers[peer])


class LocalLink(ServerLink):
    """A session on this machine."""

    round_trip_seconds = 0.0

    def __init__(self, server: BlockServer) -> None:
        self._session = BlockSession(server, StreamClient("this machine"))

    def ask(self, body: Mapping[str, object], tensors: Mapping[str, Tensor]) -> Answer:
        return self._session.answer(body, tensors)

    def close(self) -> None:
        self._session.close()
