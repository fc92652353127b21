"""Layers of T5, operation by operation.

Its position bias is trained, and PyTorch has no fused kernel on every device that takes a trained bias: probabilities
are counted as stored. Between decoder and encoder there is no bias, and attention is fused.
"""

from collections.abc import Callable

from pipelines.memory_estimate.models.autograd_tape import Tape, TapeBytes, Value, replay
from pipelines.memory_estimate.models.transformer_layers import TransformerLayers


class T5Layers(TransformerLayers):
    """Describes encoder layers, decoder layers and the head."""

    def encoder_layer(self) -> TapeBytes:
        """Return the bytes of a layer of the encoder."""
        return replay(lambda tape: (self._layer(tape, None),))

    def decoder_layer(self) -> TapeBytes:
        """Return the bytes of a layer of the decoder, which also attends to the encoder's output."""
        return replay(lambda tape: (self._layer(tape, tape.input(self.stream)),))

    def encoder_end(self) -> TapeBytes:
        """Return the bytes of the normalisation of the encoder's output, which all decoder layers use."""

        def describe(tape: Tape) -> tuple[Value, ...]:
            x = tape.received(self.stream)
            normed = self.normalise(tape, x)
            out = tape.run(normed, out=4.0, saves=(normed,))
            tape.drop(x, normed)
            return (out,)

        return replay(describe)

    def _layer(self, tape: Tape, encoded: Value | None) -> Value:
        x = tape.received(self.stream)
        x = self._branch(tape, x, lambda normed: self._self_attention(tape, normed))
        if encoded is not None:
            x = self._branch(tape, x, lambda normed: self._cross_attention(tape, normed, encoded))
        return self._branch(tape, x, lambda normed: self._feed_forward(tape, normed))

    def _branch(self, tape: Tape, x: Value, compute: Callable[[Value], Value]) -> Value:
        normed = self._scaled_norm(tape, x)
        added = compute(normed)
        tape.drop(normed)
        out = tape.add(x, added, self.stream)
        tape.drop(x, added)
        return out

    def normalise(self, tape: Tape, x: Value) -> Value:
        """Describe a normalisation without mean and the cast of its output."""
        normed = self._scaled_norm(tape, x)
        cast = self.cast(tape, normed)
        tape.drop(normed)
        return cast

    def _scaled_norm(self, tape: Tape, x: Value) -> Value:
        squares = tape.run(x, out=self.stream, saves=(x,), backward_scratch=self.stream)
        deviation = tape.run(squares, out=self.rows * 4.0, saves_output=True)
        tape.drop(squares)
        unit = tape.run(x, deviation, out=self.stream, saves=(x, deviation))
        out = tape.run(unit, out=self.stream, saves=(unit,), backward_scratch=self.stream)
        tape.drop(deviation, unit)
        return out

    def _cross_attention(self, tape: Tape, x: Value, source: Value) -> Value:
        """Describe fused attention of `x` to `source`."""
        casts = [self.cast(tape, place) for place in (x, source, source)]
        attended = self.attention(tape, casts, is_fused=False)
        tape.drop(*casts)
        return attended

    def _self_attention(self, tape: Tape, x: Value) -> Value:
        """Describe attention whose probabilities are stored."""
        exact = self.inner * 4 / self.element.compute  # PyTorch computes this attention in float32 for half types too
        copies = []
        for _ in range(3):
            cast = self.cast(tape, x)
            projected = tape.run(cast, out=self.inner, saves=(cast,))
            copies.append(tape.run(projected, out=exact))
            tape.drop(cast, projected)
        query, key, value = copies
        bare = tape.run(query, key, out=self.scores * 4, saves=(query, key))
        biased = tape.run(bare, out=self.scores * 4)
        tape.drop(bare)
        weights = tape.run(biased, out=self.scores * 4, saves_output=True)
        tape.drop(biased)
        attended = tape.run(weights, value, out=self.inner, saves=(weights, value))
        merged = tape.run(attended, out=self.inner)
        tape.drop(query, key, value, weights, attended)
        return self._output(tape, merged)

    def _feed_forward(self, tape: Tape, x: Value) -> Value:
        cast = self.cast(tape, x)
        activate = self._slow_gelu if self.sizes.has_slow_gelu else self._relu
        inner = tape.run(cast, out=self.wide, saves=(cast,))
        activated = activate(tape, inner)
        tape.drop(inner)
        if self.sizes.is_gated:
            other_cast = self.cast(tape, x)
            linear = tape.run(other_cast, out=self.wide, saves=(other_cast,))
            gated = tape.run(activated, linear, out=self.wide, saves=(activated, linear))
            tape.drop(other_cast, linear, activated)
            activated = gated
        tape.drop(cast)
        return self._output(tape, activated)

    def _relu(self, tape: Tape, x: Value) -> Value:
        return tape.run(x, out=self.wide, saves_output=True)
