"""What no implementation of the model can do without: matrix work, bytes of weights, keys and values. No torch in here.

A multiply-add counts as 2 FLOP. Counted are the products with weights and those of queries, keys and values, for the
pairs that the masks allow and the part of the vocabulary that a position can predict; everything else is left out.
The backward pass does each product twice, for the input and for the weight (Kaplan et al. 2020, arXiv:2001.08361,
section 2.1); the reversible one computes the layers once more before it (Gomez et al. 2017, arXiv:1707.04585).

A place is the index of an image code in raster order.
"""

from collections import Counter
from collections.abc import Iterable

from modeling_dalle_collab import DalleCollabConfig

RECOMPUTED_SHARE = {"reversible": 1.0, "partial": 0.5, "none": 0.0}
"""How much of the layers' forward work each choice of `recompute` does twice."""


def visible_codes(config: DalleCollabConfig, kind: str, place: int) -> int:
    """Return how many image codes, itself included, the query of a place sees."""
    row, column = divmod(place, config.image_grid_size)
    if kind == "row":
        return column + 1
    if kind == "column":
        return row + 1
    if config.conv_window == "corner":
        return min(row + 1, config.conv_kernel_size) * min(column + 1, config.conv_kernel_size)
    reach = config.conv_kernel_size // 2
    to_the_left, to_the_right = min(column, reach), min(config.image_grid_size - 1 - column, reach)
    return min(row, reach) * (to_the_left + 1 + to_the_right) + to_the_left + 1


def last_reader(config: DalleCollabConfig, kind: str, place: int) -> int:
    """Return the last place whose query sees the code of this one."""
    row, column = divmod(place, config.image_grid_size)
    end = config.image_grid_size - 1
    if kind == "row":
        row, column = row, end
    elif kind == "column":
        row, column = end, column
    else:
        reach = config.conv_kernel_size - 1 if config.conv_window == "corner" else config.conv_kernel_size // 2
        row, column = min(row + reach, end), min(column + reach, end)
    return row * config.image_grid_size + column


def most_kept_codes(config: DalleCollabConfig, kind: str) -> int:
    """Return how many codes' keys a layer must hold at once at most: those that this or a later query sees."""
    read_last_at = Counter(last_reader(config, kind, place) for place in range(config.num_image_codes))
    kept = most = 0
    for place in range(config.num_image_codes):
        kept += 1
        most = max(most, kept)
        kept -= read_last_at[place]
    return most


def visible_pairs(config: DalleCollabConfig, kind: str) -> int:
    """Return the pairs of query and key of one sequence, for the positions that predict something."""
    block, places = config.text_block_length, range(config.num_image_codes - 1)
    text = block * (block + 1) // 2
    return text + sum(block + visible_codes(config, kind, place) for place in places)


def inner_size(config: DalleCollabConfig) -> int:
    """Return the channels of all heads together."""
    return config.num_attention_heads * config.head_dim


def layer_shapes(config: DalleCollabConfig) -> list[tuple[int, int]]:
    """Return the shapes (out, in) of a layer's matrices: queries, keys and values, output, and the gated two."""
    hidden, inner, gated = config.hidden_size, inner_size(config), config.feed_forward_multiplier * config.hidden_size
    return [(3 * inner, hidden), (hidden, inner), (2 * gated, hidden), (hidden, gated)]


def layer_weights(config: DalleCollabConfig) -> int:
    """Return the number of weights in the matrices of one layer."""
    return sum(rows * columns for rows, columns in layer_shapes(config))


def forward_flops(config: DalleCollabConfig) -> tuple[int, int]:
    """Return the work of one sequence in all layers, and in the head."""
    per_position = config.num_hidden_layers * 2 * layer_weights(config)
    pairs = sum(visible_pairs(config, kind) for kind in config.layer_kinds)
    layers = config.sequence_length * per_position + 4 * inner_size(config) * pairs
    predicted = config.text_sequence_length * config.num_text_ids + config.num_image_codes * config.codebook_size
    return layers, 2 * config.hidden_size * predicted


def training_flops(config: DalleCollabConfig, recompute: str) -> float:
    """Return the work of a forward and a backward pass over one sequence."""
    layers, head = forward_flops(config)
    return (3 + RECOMPUTED_SHARE[recompute]) * layers + 3 * head


def reversible_bytes(config: DalleCollabConfig, batch: int, num_parameters: int) -> int:
    """Return the bytes that a reversible step holds at least, in float32: gradients and the two streams."""
    return 4 * (num_parameters + 2 * batch * config.sequence_length * config.hidden_size)


def step_flops(config: DalleCollabConfig, places: Iterable[int]) -> float:
    """Return the work of reading one image code and predicting the next, the mean over places."""
    weights = config.num_hidden_layers * layer_weights(config) + config.codebook_size * config.hidden_size
    pairs = config.num_hidden_layers * config.text_block_length + _mean_visible_codes(config, places)
    return 2 * weights + 4 * inner_size(config) * pairs


def step_bytes(config: DalleCollabConfig, places: Iterable[int], num_candidates: int) -> float:
    """Return the bytes that a step for candidates of one caption reads in float32, the mean over places.

    Every layer reads its weights again, although layers share them, because other layers lie between; the text's keys
    and values are read once for all candidates.
    """
    weights = config.num_hidden_layers * layer_weights(config) + config.codebook_size * config.hidden_size
    text = config.num_hidden_layers * config.text_block_length
    keys = text + num_candidates * _mean_visible_codes(config, places)
    return 4 * (weights + 2 * inner_size(config) * keys)


def _mean_visible_codes(config: DalleCollabConfig, places: Iterable[int]) -> float:
    """Return the image codes seen in all layers together, the mean over places."""
    places = list(places)
    return sum(visible_codes(config, kind, place) for kind in config.layer_kinds for place in places) / len(places)


def kept_bytes(config: DalleCollabConfig, num_candidates: int) -> float:
    """Return the bytes of keys and values for each candidate of one caption, in float32."""
    text = config.num_hidden_layers * config.text_block_length / num_candidates
    image = sum(most_kept_codes(config, kind) for kind in config.layer_kinds)
    return 4 * 2 * inner_size(config) * (text + image)


def ancestor_cache_bytes(config: DalleCollabConfig) -> int:
    """Return what dalle-pytorch 1.6.6 holds for a sequence at its last code, in float32.

    Layers by row and column keep all keys and values, the convolutional one its whole input; the queues of the token
    shift are left out.
    """
    kept = sum(config.hidden_size if kind == "convolutional" else 2 * inner_size(config) for kind in config.layer_kinds)
    return 4 * config.sequence_length * kept
