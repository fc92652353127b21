"""Who attends to whom, and that both ways to compute it agree."""

import pytest
import torch

from modeling_dalle_collab.attention_dalle_collab import (
    AttentionTables,
    DalleCollabAttention,
    has_fused_sums,
    rotary_angles,
    rotate_pairs,
    visible_blocks,
    visible_mask,
)

KINDS = ("row", "column", "convolutional")


def may_see(config, kind, query, key):
    """The specification, one pair at a time."""
    block, size = config.text_block_length, config.image_grid_size
    if query < block:
        return key <= query
    if key < block:
        return True
    down = (query - block) // size - (key - block) // size
    right = (query - block) % size - (key - block) % size
    if kind == "row":
        return down == 0 and right >= 0
    if kind == "column":
        return right == 0 and down >= 0
    if config.conv_window == "corner":
        return 0 <= down < config.conv_kernel_size and 0 <= right < config.conv_kernel_size
    return abs(down) <= config.conv_kernel_size // 2 and abs(right) <= config.conv_kernel_size // 2 and key <= query


@pytest.mark.parametrize("window", ["centred", "corner"])
@pytest.mark.parametrize("kernel", [1, 3, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_a_query_sees_exactly_the_keys_of_the_specification(tiny_config, kind, kernel, window):
    config = tiny_config(conv_kernel_size=kernel, conv_window=window)
    length = config.text_block_length + config.num_image_codes
    expected = torch.tensor([[may_see(config, kind, query, key) for key in range(length)] for query in range(length)])
    assert torch.equal(visible_mask(config, kind), expected)


@pytest.mark.parametrize("window", ["centred", "corner"])
@pytest.mark.parametrize("kind", KINDS)
def test_banded_attention_equals_dense_attention(tiny_config, kind, window):
    config = tiny_config(image_grid_size=7, conv_window=window, conv_kernel_size=5)
    attention = DalleCollabAttention(config)
    x = torch.randn(2, config.text_block_length + config.num_image_codes, config.hidden_size, requires_grad=True)
    results = []
    for dense_kinds in (frozenset(), frozenset(KINDS)):
        tables = AttentionTables.build(config, x.device, x.dtype, dense_kinds)
        out = attention(x, kind, tables)
        (grad,) = torch.autograd.grad(out.square().sum(), x)
        results.append((out, grad))
    torch.testing.assert_close(results[0][0], results[1][0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(results[0][1], results[1][1], atol=1e-5, rtol=1e-5)


def test_changing_a_code_changes_no_earlier_prediction(tiny_model, tiny_batch):
    model = tiny_model().eval()
    text, codes = tiny_batch(batch=1)
    before = model(text, codes).logits
    for place in (0, 5, 15):
        changed = codes.clone()
        changed[0, place] = (changed[0, place] + 1) % model.config.codebook_size
        moved = (model(text, changed).logits != before).any(dim=-1)[0].nonzero()[:, 0]
        # The code at `place` is predicted one position earlier than it is read; the last code is never read.
        first_affected = text.shape[1] + place + 1
        assert moved.numel() == 0 if place == 15 else moved.min() == first_affected


def test_rotation_keeps_lengths_and_turns_by_the_difference_of_angles(tiny_config):
    config = tiny_config(head_dim=12)
    angles = rotary_angles(config)
    rotations = torch.stack([angles.cos(), angles.sin()], dim=-1)
    x = torch.randn(len(angles), 12)
    turned = rotate_pairs(x, rotations)
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    even, odd = x[:, 0::2], x[:, 1::2]
    torch.testing.assert_close(turned[:, 0::2], even * angles.cos() - odd * angles.sin())
    torch.testing.assert_close(turned[:, 1::2], odd * angles.cos() + even * angles.sin())


def test_rotations_stay_exact_in_a_bfloat16_model(tiny_config):
    config = tiny_config()
    tables = AttentionTables.build(config, torch.device("cpu"), torch.bfloat16)
    assert tables.rotations.dtype == torch.float32
    x = torch.randn(1, len(tables.rotations), config.head_dim)
    exact, rounded = rotate_pairs(x, tables.rotations), rotate_pairs(x.bfloat16(), tables.rotations)
    assert rounded.dtype == torch.bfloat16
    torch.testing.assert_close(rounded.float(), exact, atol=0.05, rtol=0.02)


def test_the_fused_product_with_sums_is_used_only_where_a_device_has_it():
    assert not has_fused_sums(torch.device("cpu"), torch.float32, 16)
    if torch.cuda.is_available():
        assert has_fused_sums(torch.device("cuda"), torch.float32, 16)
        assert not has_fused_sums(torch.device("cuda"), torch.float32, 14)


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_for_a_gpu_show_what_the_mask_shows(tiny_config, kind):
    config = tiny_config(image_grid_size=12)
    blocks, visible = visible_blocks(config, kind, "cpu"), visible_mask(config, kind)
    places = torch.arange(len(visible))
    shown = blocks.mask_mod(torch.tensor(0), torch.tensor(0), places[:, None], places[None, :])
    assert torch.equal(shown, visible)
    size, number = blocks.BLOCK_SIZE[0], -(-len(visible) // blocks.BLOCK_SIZE[0])
    padded = torch.nn.functional.pad(visible, (0, number * size - len(visible)) * 2)
    expected = padded.unflatten(0, (number, size)).unflatten(2, (number, size)).any(dim=3).any(dim=1)
    assert torch.equal(blocks.to_dense()[0, 0].bool(), expected), "blocks that nobody sees are skipped, no others"
