"""The floors that the benchmark prints are what one counts, pair by pair."""

import pytest
import torch
from model_floors import (
    ancestor_cache_bytes,
    kept_bytes,
    last_reader,
    most_kept_codes,
    reversible_bytes,
    step_bytes,
    step_flops,
)

from modeling_dalle_collab import DalleCollabConfig, DalleCollabForConditionalGeneration
from modeling_dalle_collab.attention_dalle_collab import visible_mask
from modeling_dalle_collab.configuration_dalle_collab import ATTENTION_KINDS, RECOMPUTE_CHOICES
from pipelines.features.memory_estimate.models.dalle_collab_compute import (
    RECOMPUTED_SHARE,
    forward_flops,
    layer_weights,
    training_flops,
    visible_codes,
    visible_pairs,
)

WINDOWS = [("corner", 1), ("corner", 3), ("corner", 5), ("centred", 3), ("centred", 5), ("centred", 11)]


def tiny_config(conv_window="corner", conv_kernel_size=3, **changes):
    sizes = {"text_vocab_size": 11, "codebook_size": 7, "text_sequence_length": 3, "image_grid_size": 4}
    sizes |= {"hidden_size": 8, "num_hidden_layers": 6, "num_attention_heads": 2, "head_dim": 6}
    return DalleCollabConfig(conv_window=conv_window, conv_kernel_size=conv_kernel_size, **(sizes | changes))


def predicting_mask(config, kind):
    """The mask without the query of the last image code, which predicts nothing."""
    return visible_mask(config, kind)[:-1]


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("kind", ATTENTION_KINDS)
def test_visible_pairs_are_the_ones_in_the_mask(kind, window):
    config = tiny_config(*window)
    mask = predicting_mask(config, kind)
    assert visible_pairs(config, kind) == mask.sum().item()
    on_grid = mask[config.text_block_length :, config.text_block_length :]
    counted = [visible_codes(config, kind, place) for place in range(len(on_grid))]
    assert counted == on_grid.sum(dim=1).tolist()


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("kind", ATTENTION_KINDS)
def test_a_layer_must_keep_the_codes_that_a_query_still_sees(kind, window):
    config = tiny_config(*window)
    on_grid = visible_mask(config, kind)[config.text_block_length :, config.text_block_length :]
    for place, readers in enumerate(on_grid.T):
        assert last_reader(config, kind, place) == readers.nonzero().max().item()
    still_seen = [on_grid[place:, : place + 1].any(dim=0).sum().item() for place in range(len(on_grid))]
    assert most_kept_codes(config, kind) == max(still_seen)


def test_weights_of_a_layer_are_those_of_its_matrices():
    config = tiny_config()
    group = DalleCollabForConditionalGeneration(config).model.stack.groups[0]
    assert layer_weights(config) == sum(part.numel() for part in group.parameters() if part.dim() == 2)


def products_of_a_forward_pass(config):
    """FLOP of a sequence, one product of vectors after the other: in the layers and in the head."""
    inner = config.num_attention_heads * config.head_dim
    layers = 0
    for kind in config.layer_kinds:
        mask = predicting_mask(config, kind)
        for query in mask:
            layers += 2 * layer_weights(config)
            layers += sum(2 * inner + 2 * inner for _ in query.nonzero())  # scores, then the sum of the values
    texts = [config.num_text_ids] * config.text_sequence_length
    codes = [config.codebook_size] * config.num_image_codes
    return layers, sum(2 * config.hidden_size * choices for choices in texts + codes)


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_work_is_that_of_the_products_one_by_one(window):
    config = tiny_config(*window)
    layers, head = products_of_a_forward_pass(config)
    assert forward_flops(config) == (layers, head)
    assert training_flops(config, "none") == 3 * (layers + head)
    assert training_flops(config, "reversible") == 4 * layers + 3 * head


def test_every_way_to_recompute_has_a_floor():
    assert set(RECOMPUTE_CHOICES) <= set(RECOMPUTED_SHARE)


def test_reading_an_image_code_by_code_is_the_image_part_of_a_forward_pass():
    config = tiny_config()
    places = range(config.num_image_codes - 1)
    text = sum(2 * layer_weights(config) + 4 * 12 * (query + 1) for query in range(config.text_block_length))
    text = config.num_hidden_layers * text + 2 * 8 * config.text_sequence_length * config.num_text_ids
    first_code = 2 * 8 * config.codebook_size
    by_steps = len(places) * step_flops(config, places)
    assert by_steps + text + first_code == pytest.approx(sum(forward_flops(config)))


def test_a_step_reads_every_layers_weights_and_what_its_queries_see():
    config = tiny_config()
    place = 6
    weights = 6 * layer_weights(config) + config.codebook_size * config.hidden_size
    seen = [predicting_mask(config, kind)[config.text_block_length + place] for kind in config.layer_kinds]
    text = sum(row[: config.text_block_length].sum().item() for row in seen)
    image = sum(row[config.text_block_length :].sum().item() for row in seen)
    assert step_bytes(config, [place], num_candidates=5) == 4 * (weights + 2 * 12 * (text + 5 * image))


def test_bytes_that_are_kept():
    config = tiny_config()
    rows, columns, window = (most_kept_codes(config, kind) for kind in ("row", "column", "convolutional"))
    # Six layers: row, column, row, row, row, convolutional; two candidates share the text.
    expected = 4 * 2 * 12 * (6 * 4 / 2 + 4 * rows + columns + window)
    assert kept_bytes(config, 2) == pytest.approx(expected)
    keys_and_values = torch.empty(5, 2, 12, 3 + 16).numel()
    assert ancestor_cache_bytes(config) == 4 * (keys_and_values + 8 * (3 + 16))
    streams = torch.empty(2, 7, 3 + 16, 8).numel()
    assert reversible_bytes(config, batch=7, num_parameters=100) == 4 * (100 + streams)
