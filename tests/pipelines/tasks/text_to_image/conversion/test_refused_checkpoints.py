"""A file that is no checkpoint, or a model that ours cannot express, is refused with what was seen and why."""

import pickle

import pytest
import torch
from safetensors.torch import save_file

from pipelines.tasks.text_to_image.conversion.checkpoint_sizes import UnseenSettings, infer_config
from pipelines.tasks.text_to_image.conversion.dalle_pytorch_checkpoint import DallePytorchCheckpoint, convert_tensors

BLOCKS = "transformer.layers.blocks"
QKV = "f.net.fn.fn.fn.fn.fn.to_qkv.weight"
FEED_FORWARD = "g.net.fn.fn.fn.fn.net"


def convert(state_dict, **settings):
    checkpoint = DallePytorchCheckpoint.from_tensors(state_dict)
    config = infer_config(checkpoint, UnseenSettings(**{"codebook_size": 24, "conv_window": "corner"} | settings))
    return convert_tensors(checkpoint, config)


@pytest.fixture
def state_dict(ancestor):
    """A state dict whose tensors share nothing, so that one can be changed alone."""
    return {name: tensor.clone() for name, tensor in ancestor().state_dict().items()}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"reversible": False},
            r"has transformer\.layers\.layers\.0\.0\.scale, which .* reversible=False has; ours sums",
        ),
        (
            {"shift_tokens": False},
            r"attention is under f\.net\.fn\.fn\.fn and .* shift_tokens=False; our layers always",
        ),
        (
            {"sandwich_norm": True},
            r"has .*norm_out\.weight, which a model with sandwich_norm=True has; our layers have",
        ),
        (
            {"share_input_output_emb": False},
            r"has text_emb\.weight, which .* untied embeddings has; ours has one table",
        ),
        ({"rotary_emb": False}, r"has text_pos_emb\.weight, which a model with rotary_emb=False has; ours has rotary"),
    ],
)
def test_a_model_that_ours_cannot_express_is_refused_with_the_reason(ancestor, options, message):
    with pytest.raises(ValueError, match=message):
        convert(ancestor(**options).state_dict())


def test_a_fork_without_token_shift_is_not_taken_for_a_release(ancestor):
    """Without the wrapper of the shift, its attention lies as deep as in no layout, its feed-forward layer too."""
    renamed = {
        name.replace(".f.net.fn.fn.fn.fn.fn.", ".f.net.fn.fn.").replace(".g.net.fn.fn.fn.fn.", ".g.net.fn.fn."): tensor
        for name, tensor in ancestor().state_dict().items()
    }
    with pytest.raises(ValueError, match=r"attention is under f\.net\.fn\.fn and its feed-forward .* shift_tokens"):
        convert(renamed)


def test_sharing_that_our_pattern_cannot_express_is_refused_with_the_layer(ancestor):
    last_shared = [0, 1, 2, 3, 0, 1, 2]
    kinds = {"attention_pattern": ("row",) * 4, "final_attention": "row"}
    with pytest.raises(ValueError, match=r"Layer 6, the last, holds the attention weights of layer 2, expected .* own"):
        convert(ancestor(shared_attn_ids=last_shared, shared_ff_ids=last_shared, **kinds).state_dict())
    by_kind = [0, 1, 0, 0, 0, 1, "last"]
    with pytest.raises(ValueError, match=r"Layer 3 holds other attention weights than layer 1, .* those 2 before"):
        convert(ancestor(shared_attn_ids=by_kind, shared_ff_ids=by_kind).state_dict())
    with pytest.raises(ValueError, match=r"Layer 4 holds other feed-forward weights than layer 0, expected the same"):
        convert(ancestor(shared_ff_ids=list(range(7))).state_dict())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (f"{BLOCKS}.5.{QKV}", r"Layer 5 holds other attention weights than layer 1, .* those 4 before them"),
        (f"{BLOCKS}.4.{FEED_FORWARD}.3.bias", r"Layer 4 holds other feed-forward weights than layer 0"),
        (f"{BLOCKS}.0.{FEED_FORWARD}.0.weight", r"Layer 4 holds other feed-forward weights than layer 0"),
    ],
)
def test_a_layer_whose_shared_weights_were_changed_is_named(state_dict, name, message):
    state_dict[name].view(-1)[-1] += 1
    with pytest.raises(ValueError, match=message):
        convert(state_dict)


def test_a_pattern_that_contradicts_the_sharing_is_refused(ancestor):
    with pytest.raises(
        ValueError, match=r"Layers 0 and 4 .* the same weights, but .* row,column,column makes one row and"
    ):
        convert(ancestor().state_dict(), attention_pattern=("row", "column", "column"))
    with pytest.raises(ValueError, match=r"Attention kind 'axial_row' is unknown, expected one of row, column"):
        convert(ancestor().state_dict(), attention_pattern=("axial_row",))


