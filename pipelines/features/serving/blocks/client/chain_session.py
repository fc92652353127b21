"""One generation across a chain of servers, which goes on where it was when one of them is lost.

What was sent into each hop is kept as it went over the wire. A new server gets it again and reads it in few large
passes; beyond a limit only what went into the first hop is kept, and the whole chain is built anew from that.

Axes: stream, sample, place, hidden.
"""

import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from pipelines.core.swarm.streams.refusals import PeerGoneError, Refusal
from pipelines.features.serving.blocks import codecs
from pipelines.features.serving.blocks.client.audits import BlockAudits
from pipelines.features.serving.blocks.client.history import History, Recording
from pipelines.features.serving.blocks.client.route import Route, ServerLink
from pipelines.features.serving.blocks.routing import Hop
from pipelines.features.serving.blocks.spans import StackShape

logger = logging.getLogger(__name__)

Between = Mapping[int, Callable[[Tensor], Tensor]]
"""What changes the states, (stream, sample, position, hidden), before a layer; one position at a time."""

LOST = (PeerGoneError, Refusal)


@dataclass
class LiveHop:
    """A server's part of the chain, with its stream."""

    hop: Hop
    link: ServerLink
    recording: Recording


class ChainSession:
    """The caches of one generation, wherever they are. Use it from one thread; `close` gives them back."""

    def __init__(
        self,
        route: Route,
        shape: StackShape,
        opening: Mapping[str, object],
        *,
        codec: str,
        between: Between,
        deep_prompts: Tensor | None,
        history_bytes: int,
        first_place: int = 0,
        audits: BlockAudits | None = None,
    ) -> None:
        self._audits = audits
        self._route, self._codec, self._between = route, codec, dict(between)
        self._opening, self._deep_prompts = dict(opening), deep_prompts
        self._history_bytes, self._first_place = history_bytes, first_place
        self._starting: dict[str, object] | None = None
        self._mask: Tensor | None = None
        self._positions: Tensor | None = None
        self._is_recorded = True
        self._hops = self._revive(Recording(), range(shape.num_layers), None)

    def prefill(self, states: Tensor, body: Mapping[str, object]) -> Tensor:
        """Read prompts, (stream, prompt, position, hidden); return the states behind all layers."""
        message = dict(body, do="prefill", prompts=states.shape[1])

        def ask(live: LiveHop, states: Tensor) -> Tensor:
            parts, shape = codecs.encode(states, self._codec), tuple(states.shape)
            answer = self._asked(live.link, message, parts, shape)
            self._audit(live.hop, parts, shape, answer, {})
            live.recording.prompts.append((message, parts, shape))
            return answer

        return self._through(states, ask, None)

    def start(self, body: Mapping[str, object]) -> None:
        """Begin with a batch of candidates; what was read before by other candidates is forgotten."""
        self._starting, self._is_recorded = dict(body, do="start"), True
        starting = self._starting
        for live in self._hops:
            live.recording.history = None
        self._each(lambda live: live.link.ask(starting, {}))

    def step(self, states: Tensor, places: Tensor, padding: Mapping[str, Tensor] | None = None) -> Tensor:
        """Read states (stream, sample, step, hidden) of places (sample, step); return those behind all layers.

        `padding` are the tensors `mask` and `positions` of `Padding`.
        """
        message, more = dict(do="step", steps=states.shape[2]), {"places": places} | dict(padding or {})

        def ask(live: LiveHop, states: Tensor) -> Tensor:
            parts, shape = codecs.encode(states, self._codec), tuple(states.shape)
            answer = self._asked(live.link, message, parts | more, shape)
            if self._starting is None and live.recording.history is None:  # the prompt of a language model
                self._audit(live.hop, parts, shape, answer, padding or {})
            self._keep(live, parts, places)
            return answer

        out = self._through(states, ask, places[:, 0])
        self._remember(padding or {})
        return out

    def _remember(self, padding: Mapping[str, Tensor]) -> None:
        """Keep what was said about padding: a replay says it again."""
        self._mask = padding.get("mask")
        if (positions := padding.get("positions")) is not None:
            before = positions[:, :0] if self._positions is None else self._positions
            self._positions = torch.cat([before, positions], dim=1)

    def _audit(
        self,
        hop: Hop,
        parts: Mapping[str, Tensor],
        shape: tuple[int, ...],
        answer: Tensor,
        padding: Mapping[str, Tensor],
    ) -> None:
        """Have others check what a server has made of a prompt; raises PeerGoneError if it has lied."""
        if self._audits is None or not self._audits.wants():
            return

        def repeat(other: Hop) -> Tensor:
            _, opening = self._open_message(other)
            body = dict(
                do="forward", start=hop.start, end=hop.end, revision=self._route.revision, codec=self._codec,
                samples=shape[1], positions=shape[2],
            )  # fmt: skip
            _, found = self._route.ask(other, body, {**parts, **padding, **opening})
            return states_of(found, self._codec, shape)

        verdict = self._audits.judge(hop, answer, self._route.others(hop), repeat)
        if verdict.liar == hop:
            raise PeerGoneError(f"Two other servers contradict {hop.peer}.")

    def reorder(self, rows: Tensor) -> None:
        """Go on with these samples in place of all, (sample,) int64."""

        def ask(live: LiveHop) -> None:
            live.link.ask(dict(do="reorder"), {"rows": rows})
            if live.recording.history is not None:
                live.recording.history.reorder(rows)

        self._each(ask)
        if self._mask is not None:
            self._mask = self._mask[rows]
        if self._positions is not None and len(self._positions) > 1:
            self._positions = self._positions[rows]

    @property
    def hops(self) -> list[Hop]:
        """The chain as it is now."""
        return [live.hop for live in self._hops]

    def close(self) -> None:
        """End all streams."""
        for live in self._hops:
            live.link.close()
        self._hops = []

    def _keep(self, live: LiveHop, parts: Mapping[str, Tensor], places: Tensor) -> None:
        """Record what a hop was sent, as far as that is not too much."""
        is_first = live is self._hops[0]
        if not (self._is_recorded or is_first):
            return
        if live.recording.history is None:
            live.recording.history = History(self._first_place)
        live.recording.history.write(parts, places)
        kept = sum(one.recording.history.num_bytes for one in self._hops if one.recording.history is not None)
        if self._is_recorded and kept > self._history_bytes:
            logger.info("Of %d bytes only what went into the first server is kept from now on.", kept)
            self._is_recorded = False
            for one in self._hops[1:]:
                one.recording.history = None

    def _through(self, given: Tensor, ask: Callable[[LiveHop, Tensor], Tensor], num_read: Tensor | None) -> Tensor:
        """Send states through all hops; replace those that fail, as they were when `num_read` places were read."""
        at, states = 0, self._changed(0, given)
        while at < len(self._hops):
            live = self._hops[at]
            try:
                states = ask(live, states)
            except LOST as error:
                if self._replace(at, error, num_read):
                    at, states = 0, self._changed(0, given)
                continue
            at += 1
            states = self._changed(live.hop.end, states)
        return states

    def _each(self, ask: Callable[[LiveHop], object]) -> None:
        """Ask all hops; one that fails is replaced by servers that do as it did, and then asked as well."""
        at = 0
        while at < len(self._hops):
            try:
                ask(self._hops[at])
            except LOST as error:
                history = self._hops[at].recording.history
                num_read = None if history is None else torch.full((history.num_samples,), history.end)
                self._replace(at, error, num_read)
                continue
            at += 1

    def _replace(self, at: int, error: Exception, num_read: Tensor | None) -> bool:
        """Put others in a lost server's place; return whether all before it are new as well."""
        lost = self._hops[at]
        self._route.avoid(lost.hop.peer, error)
        was_read = num_read is not None and int(num_read.max()) > self._first_place
        begin = at if lost.recording.history is not None or not was_read else 0
        first = self._hops[begin]
        for live in self._hops[begin : at + 1]:
            live.link.close()
        self._hops[begin : at + 1] = self._revive(first.recording, range(first.hop.start, lost.hop.end), num_read)
        if not self._is_recorded:  # nothing would be added to what new hops were sent
            for live in self._hops[1:]:
                live.recording.history = None
        return begin < at

    def _revive(self, recording: Recording, layers: range, num_read: Tensor | None) -> list[LiveHop]:
        """Open sessions along a chain and have them read what was recorded; another server whenever one fails."""
        edges = [layer for layer in sorted(self._between) if layers.start < layer < layers.stop] + [layers.stop]
        opened: list[LiveHop] = []
        at = layers.start
        with contextlib.ExitStack() as if_it_fails:
            while at < layers.stop:
                hop = self._route.chain(range(at, next(edge for edge in edges if edge > at)))[0]
                try:
                    link = self._route.connect(hop)
                    if_it_fails.callback(link.close)
                    link.ask(*self._open_message(hop))
                    passed_on = self._read_again(recording, hop, link, num_read, is_last=hop.end == layers.stop)
                except LOST as error:
                    self._route.avoid(hop.peer, error)
                    continue
                opened.append(LiveHop(hop=hop, link=link, recording=recording))
                self._route.took_part.add(hop)
                at = hop.end
                if at < layers.stop:
                    recording = self._recorded(passed_on, at)
            if_it_fails.pop_all()
        return opened

    def _open_message(self, hop: Hop) -> tuple[dict[str, object], dict[str, Tensor]]:
        body = dict(
            self._opening, do="open", start=hop.start, end=hop.end, revision=self._route.revision, codec=self._codec
        )
        if self._deep_prompts is None:
            return body, {}
        return body, {"prompts": self._deep_prompts.detach()[hop.start : hop.end].contiguous()}

    def _read_again(
        self, recording: Recording, hop: Hop, link: ServerLink, num_read: Tensor | None, *, is_last: bool
    ) -> tuple[list[tuple[dict[str, object], Tensor]], Tensor | None]:
        """Have a server read what was recorded; return what it made of the prompts and, unless last, the rest."""
        prompts = []
        for message, parts, shape in recording.prompts:
            prompts.append((message, self._asked(link, message, parts, shape)))
            self._audit(hop, parts, shape, prompts[-1][1], {})
        if self._starting is not None:
            link.ask(self._starting, {})
        history = recording.history
        if history is None or num_read is None or int(num_read.max()) == self._first_place:
            return prompts, None
        parts = history.until(int(num_read.max()))
        shape = tuple(parts["values"].shape)
        message = dict(do="replay", places=shape[2], answer=not is_last)
        tensors = parts | {"num_read": num_read}
        if self._mask is not None:
            tensors["mask"] = self._mask
        if self._positions is not None:
            tensors["positions"] = self._positions
        if is_last:
            link.ask(message, tensors)
            return prompts, None
        return prompts, self._asked(link, message, tensors, shape)

    def _recorded(
        self, passed_on: tuple[list[tuple[dict[str, object], Tensor]], Tensor | None], layer: int
    ) -> Recording:
        """Return the recording of the next hop, which begins at `layer`."""
        prompts, rest = passed_on
        recording = Recording()
        for message, states in prompts:
            states = self._changed(layer, states)
            recording.prompts.append((message, codecs.encode(states, self._codec), tuple(states.shape)))
        if rest is not None:
            recording.history = History(self._first_place)
            places = self._first_place + torch.arange(rest.shape[2]).expand(rest.shape[1], -1)
            recording.history.write(codecs.encode(self._changed(layer, rest), self._codec), places)
        return recording

    def _changed(self, layer: int, states: Tensor) -> Tensor:
        """Return the states as they go into a layer, or behind the last one."""
        change = self._between.get(layer)
        return states if change is None else change(states)

    def _asked(
        self, link: ServerLink, body: Mapping[str, object], tensors: Mapping[str, Tensor], shape: tuple[int, ...]
    ) -> Tensor:
        """Ask for states, and check them: a server may send anything."""
        return states_of(link.ask(body, tensors)[1], self._codec, shape)


def states_of(parts: Mapping[str, Tensor], codec: str, shape: tuple[int, ...]) -> Tensor:
    """Return the states in a server's answer; raises PeerGoneError for what are none, as if it had not answered."""
    try:
        return codecs.decode(parts, codec, shape)
    except codecs.WrongStatesError as error:
        raise PeerGoneError(f"The server has answered with what are no hidden states: {error}") from error
