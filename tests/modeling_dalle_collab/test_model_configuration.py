"""Sizes that cannot work are refused with what was seen, what was expected and a cure; those that can, round-trip."""

import json
import logging

import pytest
import torch

from modeling_dalle_collab import DalleCollabConfig, DalleCollabForConditionalGeneration


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 30}, "hidden_size is 30, expected a multiple of 4.*Use 32"),
        ({"hidden_size": "32"}, "hidden_size is '32', expected a whole number of at least 1"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0, expected a whole number of at least 1"),
        ({"codebook_size": True}, "codebook_size is True, expected a whole number"),
        ({"head_dim": 15}, "head_dim is 15, expected an even number of at least 6.*Use 16"),
        ({"head_dim": 4}, "head_dim is 4, expected an even number of at least 6.*Use 6"),
        ({"conv_kernel_size": 4}, "conv_kernel_size is 4, expected an odd number"),
        (
            {"attention_pattern": ("row", "diagonal")},
            "Attention kind 'diagonal' is unknown, expected one of row, column",
        ),
        ({"final_attention": "full"}, "Attention kind 'full' is unknown"),
        ({"attention_pattern": ()}, "attention_pattern has 0 kinds.*Expected at least one kind"),
        (
            {"num_hidden_layers": 4},
            "attention_pattern has 4 kinds, but num_hidden_layers is 4.*Shorten it, or use 5 layers",
        ),
        ({"conv_window": "left"}, "conv_window is 'left', expected one of centred, corner"),
        ({"recompute": "all"}, "recompute is 'all', expected one of reversible, partial, none"),
        ({"pad_token_id": 40}, r"pad_token_id is 40, expected a text id in \[0, 40\)"),
        ({"attention_dropout": 1.0}, "attention_dropout is 1.0, expected a number from 0 up to"),
        ({"image_loss_weight": 0}, "image_loss_weight is 0, expected a number above 0"),
    ],
)
def test_sizes_that_cannot_work_are_refused(tiny_config, changes, message):
    with pytest.raises(ValueError, match=message):
        tiny_config(**changes)


def test_the_defaults_are_the_papers_model():
    config = DalleCollabConfig()
    assert config.layer_kinds == ("row", "column", "row", "row") * 15 + ("row", "column", "row", "convolutional")
    assert config.layer_groups == (0, 1, 2, 3) * 15 + (0, 1, 2, 4)
    assert (config.num_text_ids, config.vocab_size, config.sequence_length) == (32356, 40548, 1280)
    with torch.device("meta"):
        model = DalleCollabForConditionalGeneration(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == pytest.approx(125.89e6, abs=5e3)


def test_layers_of_one_place_in_the_pattern_share_weights(tiny_model):
    names = dict(tiny_model(attention_pattern=("row", "column")).named_parameters())
    assert len({name.split(".")[3] for name in names if ".groups." in name}) == 3
    assert len({name.split(".")[3] for name in names if ".layers." in name}) == 6


def test_a_configuration_survives_saving(tiny_config, tmp_path):
    config = tiny_config(attention_pattern=("row", "column"), conv_window="corner", recompute="none")
    config.save_pretrained(tmp_path)
    loaded = DalleCollabConfig.from_pretrained(tmp_path)
    assert loaded.to_dict() == config.to_dict() and loaded.layer_kinds == config.layer_kinds
    assert json.loads((tmp_path / "config.json").read_text())["attention_pattern"] == ["row", "column"]


def test_initial_scales_shrink_with_depth(tiny_config):
    model = DalleCollabForConditionalGeneration(tiny_config(num_hidden_layers=30))
    scales = [layer.feed_forward.scale for layer in model.model.stack.layers]
    assert all(len(scale.unique()) == 1 for scale in scales)
    firsts = torch.stack([scale[0] for scale in scales])
    torch.testing.assert_close(firsts, torch.tensor([0.1] * 18 + [1e-5] * 6 + [1e-6] * 6))
    table = model.model.token_embedding.weight
    assert table.abs().max() <= 32**-0.5 and table.std().item() == pytest.approx((1 / 32 / 3) ** 0.5, rel=0.05)


@pytest.mark.parametrize("name", ["num_layers", "conv_windows", "rope_theta"])
def test_a_setting_that_the_model_does_not_have_is_refused(name):
    with pytest.raises(ValueError, match=f"{name} would have no effect on this model"):
        DalleCollabConfig(**{name: 4})


def test_what_tools_note_in_a_saved_configuration_is_kept_with_a_warning(tmp_path, caplog):
    config = DalleCollabConfig()
    config.eos_token_id, config.note_of_a_tool = 3, "fast"
    config.save_pretrained(tmp_path)
    logging.getLogger("transformers").addHandler(caplog.handler)
    assert DalleCollabConfig.from_pretrained(tmp_path).note_of_a_tool == "fast"
    logging.getLogger("transformers").removeHandler(caplog.handler)
    assert "note_of_a_tool would have no effect" in caplog.text and "eos_token_id" not in caplog.text


def test_an_untied_table_is_refused():
    with pytest.raises(ValueError, match="tie_word_embeddings is False, but this model has one table"):
        DalleCollabConfig(tie_word_embeddings=False)