@pytest.mark.parametrize("view", ["text_emb", "image_emb"])
def test_a_table_that_is_not_tied_under_its_other_names_is_refused(state_dict, view):
    state_dict[f"{view}.linear.weight"][3, 3] += 1
    with pytest.raises(
        ValueError, match=rf"{view}\.linear\.weight differs from to_logits\.1\.weight, expected the same"
    ):
        convert(state_dict)


def test_missing_and_unknown_names_are_listed(state_dict):
    for name in (f"{BLOCKS}.2.{QKV}", "to_logits.0.bias"):
        less = {other: tensor for other, tensor in state_dict.items() if other != name}
        with pytest.raises(
            ValueError, match=rf"lacks {name}; expected every tensor of 7 layers in the layout of dalle"
        ):
            convert(less)
    more = {f"{BLOCKS}.2.f.net.{letter}": torch.ones(1) for letter in "abcde"}
    with pytest.raises(ValueError, match=r"has \S+2\.f\.net\.a, \S+b, \S+c and 2 more, which our model does not have"):
        convert(state_dict | more)
    less = {name: tensor for name, tensor in state_dict.items() if f"{BLOCKS}.3." not in name}
    with pytest.raises(ValueError, match=r"has the layers 0, 1, 2 and 3 more, but not layer 3; expected all"):
        convert(less)
    with pytest.raises(
        ValueError, match=r"has weight, but no transformer\.layers\.blocks\.\*; expected the state dict"
    ):
        convert({"weight": torch.ones(1)})
    with pytest.raises(ValueError, match=r"has nothing, but no transformer\.layers\.blocks"):
        convert({})


def test_mixed_layouts_are_refused(state_dict):
    mixed = {
        name.replace("1.f.net.fn.fn.fn.fn.fn.", "1.f.net.fn.fn.fn."): tensor for name, tensor in state_dict.items()
    }
    with pytest.raises(ValueError, match=r"lacks \S+blocks\.1\.f\.net\.fn\.fn\.fn\.fn\.fn\.to_out"):
        convert(mixed)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table + 0.01, r"has 24 text positions and 0 image positions"),
        (
            lambda table: table[:, :-1],
            r"has 8 text positions and 15 image positions .* expected at least 2 and a square",
        ),
        (lambda table: table[:, 8:], r"has 0 text positions and 16 image positions"),
        (
            lambda table: torch.cat([table[..., :6], table[..., 6:] * 1.01], dim=-1),
            r"has other angles than our rotary",
        ),
        (lambda table: table[..., :-1], r"has shape \(1, 24, 17\) .* expected .* a multiple of 6 channels"),
        (lambda table: table[..., :0], r"has shape \(1, 24, 0\)"),
        (lambda table: table[0], r"has shape \(24, 18\)"),
        (lambda table: table.long(), r"dtype torch\.int64, expected .* floats"),
    ],
)
def test_other_positions_are_refused(state_dict, change, message):
    state_dict["transformer.pos_emb"] = change(state_dict["transformer.pos_emb"])
    with pytest.raises(ValueError, match=message):
        convert(state_dict)


@pytest.mark.parametrize(
    ("sizes", "told", "message"),
    [
        (
            {"head_dim": 14, "num_attention_heads": 6},
            None,
            r"84 channels .* head_dim 12 or 14, expected only one\. Say",
        ),
        ({"head_dim": 14, "num_attention_heads": 6}, 16, r"allow the head_dim 12 or 14, expected 16"),
        ({"head_dim": 13, "num_attention_heads": 3}, None, r"head_dim is 13, expected an even number"),
        ({"head_dim": 13, "num_attention_heads": 14}, None, r"allow the head_dim 13 or 14, expected only one"),
    ],
)
def test_an_ambiguous_or_odd_head_dim_is_refused(ancestor, sizes, told, message):
    with pytest.raises(ValueError, match=message):
        convert(ancestor(**sizes).state_dict(), head_dim=told)


