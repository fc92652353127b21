"""What a server does with each message of a client, whatever carries it: sizes are checked before memory is taken."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from pipelines.core.swarm.streams.quotas import Quota
from pipelines.core.swarm.streams.refusals import Refusal
from pipelines.core.swarm.streams.stream_clients import StreamClient
from pipelines.features.serving.blocks.causal_span import MOST_POSITIONS, CausalSession
from pipelines.features.serving.blocks.codecs import CODECS, WrongStatesError, check_codec, decode, encode
from pipelines.features.serving.blocks.spans import InvalidRequestError, LayerSpan, Padding, SpanSession, whole_number

MOST_DEEP_PROMPTS = 1024
"""Positions of learned prompts."""

Answer = tuple[dict[str, object], dict[str, Tensor]]


@dataclass(frozen=True, kw_only=True)
class BlockServer:
    """A span that is served, with what its clients may take."""

    span: LayerSpan
    revision: str
    memory: Quota
    """Bytes of caches and passes, of each peer and in all."""

    def about(self) -> dict[str, object]:
        """Return what a client is told when it opens a stream."""
        layers, shape = self.span.layers, self.span.shape
        return dict(
            span=[layers.start, layers.stop],
            revision=self.revision,
            num_layers=shape.num_layers,
            hidden_size=shape.hidden_size,
            codecs=list(CODECS),
            free_cache_bytes=self.memory.free,
        )


class BlockSession:
    """One stream's state: all that it holds is given back by `close`. For use by one thread at a time."""

    def __init__(self, server: BlockServer, client: StreamClient) -> None:
        self._server, self._client = server, client
        self._session: SpanSession | None = None
        self._taken = 0
        self._codec, self._padding = "", Padding()
        self._part = server.span

    def answer(self, body: Mapping[str, object], tensors: Mapping[str, Tensor]) -> Answer:
        """Do what a message says.

        Raises:
            Refusal: the message asks for something that is not served, or has another form than it may have.
        """
        doing = {
            "open": self._open,
            "prefill": self._prefill,
            "start": self._start,
            "step": self._step,
            "replay": self._replay,
            "reorder": self._reorder,
            "close": self._end,
            "forward": self._forward,
            "backward": self._backward,
        }.get(str(body.get("do")))
        if doing is None:
            raise Refusal("invalid", f"There is nothing to do such as {str(body.get('do'))[:40]!r}.")
        try:
            return doing(body, tensors)
        except (InvalidRequestError, WrongStatesError) as error:
            raise Refusal("invalid", str(error)) from error

    def close(self) -> None:
        """Forget the session, and give back its memory."""
        self._session = None
        self._server.memory.give_back(self._client, self._taken)
        self._taken = 0

    def _open(self, body: Mapping[str, object], tensors: Mapping[str, Tensor]) -> Answer:
        self.close()
        self._check_layers(body)
        session = self._part.session(body, self._prompts(tensors))
        self._take(session.num_bytes(body))
        self._session = session
        return {}, {}

    def _start(self, body: Mapping[str, object], tensors: Mapping[str, Tensor]) -> Answer:
        session = self._opened()
        self._take(session.num_bytes(body))
        session.start(body)
        return {}, {}

    def _prefill(self, body: Mapping[str, object], tensors: Mapping[str, Tensor]) -> Answer:
        session = self._opened()
        states = self._states(session, body, tensors)
        return self._encoded(session.prefill(states, body))

    def _step(self, body: Mapping[str, object], tensors: Mapping[str, Tensor]) -> Answer:
        session = self._opened()
        states = self._states(session, body, tensors)
        places = _integers(tensors, "places", (states.shape[1], states.shape[2]))
        with self._server.memory.taken_during(self._client, session.step_bytes(states.shape[2])):
            return self._encoded(session.step(states, places, self._padding))

    def _replay(self, body: Mapping[str, object], tensors: Mapping[str, Tensor]) -> Answer:
        session = self._opened()
        states = self._states(session, body, tensors)
        with self._server.memory.taken_during(self._client, session.replay_bytes(states.shape[2])):
            answer = session.replay(states, _integers(tensors, "num_read", (states.shape[1],)), self._padding)
        return self._encoded(answer) if body.get("answer") is True else ({}, {})

    def _reorder(self, body: Mapping[str, object], tensors: Mapping[str, Tensor]) -> Answer:
        session = self._opened()
        if not isinstance(session, CausalSession):
            raise InvalidRequestError("Candidates have no order to change.")
        session.reorder(_integers(tensors, "rows", (session.num_samples,)))
        return {}, {}

    def _end(self, body: Mapping[str, object], tensors: Mapping[str, Tensor]) -> Answer:
        self.close()
        return {}, {}

    def _forward(self, body: Mapping[str, object], tensors: Mapping[str, Tensor]) -> Answer:
        with self._sequence(body, tensors) as (states, padding, prompts), torch.no_grad():
            return self._encoded(self._part.forward(states, padding, prompts))

    def _backward(self, body: Mapping[str, object], tensors: Mapping[str, Tensor]) -> Answer:
        if not self._server.span.has_gradients:
            raise Refusal("no room", "This server's weights have 8 bits, with which it computes no gradients.")
        with self._sequence(body, tensors) as (states, padding, prompts):
            grads = decode(_named(tensors, "grads."), self._codec, tuple(states.shape))
            states.requires_grad_()
            inputs = [states] if prompts is None else [states, prompts.requires_grad_()]
            with torch.enable_grad():
                out = self._part.forward(states, padding, prompts)
            found = torch.autograd.grad(out, inputs, grads.to(out.device))
            answer, parts = self._encoded(found[0])
            if prompts is not None:
                parts["prompts"] = found[1]
            return answer, parts

    @contextlib.contextmanager
    def _sequence(
        self, body: Mapping[str, object], tensors: Mapping[str, Tensor]
    ) -> Iterator[tuple[Tensor, Padding, Tensor | None]]:
        """Check a message with whole sequences; their memory is taken during the block."""
        self._check_layers(body)
        samples = whole_number(body, "samples", 1, 2**16)
        positions = whole_number(body, "positions", 1, 2**20)
        needed = self._part.check_sequence(samples, positions)
        prompts = self._prompts(tensors)
        padding = _padding(tensors, samples, positions, positions)
        with self._server.memory.taken_during(self._client, needed):
            states = decode(tensors, self._codec, self._part.shape.states(samples, positions))
            yield states, padding, prompts

    def _check_layers(self, body: Mapping[str, object]) -> None:
        """Check which part of the span a message is about, for which revision, and in which codec."""
        span, revision = self._server.span, self._server.revision
        if body.get("revision") != revision:
            raise Refusal(
                "revision",
                f"This server has revision {revision[:12]}, not {str(body.get('revision'))[:12]}.",
            )
        start = whole_number(body, "start", span.layers.start, span.layers.stop - 1)
        end = whole_number(body, "end", start + 1, span.layers.stop)
        try:
            check_codec(body.get("codec"))  # type: ignore[arg-type]  # what a stranger sends may be anything
        except ValueError as error:
            raise InvalidRequestError(str(error)) from error
        self._codec = str(body["codec"])
        self._part = span if range(start, end) == span.layers else span.part(range(start, end))

    def _prompts(self, tensors: Mapping[str, Tensor]) -> Tensor | None:
        """Return learned prompts of these layers, (layer, place, hidden) float32, if there are any."""
        prompts = tensors.get("prompts")
        if prompts is None:
            return None
        num_places = prompts.shape[1] if prompts.dim() == 3 else 0
        expected = (len(self._part.layers), num_places, self._part.shape.hidden_size)
        if (
            prompts.dtype != torch.float32
            or not 1 <= num_places <= MOST_DEEP_PROMPTS
            or tuple(prompts.shape) != expected
            or not prompts.isfinite().all()
        ):
            raise InvalidRequestError(f"Prompts are {tuple(prompts.shape)}, expected finite float32 {expected}.")
        return prompts

    def _opened(self) -> SpanSession:
        if self._session is None:
            raise InvalidRequestError("There is no session, expected an open.")
        return self._session

    def _states(self, session: SpanSession, body: Mapping[str, object], tensors: Mapping[str, Tensor]) -> Tensor:
        shape = session.expected(body)
        seen = session.cache.get_seq_length() if isinstance(session, CausalSession) else 0
        self._padding = _padding(tensors, shape[1], shape[2], seen + shape[2])
        return decode(tensors, self._codec, shape)

    def _take(self, total: int) -> None:
        """Hold `total` bytes from now on, which may be more or less than before."""
        if total > self._taken:
            self._server.memory.take(self._client, total - self._taken)
        else:
            self._server.memory.give_back(self._client, self._taken - total)
        self._taken = total

    def _encoded(self, states: Tensor) -> Answer:
        if not states.isfinite().all():
            raise Refusal("failed", "The states behind this span are not finite: its weights are damaged.")
        return {}, encode(states, self._codec)


