"""The layers of our model, operation by operation, as `modeling_dalle_collab` computes them.

Sizes: batch, rows = batch x positions, hidden, inner = heads x head_dim, wide = feed-forward width, text block, image.
"""

from collections.abc import Callable
from functools import partial

from pipelines.memory_estimate.models.autograd_tape import Tape, TapeBytes, Value, replay
from pipelines.memory_estimate.models.dalle_collab_sizes import DalleCollabSizes
from pipelines.memory_estimate.models.precision import ElementBytes

STATISTICS = 8.0
"""Bytes that a normalisation keeps for each row: mean and deviation in float32."""

LOGITS_AT_ONCE = 2**22
"""In training on a CPU; `table_dalle_collab` chose it."""

Branch = Callable[[Tape, Value], Value]


class DalleCollabLayers:
    """Describes branches, layers and the head for one micro-batch in one precision."""

    def __init__(
        self,
        sizes: DalleCollabSizes,
        batch: int,
        element: ElementBytes,
        *,
        on_cpu: bool = False,
        adds_gradients_up: bool = False,
    ) -> None:
        self.sizes, self.batch, self.element = sizes, batch, element
        self.on_cpu = on_cpu
        self.works_in_halves = on_cpu and not element.is_autocast
        """Whether the feed-forward layer does, and reversible layers add gradients up where they are kept."""
        self.adds_gradients_up = adds_gradients_up
        """Whether all products with shared weights do, the tied table's among them."""
        self.rows = batch * (sizes.text_block_length + sizes.num_image_codes)
        self.stream = self.rows * sizes.hidden_size * element.stream
        self.inner = self.rows * sizes.inner_size * element.compute
        self.wide = self.rows * sizes.wide_size * element.compute

    def stored_layer(self, kind: str) -> TapeBytes:
        """Return the bytes of a layer whose activations are stored."""

        def describe(tape: Tape) -> tuple[Value, ...]:
            first_in, second_in = tape.input(self.stream), tape.received(self.stream)
            attended = self.attention(tape, second_in, kind)
            first = tape.add(first_in, attended, self.stream)
            tape.drop(attended)
            fed = self.feed_forward(tape, first)
            second = tape.add(second_in, fed, self.stream)
            tape.drop(fed, second_in)
            return first, second

        return replay(describe)

    def recomputed_layer(self, kind: str) -> float:
        """Return the most bytes while a reversible layer is undone: streams, their gradients, one branch."""
        # The stack's end (2 streams) is saved and the gradient that came in is held; copies of both streams and of both
        # gradients are changed in place.
        streams = 7 * self.stream

        def peak(branch: Branch, copies: float) -> float:
            tape = Tape(keeps_weight_gradients=not self.works_in_halves)
            output = branch(tape, tape.input(self.stream))
            tape.backward(output)
            return tape.peak + copies + streams

        attention, feed_forward = self.branch_copies
        return max(peak(partial(self.attention, kind=kind), attention), peak(self.feed_forward, feed_forward))

    @property
    def branch_copies(self) -> tuple[float, float]:
        """Half copies of the weights of one attention and one feed-forward branch under autocast."""
        sizes, each = self.sizes, self.element.compute if self.element.is_autocast else 0
        return 4.0 * sizes.hidden_size * sizes.inner_size * each, 3.0 * sizes.hidden_size * sizes.wide_size * each

    def head(self) -> TapeBytes:
        """Return the bytes from the end of the stack to the loss."""
        return replay(self._describe_summing_head if self.adds_gradients_up else self._describe_head)

    def attention(self, tape: Tape, x: Value, kind: str) -> Value:
        """Describe the attention branch, (rows, hidden) to the same."""
        normed = self._branch_input(tape, x)
        weight = self._separate(3.0 * self.sizes.hidden_size * self.sizes.inner_size)
        qkv = tape.run(normed, out=3 * self.inner, saves=(normed,), weight=weight)
        tape.drop(normed)
        halves = self.element.compute == 2
        turned = tape.run(
            qkv,
            out=3 * self.inner,
            # In half types pairs are turned in four products; in float32 as complex numbers in one.
            extra_saved=self.rows / self.batch * self.sizes.head_dim * 2 if halves else 0.0,
            scratch=4.5 * self.inner if halves else 0.0,
            backward_scratch=3 * self.inner if halves else 0.0,
        )
        tape.drop(qkv)
        dense = kind in self.sizes.dense_kinds(on_cpu=self.on_cpu)
        attended = self._dense_attention(tape, turned) if dense else self._banded_attention(tape, turned, kind)
        return self._branch_output(tape, attended)

    def _dense_attention(self, tape: Tape, turned: Value) -> Value:
        out = tape.run(
            turned,
            out=self.inner,
            saves=(turned,),
            saves_output=True,
            extra_saved=self.rows * self.sizes.num_attention_heads * 4.0,
            backward_scratch=3 * self.inner,
        )
        tape.drop(turned)
        return out

    def _banded_attention(self, tape: Tape, turned: Value, kind: str) -> Value:
        sizes, compute = self.sizes, self.element.compute
        text = self.batch * sizes.text_block_length * sizes.inner_size * compute
        image = self.batch * sizes.num_image_codes * sizes.inner_size * compute
        lines = sizes.num_band_lines(kind)
        pairs = self.batch * sizes.num_attention_heads * sizes.num_image_codes
        band_keys = lines * sizes.image_grid_size

        query, key, value = tape.split(turned, *[self.inner] * 3)
        (query_t, query_i), (key_t, key_i), (value_t, value_i) = (
            tape.split(part, text, image) for part in (query, key, value)
        )
        statistics = self.batch * sizes.num_attention_heads * sizes.text_block_length * 4.0
        from_text_block = tape.run(
            query_t, key_t, value_t, out=text, saves=(turned,), saves_output=True, extra_saved=statistics
        )
        scaled = tape.run(query_i, out=image)
        key_band, value_band = (self._band(tape, part, image, lines) for part in (key_i, value_i))
        flat = tape.view(scaled) if self.batch == 1 and kind != "column" else tape.run(scaled, out=image)
        text_keys, text_values = (
            tape.view(part) if self.batch == 1 else tape.run(part, out=text) for part in (key_t, value_t)
        )
        text_scores = tape.run(flat, text_keys, out=pairs * sizes.text_block_length * compute, saves=(flat, text_keys))
        query_lines, key_lines = tape.run(scaled, out=image), tape.run(key_band, out=lines * image)
        bare = tape.run(query_lines, key_lines, out=pairs * band_keys * compute, saves=(query_lines, key_lines))
        tape.drop(flat, text_keys, query_lines, key_lines)
        band_scores = tape.run(bare, out=pairs * band_keys * compute)
        tape.drop(bare)
        scores = tape.join(text_scores, band_scores)
        weights = self._softmax(tape, scores)
        text_part, band_part = tape.split(weights, text_scores.size, band_scores.size)
        from_text = tape.run(text_part, text_values, out=image, saves=(weights, text_values))
        value_lines = tape.run(value_band, out=lines * image)
        from_band = tape.run(band_part, value_lines, out=image, saves=(weights, value_lines))
        total = tape.add(from_text, from_band, image)
        moved = tape.view(total) if kind != "column" else tape.run(total, out=image)
        tape.drop(total)
        out = tape.join(from_text_block, moved)
        tape.drop(text_values, value_lines, text_part, band_part, weights, scores, text_scores, band_scores, scaled)
        tape.drop(key_band, value_band, from_text, from_band, moved, from_text_block)
        tape.drop(query_t, query_i, key_t, key_i, value_t, value_i, query, key, value, turned)
        merged = tape.run(out, out=self.inner)
        tape.drop(out)
        return merged

    @staticmethod
    def _band(tape: Tape, part: Value, image: float, lines: int) -> Value:
        """Lines of keys or values with those before them in front; one line is a view."""
        if lines == 1:
            return tape.view(part)
        padded = tape.run(part, out=image)
        band = tape.run(padded, out=lines * image)
        tape.drop(padded)
        return band

    def _softmax(self, tape: Tape, scores: Value) -> Value:
        if self.element.compute == 4:
            return tape.run(scores, out=scores.size, saves_output=True)
        exact = tape.run(scores, out=2 * scores.size)
        weights = tape.run(exact, out=2 * scores.size, saves_output=True)
        tape.drop(exact)
        rounded = tape.run(weights, out=scores.size)
        tape.drop(weights)
        return rounded

    def feed_forward(self, tape: Tape, x: Value) -> Value:
        """Describe the feed-forward branch, (rows, hidden) to the same."""
        normed = self._branch_input(tape, x)
        if self.works_in_halves:
            gated = tape.run(
                normed, out=self.wide, saves=(normed,), extra_saved=2 * self.wide, backward_scratch=2 * self.wide
            )
            tape.drop(normed)
            return self._branch_output(tape, gated)
        weight = self._separate(2.0 * self.sizes.hidden_size * self.sizes.wide_size)
        inner = tape.run(normed, out=2 * self.wide, saves=(normed,), weight=weight)
        tape.drop(normed)
        gated = tape.run(inner, out=self.wide, saves=(inner,), backward_scratch=self.wide)
        tape.drop(inner)
        return self._branch_output(tape, gated)

    def _branch_input(self, tape: Tape, x: Value) -> Value:
        normed = tape.run(x, out=self.stream, saves=(x,), extra_saved=self.rows * STATISTICS)
        shifted = tape.run(normed, out=self.stream)
        tape.drop(normed)
        return self._cast(tape, shifted)

    def _branch_output(self, tape: Tape, inner: Value) -> Value:
        hidden = self.sizes.hidden_size
        weight = self._separate(hidden * inner.size / self.rows / self.element.compute)
        out = tape.run(inner, out=self.rows * hidden * self.element.compute, saves=(inner,), weight=weight)
        tape.drop(inner)
        scaled = tape.run(out, out=self.stream, saves=(out,), backward_scratch=self.stream)
        tape.drop(out)
        return scaled

    def _separate(self, num_weights: float) -> float:
        """Return the bytes of a layer's own part of a shared weight's gradient."""
        return 0.0 if self.adds_gradients_up else num_weights * self.element.weight

    def _cast(self, tape: Tape, value: Value) -> Value:
        if self.element.compute == self.element.stream:
            return value
        cast = tape.run(value, out=value.size * self.element.compute / self.element.stream)
        tape.drop(value)
        return cast

    def _end(self, tape: Tape) -> Value:
        first, second = tape.input(self.stream), tape.input(self.stream)
        total = tape.add(first, second, self.stream)
        hidden = tape.run(total, out=self.stream)
        tape.drop(total)
        normed = tape.run(hidden, out=self.stream, saves=(hidden,), extra_saved=self.rows * STATISTICS)
        tape.drop(hidden)
        return normed

    @property
    def _blocks(self) -> tuple[tuple[int, int], ...]:
        """Length and possible ids of the text and of the image."""
        sizes = self.sizes
        return (sizes.text_sequence_length, sizes.num_text_ids), (sizes.num_image_codes, sizes.codebook_size)

    def _describe_summing_head(self, tape: Tape) -> tuple[Value, ...]:
        normed, share = self._end(tape), self.stream / (self.rows / self.batch)
        views = tape.split(normed, *(length * share for length, _ in self._blocks))
        losses = []
        for view, (length, ids) in zip(views, self._blocks, strict=True):
            errors = self.batch * length * ids * 4.0
            part = tape.run(view, out=view.size) if self.batch > 1 else tape.view(view)
            loss = tape.run(
                part,
                out=4.0,
                saves=(part,),
                extra_saved=errors,
                scratch=min(errors, LOGITS_AT_ONCE * 4.0),
                backward_scratch=view.size,
            )
            tape.drop(part)
            losses.append(loss)
        tape.drop(*views, normed)
        return tuple(losses)

    def _describe_head(self, tape: Tape) -> tuple[Value, ...]:
        sizes = self.sizes
        normed = self._end(tape)
        table = tape.input(sizes.vocab_size * sizes.hidden_size * self.element.weight)
        text_table, image_table = tape.split(
            table, *(ids * sizes.hidden_size * self.element.weight for ids in (sizes.num_text_ids, sizes.codebook_size))
        )
        share = self.stream / (self.rows / self.batch)
        views = tape.split(normed, *(length * share for length, _ in self._blocks))
        logits = [
            self._logits(tape, view, length, ids, part)
            for view, (length, ids), part in zip(views, self._blocks, (text_table, image_table), strict=True)
        ]
        losses = []
        for value in logits:
            exact = value if self.element.compute == 4 else tape.run(value, out=value.size * 2)
            logarithms = tape.run(exact, out=exact.size, saves_output=True)
            if exact is not value:
                tape.drop(exact)
            losses.append(tape.run(logarithms, out=4.0, saves=(logarithms,)))
            tape.drop(logarithms)
        tape.drop(*logits, *views, normed)
        return tuple(losses)

    def _logits(self, tape: Tape, view: Value, length: int, ids: int, table: Value) -> Value:
        copied = self._cast(tape, tape.run(view, out=view.size)) if self.batch > 1 else self._cast_of(tape, view)
        number = self.batch * length * ids * self.element.compute
        logits = tape.run(copied, table, out=number, saves=(copied,), scratch=number if self.batch > 1 else 0.0)
        tape.drop(copied)
        return logits

    def _cast_of(self, tape: Tape, view: Value) -> Value:
        if self.element.compute == self.element.stream:
            return tape.view(view)
        return tape.run(view, out=view.size * self.element.compute / self.element.stream)
