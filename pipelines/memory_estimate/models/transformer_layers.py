"""Layers of GPT-2, BERT, GPT-J and T5, operation by operation, as transformers computes them with sdpa attention.

Sizes: rows = batch x sequence, hidden, inner = heads x head_size, wide = feed-forward width.
"""

from pipelines.memory_estimate.models.autograd_tape import Tape, TapeBytes, Value, replay
from pipelines.memory_estimate.models.precision import ElementBytes
from pipelines.memory_estimate.models.transformer_sizes import TransformerSizes

STATISTICS = 8.0
"""Bytes that a normalisation keeps for each row: mean and deviation in float32."""


class TransformerLayers:
    """Describes the layers and the head for one micro-batch in one precision."""

    def __init__(self, sizes: TransformerSizes, batch: int, sequence: int, element: ElementBytes) -> None:
        self.sizes, self.batch, self.sequence, self.element = sizes, batch, sequence, element
        self.rows = batch * sequence
        self.stream = float(self.rows * sizes.hidden_size * element.stream)
        self.hidden = float(self.rows * sizes.hidden_size * element.compute)
        self.inner = float(self.rows * sizes.inner_size * element.compute)
        self.wide = float(self.rows * sizes.wide_size * element.compute)
        self.scores = float(batch * sizes.num_heads * sequence * sequence)

    def layer(self) -> TapeBytes:
        """Return the bytes of a layer of any family but `t5`."""
        families = {"gpt2": self._gpt2, "bert": self._bert, "albert": self._bert, "gptj": self._gptj}
        return replay((families | {"llama": self._llama})[self.sizes.family])

    def reversible_layer(self) -> float:
        """Return the most bytes while a layer is undone, were it reversible: seven streams and its larger branch."""

        def peak(branch: str) -> float:
            tape = Tape()
            x = tape.input(self.stream)
            normed = self.normalise(tape, x)
            output = self.attention(tape, [normed] * 3) if branch == "attention" else self.feed_forward(tape, normed)
            tape.drop(normed)
            tape.backward(output)
            return tape.peak + 7 * self.stream

        return max(peak("attention"), peak("feed-forward"))

    def _gpt2(self, tape: Tape) -> tuple[Value, ...]:
        x = tape.received(self.stream)
        normed = self.normalise(tape, x)
        attended = self.attention(tape, [normed] * 3)
        tape.drop(normed)
        middle = tape.add(x, attended, self.stream)
        tape.drop(x, attended)
        normed = self.normalise(tape, middle)
        fed = self.feed_forward(tape, normed)
        tape.drop(normed)
        out = tape.add(middle, fed, self.stream)
        tape.drop(middle, fed)
        return (out,)

    def _bert(self, tape: Tape) -> tuple[Value, ...]:
        x = tape.received(self.stream)
        casts = [self.cast(tape, x) for _ in range(3)]
        attended = self.attention(tape, casts, is_fused=False)
        tape.drop(*casts)
        middle = tape.add(attended, x, self.stream)
        tape.drop(attended, x)
        normed = tape.run(middle, out=self.stream, saves=(middle,), extra_saved=self.rows * STATISTICS)
        tape.drop(middle)
        cast = self.cast(tape, normed)
        fed = self.feed_forward(tape, cast)
        tape.drop(cast)
        total = tape.add(fed, normed, self.stream)
        tape.drop(fed, normed)
        out = tape.run(total, out=self.stream, saves=(total,), extra_saved=self.rows * STATISTICS)
        tape.drop(total)
        return (out,)

    def _gptj(self, tape: Tape) -> tuple[Value, ...]:
        x = tape.received(self.stream)
        normed = tape.run(x, out=self.stream, saves=(x,), extra_saved=self.rows * STATISTICS)
        casts = [self.cast(tape, normed) for _ in range(4)]
        attended = self._stored_attention(tape, casts[:3])
        fed = self.feed_forward(tape, casts[3])
        tape.drop(*casts, normed)
        both = tape.add(attended, fed, self.hidden)
        out = tape.add(both, x, self.stream)
        tape.drop(attended, fed, both, x)
        return (out,)

    def _llama(self, tape: Tape) -> tuple[Value, ...]:
        x = tape.received(self.stream)
        normed = self._normalise_in_steps(tape, x)
        attended = self._rotary_attention(tape, normed)
        tape.drop(normed)
        middle = tape.add(x, attended, self.stream)
        tape.drop(x, attended)
        normed = self._normalise_in_steps(tape, middle)
        fed = self._gated_feed_forward(tape, normed)
        tape.drop(normed)
        out = tape.add(middle, fed, self.stream)
        tape.drop(middle, fed)
        return (out,)

    def _rotary_attention(self, tape: Tape, x: Value) -> Value:
        keys = self.rows * self.sizes.key_value_size * self.element.compute
        query, key, value = (self._project(tape, x, size) for size in (self.inner, keys, keys))
        turned = [
            tape.run(part, out=part.size, scratch=2 * part.size, backward_scratch=part.size) for part in (query, key)
        ]
        tape.drop(query, key)
        inputs, statistics = (*turned, value), self.rows * self.sizes.num_heads * 4.0
        attended = tape.run(*inputs, out=self.inner, saves=inputs, saves_output=True, extra_saved=statistics)
        tape.drop(*inputs)
        return self._output(tape, attended)

    def _gated_feed_forward(self, tape: Tape, x: Value) -> Value:
        gate = self._project(tape, x, self.wide)
        opened = self._activation(tape, gate)
        tape.drop(gate)
        wide = self._project(tape, x, self.wide)
        product = tape.run(opened, wide, out=self.wide, saves=(opened, wide))
        tape.drop(opened, wide)
        return self._output(tape, product)

    def _project(self, tape: Tape, x: Value, size: float) -> Value:
        """Describe a product whose input autocast converts for it alone."""
        cast = self.cast(tape, x)
        projected = tape.run(cast, out=size, saves=(cast,))
        tape.drop(cast)
        return projected

    def normalise(self, tape: Tape, x: Value) -> Value:
        """Describe a normalisation and the cast of its output."""
        normed = tape.run(x, out=self.stream, saves=(x,), extra_saved=self.rows * STATISTICS)
        cast = self.cast(tape, normed)
        tape.drop(normed)
        return cast

    def _normalise_in_steps(self, tape: Tape, x: Value) -> Value:
        """weight * (x * rsqrt(mean(x ** 2))), in float32"""
        scaled = tape.run(
            x, out=self.stream, saves=(x,), extra_saved=self.rows * STATISTICS, backward_scratch=self.stream
        )
        normed = tape.run(scaled, out=self.stream, saves=(scaled,))
        tape.drop(scaled)
        return normed

    def cast(self, tape: Tape, value: Value) -> Value:
        """Describe autocast's conversion of a product's input: a view where there is none."""
        if self.element.compute == self.element.stream:
            return tape.view(value)
        return tape.run(value, out=value.size * self.element.compute / self.element.stream)

    def attention(self, tape: Tape, inputs: list[Value], *, is_fused: bool = True) -> Value:
        """Describe projections, fused attention and the output; `is_fused`: one product for queries, keys, values."""
        if is_fused:
            qkv = tape.run(inputs[0], out=3 * self.inner, saves=(inputs[0],))
            projected = tape.split(qkv, *[self.inner] * 3)
            tape.drop(qkv)
        else:
            projected = tuple(tape.run(value, out=self.inner, saves=(value,)) for value in inputs)
        attended = tape.run(
            *projected,
            out=self.inner,
            saves=projected,
            saves_output=True,
            extra_saved=self.rows * self.sizes.num_heads * 4.0,
        )
        tape.drop(*projected)
        return self._output(tape, attended)

    def _stored_attention(self, tape: Tape, inputs: list[Value]) -> Value:
        """Describe attention in plain steps, whose probabilities are stored, over turned queries and keys."""
        compute = self.element.compute
        is_pure_half = self.element.stream == 2
        values = []
        for place, value in enumerate(inputs):
            projected = tape.run(value, out=self.inner, saves=(value,))
            is_value = place == 2
            turned = projected if is_value else tape.run(projected, out=self.inner, backward_scratch=self.inner)
            # Queries and keys of a half model are multiplied in float32.
            size = self.inner * 2 if is_pure_half and not is_value else self.inner
            values.append(tape.run(turned, out=size))
            tape.drop(turned, *(() if is_value else (projected,)))
        query, key, value = values
        exact = 4 if is_pure_half else compute
        bare = tape.run(query, key, out=self.scores * exact, saves=(query, key))
        scaled = tape.run(bare, out=bare.size)
        tape.drop(bare)
        masked = tape.run(scaled, out=self.scores * 4)
        tape.drop(scaled)
        weights = tape.run(masked, out=self.scores * 4, saves_output=True)
        tape.drop(masked)
        if compute == 2:
            rounded = tape.run(weights, out=self.scores * 2)
            tape.drop(weights)
            weights = rounded
        attended = tape.run(weights, value, out=self.inner, saves=(weights, value))
        merged = tape.run(attended, out=self.inner)
        tape.drop(attended, weights, query, key, value)
        return self._output(tape, merged)

    def feed_forward(self, tape: Tape, x: Value) -> Value:
        """Describe the feed-forward layer without its normalisation."""
        inner = tape.run(x, out=self.wide, saves=(x,))
        activated = self._slow_gelu(tape, inner) if self.sizes.has_slow_gelu else self._activation(tape, inner)
        tape.drop(inner)
        return self._output(tape, activated)

    def _activation(self, tape: Tape, x: Value) -> Value:
        return tape.run(x, out=self.wide, saves=(x,))

    def _slow_gelu(self, tape: Tape, x: Value) -> Value:
        """0.5 * x * (1 + tanh(a * (x + b * x ** 3)))"""
        half = tape.run(x, out=self.wide)
        cube = tape.run(x, out=self.wide, saves=(x,), backward_scratch=self.wide)
        scaled = tape.run(cube, out=self.wide)
        tape.drop(cube)
        total = tape.add(x, scaled, self.wide)
        tape.drop(scaled)
        argument = tape.run(total, out=self.wide)
        tape.drop(total)
        tanh = tape.run(argument, out=self.wide, saves_output=True)
        tape.drop(argument)
        shifted = tape.run(tanh, out=self.wide)
        tape.drop(tanh)
        out = tape.run(half, shifted, out=self.wide, saves=(half, shifted))
        tape.drop(half, shifted)
        return out

    def _output(self, tape: Tape, x: Value) -> Value:
        out = tape.run(x, out=self.hidden, saves=(x,))
        tape.drop(x)
        if not self.sizes.has_dropout:
            return out
        dropped = tape.run(out, out=self.hidden, extra_saved=float(self.rows * self.sizes.hidden_size))
        tape.drop(out)
        return dropped

    def head(self) -> TapeBytes:
        """Return the bytes from the end of the layers to the loss."""

        def describe(tape: Tape) -> tuple[Value, ...]:
            x = tape.received(self.stream)
            hidden = self._end(tape, x)
            tape.drop(x)
            return self.loss(tape, hidden)

        return replay(describe)

    def _end(self, tape: Tape, x: Value) -> Value:
        if self.sizes.family in ("bert", "albert"):
            return self._bert_transform(tape, x)
        if self.sizes.family != "llama":
            return self.normalise(tape, x)
        normed = self._normalise_in_steps(tape, x)
        cast = self.cast(tape, normed)
        tape.drop(normed)
        return cast

    def _bert_transform(self, tape: Tape, x: Value) -> Value:
        cast = self.cast(tape, x)
        dense = tape.run(cast, out=self.hidden, saves=(cast,))
        activated = tape.run(dense, out=self.hidden, saves=(dense,))
        normed = tape.run(activated, out=self.hidden, saves=(activated,), extra_saved=self.rows * STATISTICS)
        tape.drop(cast, dense, activated)
        return normed

    def loss(self, tape: Tape, hidden: Value) -> tuple[Value, ...]:
        """Describe logits and cross-entropy in float32."""
        table = tape.input(float(self.sizes.table_size * self.element.weight))
        table.needs_gradient = self.sizes.has_tied_table
        number = float(self.rows * self.sizes.vocab_size)
        logits = tape.run(hidden, table, out=number * self.element.compute, saves=(hidden,))
        tape.drop(hidden)
        exact = logits if self.element.compute == 4 else tape.run(logits, out=number * 4)
        logarithms = tape.run(exact, out=number * 4, saves_output=True)
        loss = tape.run(logarithms, out=4.0, saves=(logarithms,))
        tape.drop(logarithms, logits, *(() if exact is logits else (exact,)))
        return (loss,)
