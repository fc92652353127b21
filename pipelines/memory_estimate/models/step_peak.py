"""The highest moment of a forward and backward pass, from its pieces: embedding, layers, head."""

from dataclasses import dataclass

from pipelines.memory_estimate.models.autograd_tape import TapeBytes


@dataclass(frozen=True, kw_only=True)
class WeightCopies:
    """Half copies of float32 weights that autocast makes: it keeps them to the end of the forward pass, autograd those
    that it saved to their backward pass."""

    forward: float = 0.0
    """Of all weights."""
    head: float = 0.0
    """Saved by the head."""
    layers: float = 0.0
    """Held while a stored or checkpointed layer is run backwards."""


@dataclass(frozen=True, kw_only=True)
class StepPieces:
    """Bytes of the pieces of a step, in the order of the forward pass."""

    always: float
    """Held from begin to end: masks, positions."""
    layers: tuple[TapeBytes, ...]
    """Layers whose activations autograd sees: all of them, or those after the reversible ones."""
    boundary: float | None = None
    """With checkpointing: what is stored at the entry of each layer, in place of all it saves."""
    boundary_inside: float = 0.0
    """The part of the boundary that the layer's own bytes hold as well."""
    reversible_end: float = 0.0
    """Saved at the end of the reversible layers."""
    undoing: float = 0.0
    """Most bytes while a reversible layer is undone, the saved end included."""
    head: TapeBytes
    """From the last layer to the loss."""
    copies: WeightCopies = WeightCopies()
    """Half copies of the weights."""
    waiting_gradient: float = 0.0
    """The head's gradient of a tied table, which waits for the embedding's."""
    embedding: float = 0.0
    """The embedding's backward pass: gradient of its table, where that is not the parameter's own, and its input."""


def step_peak(pieces: StepPieces) -> float:
    """Return the most bytes at any time of the step."""
    checkpointed = pieces.boundary is not None
    stored = pieces.always + pieces.reversible_end
    moments = [pieces.always + pieces.undoing + pieces.waiting_gradient]
    for layer in pieces.layers:
        own = pieces.boundary - pieces.boundary_inside if checkpointed else 0.0
        moments.append(stored + own + layer.forward_peak)
        moments.append(stored + own + pieces.waiting_gradient + pieces.copies.layers + layer.backward_peak)
        stored += pieces.boundary if checkpointed else layer.saved
    moments.append(stored + pieces.copies.forward + pieces.head.forward_peak)
    held = stored + (0.0 if checkpointed else pieces.copies.layers)
    moments.append(held + pieces.copies.head + pieces.head.backward_peak)
    moments.append(pieces.always + pieces.waiting_gradient + pieces.embedding)
    return max(moments)
