"""A converted model computes what the real dalle-pytorch computes with the same weights."""

import pytest
import torch
from golden_files import golden_settings, golden_state_dict, golden_tensors
from safetensors.torch import save_model

from modeling_dalle_collab import DalleCollabConfig
from pipelines.tasks.text_to_image.conversion.checkpoint_sizes import UnseenSettings, infer_config
from pipelines.tasks.text_to_image.conversion.dalle_pytorch_checkpoint import DallePytorchCheckpoint, build_model
from pipelines.tasks.text_to_image.conversion.dalle_pytorch_names import FORK_LAYOUT, RELEASE_LAYOUT

# What differs from the tiny model of conftest.
SIZES = {
    "tiny": {},
    "head_dim of the original run": {"head_dim": 64},
    "half of the channels do not turn": {"head_dim": 10},
    "two channels do not turn": {"head_dim": 26},
    "more channels of attention than the width": {"head_dim": 28, "num_attention_heads": 3},
    "one layer": {"num_hidden_layers": 1},
    "two layers": {"num_hidden_layers": 2},
    "fewer layers than the pattern": {"num_hidden_layers": 4},
    "a pattern of three": {"num_hidden_layers": 8, "attention_pattern": ("column", "row", "convolutional")},
    "a pattern of one": {"attention_pattern": ("column",), "final_attention": "row"},
    "no shared weights": {"shared": False},
    "a text longer than the image": {"text_sequence_length": 33, "image_grid_size": 3},
    "a grid of one": {"image_grid_size": 1},
    "a grid wider than the window": {"image_grid_size": 8},
    "made for inference": {"optimize_for_inference": True},
}

SHORT = ("tiny", "more channels of attention than the width", "a pattern of three", "a text longer than the image")
each_size = pytest.mark.parametrize(
    "changes",
    [pytest.param(one, id=name, marks=() if name in SHORT else pytest.mark.long) for name, one in SIZES.items()],
)


def convert(state_dict, **settings):
    """Return our model for a state dict of the tiny ancestor, or of one that differs by the settings."""
    known = {"attention_pattern", "final_attention", "conv_window", "head_dim", "codebook_size"}
    values = {"codebook_size": 24, "conv_window": "corner"} | settings
    checkpoint = DallePytorchCheckpoint.from_tensors(state_dict)
    unseen = UnseenSettings(**{name: value for name, value in values.items() if name in known})
    return build_model(checkpoint, infer_config(checkpoint, unseen))


def captions_and_codes(config, batch=2):
    generator = torch.Generator().manual_seed(2)
    text = torch.randint(2, config.text_vocab_size, (batch, config.text_sequence_length), generator=generator)
    text[0, 4:], text[1, 3:] = 1, 0
    return text, torch.randint(0, config.codebook_size, (batch, config.num_image_codes), generator=generator)


def as_the_fork_names_it(state_dict):
    """Return a state dict of dalle-pytorch 1.6.6 under the names of the original run's fork."""
    wrappers = {".f.net.fn.fn.fn.fn.fn.": ".f.net.fn.fn.fn.", ".g.net.fn.fn.fn.fn.": ".g.net.fn.fn.fn."}
    renamed = {}
    for name, tensor in state_dict.items():
        for theirs, forks in wrappers.items():
            name = name.replace(theirs, forks)
        renamed[name] = tensor
    return renamed


@torch.no_grad()
def greedy_codes(ancestor, text, config):
    """Return the codes that the ancestor finds likeliest, one full forward pass for each."""
    codes = torch.empty(len(text), 0, dtype=torch.int64)
    for _ in range(config.num_image_codes):
        newest = ancestor(text.clone(), codes)[:, -1, config.num_text_ids :].argmax(dim=-1)
        codes = torch.cat([codes, newest[:, None]], dim=1)
    return codes


def assert_equal_logits(ours, theirs):
    """Compare where the ancestor has not masked; there ours hold the lowest number."""
    masked = theirs == -torch.finfo(torch.float32).max
    assert torch.equal(ours == torch.finfo(torch.float32).min, masked)
    torch.testing.assert_close(ours[~masked], theirs[~masked], atol=1e-4, rtol=0)


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@each_size
def test_logits_and_loss_equal_those_of_dalle_pytorch(ancestor, changes, training):
    theirs = ancestor(**changes).train(training)
    ours = convert(theirs.state_dict(), **changes).train(training)
    text, codes = captions_and_codes(ours.config)
    output = ours(text, codes)
    assert_equal_logits(output.logits, theirs(text.clone(), codes))
    assert output.loss.item() == pytest.approx(theirs(text.clone(), codes, return_loss=True).item(), abs=1e-5)


