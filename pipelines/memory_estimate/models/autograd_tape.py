"""What autograd holds: a replay, in bytes only, of one layer's operations and their backward pass.

A layer's description lists its operations in the order of the model's code. The tape tells how many bytes stay for the
backward pass and how high forward and backward pass rise above that. Gradients of parameters are not counted here, but
if several layers share a weight, each layer's part of its gradient is temporarily a separate tensor.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass
class _Storage:
    size: float
    references: int = 0


@dataclass(eq=False)
class Value:
    """A tensor on the tape; views share their storage."""

    storage: _Storage
    size: float
    """Bytes of this tensor, of which a view may have fewer than its storage."""
    needs_gradient: bool = True


@dataclass
class _Node:
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    saved: tuple[Value, ...] = ()
    scratch: float = 0.0
    weight: float = 0.0
    passes_gradient: bool = False


@dataclass(frozen=True, kw_only=True)
class TapeBytes:
    """Bytes of a replayed piece of a model, its inputs not counted."""

    saved: float
    """Bytes that stay from its forward to its backward pass."""
    forward_peak: float
    """Most bytes at any time of its forward pass."""
    backward_peak: float
    """Most bytes at any time of its backward pass: what is still saved, gradients of activations, temporaries."""
    left: float
    """Bytes at the end of its backward pass: the gradients of its inputs."""


@dataclass
class Tape:
    """Records operations; `replay` makes one, runs a description on it, and gives the bytes."""

    keeps_weight_gradients: bool = False
    """Gradients of shared weights: kept to the end of the piece, or added at once to what other layers gave."""
    live: float = 0.0
    peak: float = 0.0
    nodes: list[_Node] = field(default_factory=list)
    _gradients: dict[int, _Storage] = field(default_factory=dict)

    def input(self, size: float) -> Value:
        """Return a tensor that the piece receives and that others count."""
        return Value(_Storage(0.0, references=1), size)

    def received(self, size: float) -> Value:
        """Return a tensor that the piece receives and counts: it stays if something here saves it."""
        return self._new(size, needs_gradient=True)

    def run(
        self,
        *inputs: Value,
        out: float,
        saves: Sequence[Value] = (),
        saves_output: bool = False,
        extra_saved: float = 0.0,
        scratch: float = 0.0,
        backward_scratch: float = 0.0,
        weight: float = 0.0,
    ) -> Value:
        """Compute a new tensor of `out` bytes.

        `saves` are tensors kept for the backward pass, `extra_saved` bytes of another output that is kept (statistics,
        dropout masks), `scratch` and `backward_scratch` temporaries while the operation runs, `weight` the bytes of the
        gradient of a shared weight.
        """
        output = self._new(out, needs_gradient=any(value.needs_gradient for value in inputs))
        kept = [*saves, *([output] if saves_output else [])]
        if extra_saved:
            kept.append(self._new(extra_saved, needs_gradient=False))
        self._rise(scratch)
        self._record(_Node(inputs, (output,), tuple(kept), backward_scratch, weight))
        if extra_saved:
            self.drop(kept[-1])
        return output

    def view(self, value: Value) -> Value:
        """Return a view of all of a tensor."""
        value.storage.references += 1
        output = Value(value.storage, value.size, value.needs_gradient)
        self._record(_Node((value,), (output,), passes_gradient=True))
        return output

    def split(self, value: Value, *sizes: float) -> tuple[Value, ...]:
        """Return views of a tensor's parts; their gradients are joined in a new tensor."""
        value.storage.references += len(sizes)
        outputs = tuple(Value(value.storage, size, value.needs_gradient) for size in sizes)
        self._record(_Node((value,), outputs))
        return outputs

    def add(self, first: Value, second: Value, size: float) -> Value:
        """Return a sum, of which nothing is saved and whose gradient goes on to both as it is."""
        output = self._new(size, needs_gradient=first.needs_gradient or second.needs_gradient)
        self._record(_Node((first, second), (output,), passes_gradient=first.size == second.size == size))
        return output

    def join(self, *parts: Value) -> Value:
        """Return a new tensor of all parts; their gradients are views of its gradient."""
        output = self._new(sum(part.size for part in parts), needs_gradient=any(part.needs_gradient for part in parts))
        self._record(_Node(parts, (output,), passes_gradient=True))
        return output

    def drop(self, *values: Value) -> None:
        """End the forward pass's own references to these tensors."""
        for value in values:
            self._release(value.storage)

    def _new(self, size: float, *, needs_gradient: bool) -> Value:
        self._rise(size)
        self.live += size
        return Value(_Storage(size, references=1), size, needs_gradient)

    def _record(self, node: _Node) -> None:
        if any(output.needs_gradient for output in node.outputs):
            for value in node.saved:
                value.storage.references += 1
            self.nodes.append(node)

    def _rise(self, size: float) -> None:
        self.peak = max(self.peak, self.live + size)

    def _release(self, storage: _Storage) -> None:
        storage.references -= 1
        if storage.references == 0:
            self.live -= storage.size

    def backward(self, *outputs: Value) -> None:
        """Run the nodes backwards; the gradients of `outputs` are there from the start."""
        for output in outputs:
            self._gradients[id(output)] = self._gradient(output.size)
        while self.nodes:
            node = self.nodes.pop()
            arriving = [self._gradients.pop(id(output)) for output in node.outputs if id(output) in self._gradients]
            if arriving:
                self.live += node.scratch
                for value in node.inputs:
                    if value.needs_gradient:
                        self._send(value, arriving[0] if node.passes_gradient else None)
                self._rise(node.weight)
                self.live += (node.weight if self.keeps_weight_gradients else 0.0) - node.scratch
            for gradient in arriving:
                self._release(gradient)
            for value in node.saved:
                self._release(value.storage)

    def _gradient(self, size: float) -> _Storage:
        self._rise(size)
        self.live += size
        return _Storage(size, references=1)

    def _send(self, value: Value, passed: _Storage | None) -> None:
        if passed is None:
            new = self._gradient(value.size)
        else:
            passed.references += 1
            new = passed
        waiting = self._gradients.get(id(value))
        if waiting is None:
            self._gradients[id(value)] = new
            return
        # Autograd adds in place if nothing else refers to the gradient that waits.
        total = waiting if waiting.references == 1 else self._gradient(value.size)
        if total is not waiting:
            self._release(waiting)
        self._release(new)
        self._gradients[id(value)] = total


def replay(describe: Callable[[Tape], tuple[Value, ...]]) -> TapeBytes:
    """Run a description, which returns the piece's outputs, forward and backward.

    An output stays after the forward pass only if the piece saved it: the next piece counts what it receives.
    """
    tape = Tape()
    outputs = describe(tape)
    forward_peak = tape.peak
    tape.drop(*outputs)
    saved = tape.peak = tape.live
    tape.backward(*outputs)
    return TapeBytes(saved=saved, forward_peak=forward_peak, backward_peak=tape.peak, left=tape.live)
