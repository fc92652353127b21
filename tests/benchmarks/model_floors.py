"""What no implementation of the model can do without: bytes of weights, keys and values, the work of generation.

The work of training is `dalle_collab_compute`'s, whose rules of counting hold here, too. No torch in here.

A place is the index of an image code in raster order.
"""

from collections import Counter
from collections.abc import Iterable

from modeling_dalle_collab import DalleCollabConfig
from pipelines.features.memory_estimate.models.dalle_collab_compute import inner_size, layer_weights, visible_codes


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
