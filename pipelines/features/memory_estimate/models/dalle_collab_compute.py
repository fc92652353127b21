"""What no implementation of our model's training step can do without: matrix work, in closed form.

A multiply-add counts as 2 FLOP. Counted are the products with weights and those of queries, keys and values, for the
pairs that the masks allow and the part of the vocabulary that a position can predict; everything else is left out.
The backward pass does each product twice, for the input and for the weight (Kaplan et al. 2020, arXiv:2001.08361,
section 2.1); the reversible one computes the layers once more before it (Gomez et al. 2017, arXiv:1707.04585).

A place is the index of an image code in raster order.
"""

from collections import Counter

from modeling_dalle_collab import DalleCollabConfig

RECOMPUTED_SHARE = {"reversible": 1.0, "checkpoint": 1.0, "partial": 0.5, "none": 0.0}
"""How much of the layers' forward work each choice of `recompute` does twice."""


def training_flops(sizes: DalleCollabConfig, recompute: str) -> float:
    """Return the work of a forward and a backward pass over one sequence."""
    layers, head = forward_flops(sizes)
    return (3 + RECOMPUTED_SHARE[recompute]) * layers + 3 * head


def forward_flops(sizes: DalleCollabConfig) -> tuple[int, int]:
    """Return the work of one sequence in all layers, and in the head."""
    per_position = sizes.num_hidden_layers * 2 * layer_weights(sizes)
    pairs = sum(number * visible_pairs(sizes, kind) for kind, number in Counter(sizes.layer_kinds).items())
    positions = sizes.text_sequence_length + sizes.num_image_codes
    layers = positions * per_position + 4 * inner_size(sizes) * pairs
    predicted = sizes.text_sequence_length * sizes.num_text_ids + sizes.num_image_codes * sizes.codebook_size
    return layers, 2 * sizes.hidden_size * predicted


def layer_weights(sizes: DalleCollabConfig) -> int:
    """Return the number of weights in the matrices of one layer."""
    return sum(rows * columns for rows, columns in layer_shapes(sizes))


def layer_shapes(sizes: DalleCollabConfig) -> list[tuple[int, int]]:
    """Return the shapes (out, in) of a layer's matrices: queries, keys and values, output, and the gated two."""
    hidden, inner, gated = sizes.hidden_size, inner_size(sizes), sizes.feed_forward_multiplier * sizes.hidden_size
    return [(3 * inner, hidden), (hidden, inner), (2 * gated, hidden), (hidden, gated)]


def inner_size(sizes: DalleCollabConfig) -> int:
    """Return the channels of all heads together."""
    return sizes.num_attention_heads * sizes.head_dim


def visible_pairs(sizes: DalleCollabConfig, kind: str) -> int:
    """Return the pairs of query and key of one sequence, for the positions that predict something."""
    block, last = sizes.text_block_length, sizes.num_image_codes - 1
    return block * (block + 1) // 2 + last * block + _pairs_of_codes(sizes, kind) - visible_codes(sizes, kind, last)


def visible_codes(sizes: DalleCollabConfig, kind: str, place: int) -> int:
    """Return how many image codes, itself included, the query of a place sees."""
    row, column = divmod(place, sizes.image_grid_size)
    if kind == "row":
        return column + 1
    if kind == "column":
        return row + 1
    if sizes.conv_window == "corner":
        return min(row + 1, sizes.conv_kernel_size) * min(column + 1, sizes.conv_kernel_size)
    reach = sizes.conv_kernel_size // 2
    to_the_left, to_the_right = min(column, reach), min(sizes.image_grid_size - 1 - column, reach)
    return min(row, reach) * (to_the_left + 1 + to_the_right) + to_the_left + 1


def _pairs_of_codes(sizes: DalleCollabConfig, kind: str) -> int:
    """Return the sum of `visible_codes` over all places; a stranger's grid may be too large for a loop."""
    side = sizes.image_grid_size
    if kind != "convolutional":
        return side * _capped_sum(side, side)
    if sizes.conv_window == "corner":
        return _capped_sum(side, sizes.conv_kernel_size) ** 2
    before = _capped_sum(side - 1, sizes.conv_kernel_size // 2)  # rows above, or columns to the left, of all lines
    return before * (2 * before + side) + side * (before + side)


def _capped_sum(number: int, most: int) -> int:
    """Return the sum of 1, 2, ... up to `number`, with nothing above `most`."""
    rising = min(number, most)
    return rising * (rising + 1) // 2 + (number - rising) * most