@each_size
def test_greedy_generation_takes_the_codes_of_dalle_pytorch(ancestor, changes):
    theirs = ancestor(**changes)
    ours = convert(theirs.state_dict(), **changes)
    text, _ = captions_and_codes(ours.config)
    codes = ours.generate_image_codes(text, temperature=0, num_candidates=1)
    assert torch.equal(codes[:, 0], greedy_codes(theirs, text, ours.config))


@pytest.mark.parametrize("changes", SIZES.values(), ids=SIZES)
def test_the_sizes_are_read_off_the_tensors(ancestor, changes):
    theirs = ancestor(**changes)
    ours = convert(theirs.state_dict(), **changes)
    config, text_ids = ours.config, theirs.num_text_tokens
    assert (config.text_sequence_length, config.num_image_codes) == (theirs.text_seq_len, theirs.image_seq_len)
    assert (config.vocab_size, config.num_text_ids) == (theirs.total_tokens, text_ids)
    attention = theirs.transformer.layers.blocks[0].f.net.fn.fn.fn.fn.fn
    assert (config.num_attention_heads, config.head_dim**-0.5) == (attention.heads, attention.scale)
    assert ours.num_parameters() == sum(parameter.numel() for parameter in theirs.parameters())


@pytest.mark.parametrize("window", ["corner", "centred"])
@pytest.mark.parametrize("rename", [dict, as_the_fork_names_it], ids=["release", "fork"])
def test_the_golden_model_converts_from_both_layouts_and_for_both_windows(window, rename):
    expected, sizes = golden_tensors(), golden_settings()["config"]
    model = convert(rename(golden_state_dict()), codebook_size=sizes["vocab_image"], conv_window=window)
    before = {"corner": "", "centred": "legacy_conv/"}[window]
    output = model(expected["text"], expected["image"])
    image_logits = output.logits[:, sizes["text_seq_len"] :, model.config.num_text_ids :]
    torch.testing.assert_close(image_logits, expected[f"{before}logits_image"], atol=1e-4, rtol=0)
    assert output.loss.item() == pytest.approx(expected[f"{before}loss"].item(), abs=1e-5)
    codes = model.generate_image_codes(expected["text"], temperature=0, num_candidates=1)
    assert torch.equal(codes[:, 0], expected[f"{before}greedy_tokens"])


@pytest.mark.parametrize("prefix", ["", "model."])
@pytest.mark.parametrize("with_views", [True, False], ids=["with_views", "without_views"])
@pytest.mark.parametrize("rename", [dict, as_the_fork_names_it], ids=["release", "fork"])
def test_every_spelling_of_the_names_gives_the_same_model(ancestor, prefix, with_views, rename):
    state_dict = ancestor().state_dict()
    spelled = {
        prefix + name: tensor for name, tensor in rename(state_dict).items() if with_views or ".linear." not in name
    }
    assert len(spelled) == len(state_dict) - (0 if with_views else 4)
    checkpoint = DallePytorchCheckpoint.from_tensors(spelled)
    assert checkpoint.layout is (FORK_LAYOUT if rename is as_the_fork_names_it else RELEASE_LAYOUT)
    expected, model = convert(state_dict).state_dict(), convert(spelled)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".safetensors"])
def test_every_kind_of_file_gives_the_same_tensors(ancestor, tmp_path, suffix):
    theirs, path = ancestor(), tmp_path / f"dalle{suffix}"
    if suffix == ".safetensors":
        save_model(theirs, str(path))  # writes a shared tensor once
    else:
        torch.save(theirs.state_dict(), path)
    read, expected = DallePytorchCheckpoint.read(path), DallePytorchCheckpoint.from_tensors(theirs.state_dict())
    assert read.tensors.keys() == expected.tensors.keys()
    assert all(torch.equal(tensor, expected.tensors[name]) for name, tensor in read.tensors.items())


