"""Servers in this process that can be lost: the real sessions, behind links that end when a test says so."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pipelines.core.swarm.streams.refusals import PeerGoneError
from pipelines.features.serving.blocks.client.route import LocalLink, LocalSwarm
from pipelines.features.serving.blocks.routing import ServedSpan
from pipelines.features.serving.blocks.sessions import Answer, BlockServer


class MortalSwarm(LocalSwarm):
    """Spans on this machine; `lose` ends a server's links, and refuses new ones."""

    def __init__(self, servers: Mapping[str, BlockServer]) -> None:
        super().__init__(servers)
        self.lost: set[str] = set()
        self.slow: set[str] = set()
        """Servers that come last in every choice."""

        self.asked: list[tuple[str, str]] = []
        """Who was asked to do what."""

        self.before: Callable[[str, str], None] = lambda peer, what: None
        """Called before each question."""

        self.changed: Callable[[str, Answer], Answer] = lambda peer, answer: answer
        """What a server makes of its answers; liars say something else."""

    def served(self) -> list[ServedSpan]:
        return [replace(span, layers_per_second=1.0) if span.peer in self.slow else span for span in super().served()]

    def lose(self, peer: str) -> None:
        self.lost.add(peer)

    def connect(self, peer: str) -> "MortalLink":
        if peer in self.lost:
            raise PeerGoneError("The peer cannot be reached.")
        return MortalLink(self, peer, self._servers[peer])


class MortalLink(LocalLink):
    def __init__(self, swarm: MortalSwarm, peer: str, server: BlockServer) -> None:
        super().__init__(server)
        self._swarm, self._peer = swarm, peer

    def ask(self, body: Mapping[str, Any], tensors: Mapping) -> Answer:
        self._swarm.before(self._peer, str(body.get("do")))
        if self._peer in self._swarm.lost:
            self.close()
            raise PeerGoneError("The peer has closed the stream.")
        self._swarm.asked.append((self._peer, str(body.get("do"))))
        return self._swarm.changed(self._peer, super().ask(body, tensors))