def test_an_ambiguous_head_dim_can_be_told(ancestor):
    state_dict = ancestor(head_dim=14, num_attention_heads=6).state_dict()
    checkpoint = DallePytorchCheckpoint.from_tensors(state_dict)
    config = infer_config(checkpoint, UnseenSettings(codebook_size=24, head_dim=14))
    assert (config.head_dim, config.num_attention_heads) == (14, 6)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("to_logits.0.weight", torch.ones(31), r"to_logits\.0\.weight has shape \(31,\), expected \(32,\)"),
        (
            "to_logits.0.weight",
            torch.full((32,), torch.nan),
            r"has values other than finite floating-point numbers",
        ),
        ("to_logits.0.weight", torch.ones(32, dtype=torch.int64), r"torch\.int64, has values other than finite"),
        (f"{BLOCKS}.0.{QKV}", torch.ones(107, 32), r"has shape \(107, 32\), expected \(3 x heads x head_dim, 32\)"),
        (
            f"{BLOCKS}.0.{FEED_FORWARD}.0.weight",
            torch.ones(255, 32),
            r"\(255, 32\), expected a multiple of 2 x 32 rows",
        ),
        (f"{BLOCKS}.0.{QKV}", torch.ones(108), r"has shape \(108,\), expected a matrix"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(state_dict, name, value, message):
    with pytest.raises(ValueError, match=message):
        convert(state_dict | {name: value})


def test_settings_that_do_not_fit_the_vocabulary_are_refused(state_dict):
    with pytest.raises(ValueError, match=r"has 71 ids, expected more than 8192 image codes and 7 padding ids\. Give"):
        convert(state_dict, codebook_size=8192)
    with pytest.raises(ValueError, match=r"pad_token_id is 40, expected a text id in \[0, 40\)"):
        convert(state_dict, pad_token_id=40)


class Foreign:
    """Unpickling this would call a function."""

    def __reduce__(self):
        return (print, ("code of the file was run",))


def test_a_file_that_would_run_code_is_refused_without_running_it(tmp_path, capfd):
    for save in (torch.save, lambda content, path: path.write_bytes(pickle.dumps(content, protocol=2))):
        save({"to_logits.1.weight": Foreign()}, tmp_path / "dalle.pt")
        with pytest.raises(ValueError, match=r"dalle\.pt cannot be read .*print|has nothing, but no transformer"):
            DallePytorchCheckpoint.read(tmp_path / "dalle.pt")
    assert "code of the file" not in capfd.readouterr().out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (torch.ones(3), r"has nothing, but no transformer\.layers\.blocks.*; expected the state dict of a DALLE"),
        ({"weights": {"a": torch.ones(1)}, "epoch": 3}, r"has a, but no transformer\.layers\.blocks.*torch\.save"),
        ({"epoch": 3}, r"has nothing, but no transformer"),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path, content, message):
    torch.save(content, tmp_path / "dalle.pt")
    with pytest.raises(ValueError, match=message):
        DallePytorchCheckpoint.read(tmp_path / "dalle.pt")


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
@pytest.mark.parametrize("length", [0, 40, -40])
def test_a_damaged_file_is_refused(tmp_path, suffix, length):
    path = tmp_path / f"dalle{suffix}"
    {".pt": torch.save, ".safetensors": save_file}[suffix]({"a": torch.ones(100)}, path)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(ValueError, match=r"dalle\.\w+ cannot be read as a tensors-only checkpoint: .* whole and from"):
        DallePytorchCheckpoint.read(path)


@pytest.mark.parametrize("content", [b"<html>", b"0.", b"(.", b"\x80\x02cos\nsystem\n.", b"\x80\x02]q\x00K\x01s."])
def test_a_file_that_torch_did_not_write_is_refused(tmp_path, content):
    (tmp_path / "dalle.pt").write_bytes(content)
    with pytest.raises(ValueError, match=r"dalle\.pt cannot be read as a tensors-only checkpoint: "):
        DallePytorchCheckpoint.read(tmp_path / "dalle.pt")


@pytest.mark.parametrize(
    ("notes", "given", "message"),
    [
        (
            {"attn_types": ("full", "axial_row")},
            {},
            r"attn_types=\('full', 'axial_row'\) by its own notes, exp",
        ),
        ({"attn_types": None}, {}, r"attn_types=None by its own notes"),
        ({"attn_types": [["axial_row"]]}, {}, r"attn_types=\[\['axial_row'\]\] by its own notes"),
        (
            {"attn_types": "axial_row"},
            {"final_attention": "column"},
            r"final_attention row .* column was given\. Leave",
        ),
        (
            {"num_text_tokens": 40},
            {"codebook_size": 23},
            r"codebook_size 24 .* 23 was given\. Leave out --co",
        ),
        ({"attn_types": "axial_row"}, {"conv_kernel_size": 3}, "no layer has convolutional .* Leave out --conv-kernel"),
    ],
)
def test_what_a_file_says_of_itself_is_not_overruled(state_dict, notes, given, message):
    written = {"hparams": notes, "version": "1.6.6", "weights": state_dict}
    with pytest.raises(ValueError, match=message):
        convert(written, **{"codebook_size": 24} | given)