def test_a_checkpoint_of_train_dalle_needs_no_options(ancestor, tmp_path):
    """What train_dalle.py of 1.6.6 writes, and what it says of itself."""
    kinds = ["axial_row", "axial_col", "axial_row", "axial_row", "axial_row", "axial_col", "conv_like"]
    said = dict(num_text_tokens=40, text_seq_len=7, dim=32, depth=7, heads=2, dim_head=18, attn_types=tuple(kinds))
    own = ancestor().state_dict()
    content = {"hparams": said, "vae_params": None, "epoch": 3, "version": "1.6.6", "vae_class_name": "VQGanVAE"}
    content |= {"weights": own, "opt_state": {"state": {0: {"exp_avg": torch.ones(2)}}, "param_groups": []}}
    torch.save(content | {"scheduler_state": None}, tmp_path / "dalle.pt")
    read = DallePytorchCheckpoint.read(tmp_path / "dalle.pt")
    config = infer_config(read, UnseenSettings())
    assert (config.codebook_size, config.text_vocab_size, config.head_dim) == (24, 40, 18)
    assert (config.attention_pattern, config.final_attention) == (("row", "column", "row", "row"), "convolutional")
    assert (config.conv_window, config.pad_token_id) == ("corner", 0)
    expected = convert(own).state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in build_model(read, config).state_dict().items())


@pytest.mark.parametrize(
    "written",
    [
        lambda own: {"state_dict": {f"dalle.{name}": tensor for name, tensor in own.items()}, "callbacks": {}},
        lambda own: {"module": own, "optimizer": {"state": {}}},
        lambda own: {f"module._orig_mod.{name}": tensor for name, tensor in own.items()},
        lambda own: {"model": {name: 0 * tensor for name, tensor in own.items()}, "ema": own},
    ],
    ids=["Lightning", "DeepSpeed", "compiled", "average"],
)
def test_every_tools_way_to_write_it_gives_the_same_model(ancestor, written):
    own = ancestor().state_dict()
    expected, model = convert(own).state_dict(), convert(written(own))
    assert all(torch.equal(tensor, expected[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(("version", "window"), [("1.4.2", "centred"), ("1.5.0", "corner"), ("1.10", "corner")])
def test_the_version_in_a_file_says_where_the_window_is(ancestor, version, window):
    notes = {"hparams": {"dim_head": "18", "attn_types": "axial_row"}, "version": version}
    checkpoint = DallePytorchCheckpoint.from_tensors(notes | {"weights": ancestor().state_dict()})
    config = infer_config(checkpoint, UnseenSettings(codebook_size=24))
    assert (config.conv_window, config.final_attention, config.pad_token_id) == (window, "row", 0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_becomes_float32_with_exact_positions(ancestor, dtype):
    theirs = ancestor()
    model = convert({name: tensor.to(dtype) for name, tensor in theirs.state_dict().items()})
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(parameter.to(dtype))
    text, codes = captions_and_codes(model.config)
    assert_equal_logits(model(text, codes).logits, theirs(text.clone(), codes))


def test_the_weights_of_the_codec_are_left_out_and_counted(ancestor):
    state_dict = ancestor().state_dict() | {"vae.model.encoder.weight": torch.ones(2), "vae.model.bias": torch.ones(1)}
    assert DallePytorchCheckpoint.from_tensors(state_dict).num_codec_tensors == 2
    assert convert(state_dict).num_parameters() == convert(ancestor().state_dict()).num_parameters()


def test_the_width_of_the_feed_forward_layers_is_read_off_their_shapes(ancestor):
    """dalle-pytorch's DALLE always makes it 4, so the tensors are cut."""
    state_dict = ancestor().state_dict()
    for name, tensor in state_dict.items():
        if ".net.0." in name:
            state_dict[name] = torch.cat([half[:64] for half in tensor.chunk(2)])
        elif ".net.3.weight" in name:
            state_dict[name] = tensor[:, :64]
    assert convert(state_dict).config.feed_forward_multiplier == 2


def test_the_converted_model_learns_on(ancestor):
    model = convert(ancestor().state_dict()).train()
    model(*captions_and_codes(model.config), return_logits=False).loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_what_no_tensor_tells_is_as_given(ancestor):
    settings = {"conv_kernel_size": 3, "conv_window": "corner", "final_attention": "row", "pad_token_id": 0}
    settings |= {"codebook_size": 23, "attention_pattern": ("column", "row", "row", "convolutional"), "head_dim": 18}
    checkpoint = DallePytorchCheckpoint.from_tensors(ancestor().state_dict())
    config = infer_config(checkpoint, UnseenSettings(**settings))
    assert {name: getattr(config, name) for name in settings} == settings
    assert config.text_vocab_size == 41


def test_the_defaults_of_what_no_tensor_tells_are_the_original_runs():
    unseen, config = UnseenSettings(), DalleCollabConfig()
    assert {name: getattr(config, name) for name in vars(unseen) if name != "head_dim"} == {
        name: value for name, value in vars(unseen).items() if name != "head_dim"
    }