def _integers(tensors: Mapping[str, Tensor], name: str, shape: tuple[int, ...]) -> Tensor:
    tensor = tensors.get(name)
    if tensor is None or tensor.dtype != torch.int64 or tuple(tensor.shape) != shape or (tensor < 0).any():
        seen = "nothing" if tensor is None else f"{tensor.dtype} {tuple(tensor.shape)}"
        raise InvalidRequestError(f"{name} is {seen}, expected int64 {shape} of at least 0.")
    return tensor


def _padding(tensors: Mapping[str, Tensor], samples: int, positions: int, length: int) -> Padding:
    """Return what a message says about padding: of `length` positions in all, of which the last ones come now."""
    mask, places = tensors.get("mask"), tensors.get("positions")
    if mask is not None and (mask.dtype != torch.uint8 or tuple(mask.shape) != (samples, length) or (mask > 1).any()):
        raise InvalidRequestError(f"The mask is {mask.dtype} {tuple(mask.shape)}, expected ones and zeros, uint8.")
    if places is not None and places.dim() == 2 and len(places) in (1, samples):
        _integers(tensors, "positions", (len(places), positions))
    elif places is not None:
        raise InvalidRequestError(f"positions are {tuple(places.shape)}, expected {(samples, positions)}.")
    if places is not None and (places >= MOST_POSITIONS).any():
        raise InvalidRequestError(f"positions are up to {int(places.max())}, expected less than {MOST_POSITIONS}.")
    return Padding(mask=mask, positions=places)


def _named(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
