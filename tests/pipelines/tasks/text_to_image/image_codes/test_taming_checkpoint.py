"""Published checkpoints: read whole, and never run."""

import argparse
import os
import subprocess
import sys
import types

import pytest
import torch

from pipelines.tasks.text_to_image.image_codes.checkpoints.taming_checkpoint import (
    read_taming_codec,
    read_taming_config,
    read_taming_tensors,
)
from pipelines.tasks.text_to_image.image_codes.vqgan_codec import CodecLoadError, VQGANCodec, VQGANConfig

PUBLISHED_YAML = """
model:
  base_learning_rate: 4.5e-06
  target: taming.models.vqgan.GumbelVQ
  params:
    kl_weight: 1.0e-08
    embed_dim: 256
    n_embed: 8192
    monitor: val/rec_loss
    temperature_scheduler_config:
      target: taming.lr_scheduler.LambdaWarmUpCosineScheduler
    ddconfig:
      double_z: false
      z_channels: 256
      resolution: 256
      in_channels: 3
      out_ch: 3
      ch: 128
      ch_mult: [1, 1, 2, 4]
      num_res_blocks: 2
      attn_resolutions: [32]
      dropout: 0.0
    lossconfig:
      target: taming.modules.losses.vqperceptual.DummyLoss
"""
SMALL_YAML = (
    PUBLISHED_YAML.replace("256", "16").replace("8192", "12").replace("[1, 1, 2, 4]", "[1, 2]").replace("128", "32")
)


class Attack:
    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


def lightning_callback():
    """An object of a class that exists only while it is pickled, like the callbacks in Lightning's checkpoints."""
    module = types.ModuleType("vanished_lightning.callbacks")
    module.ModelCheckpoint = type("ModelCheckpoint", (), {"__module__": module.__name__})
    sys.modules["vanished_lightning"] = types.ModuleType("vanished_lightning")
    sys.modules["vanished_lightning.callbacks"] = module
    callback = module.ModelCheckpoint()
    callback.best_score = torch.tensor(0.5)
    return callback


def some_checkpoint(path, **extra):
    torch.manual_seed(0)
    (path.parent / "model.yaml").write_text(SMALL_YAML)
    codec = VQGANCodec(read_taming_config(path.parent / "model.yaml"))
    state = {**codec.state_dict(), "loss.discriminator.weight": torch.zeros(3)}
    torch.save({"epoch": 3, "state_dict": state, "callbacks": {}, **extra}, path)
    return codec


def test_the_published_description_gives_the_default_configuration(tmp_path):
    (tmp_path / "model.yaml").write_text(PUBLISHED_YAML)
    assert read_taming_config(tmp_path / "model.yaml") == VQGANConfig()


def test_a_checkpoint_with_unknown_callbacks_gives_the_same_codec(tmp_path):
    callback = lightning_callback()
    codec = some_checkpoint(
        tmp_path / "last.ckpt", callbacks={type(callback): callback}, hyper_parameters=argparse.Namespace(a=1)
    )
    del sys.modules["vanished_lightning.callbacks"], sys.modules["vanished_lightning"]
    loaded = read_taming_codec(tmp_path / "last.ckpt", tmp_path / "model.yaml")
    assert loaded.fingerprint == codec.fingerprint
    images = torch.rand(2, 3, 16, 16)
    assert torch.equal(loaded.encode(images), codec.eval().encode(images))


@pytest.mark.parametrize("function", [subprocess.check_call, exec], ids=["subprocess", "exec"])
def test_code_hidden_in_a_checkpoint_does_not_run(tmp_path, function):
    trace = tmp_path / "trace"
    argument = ["touch", str(trace)] if function is subprocess.check_call else f"open({str(trace)!r}, 'w')"
    codec = some_checkpoint(tmp_path / "last.ckpt", callbacks=Attack(function, argument))
    tensors = read_taming_tensors(tmp_path / "last.ckpt")
    assert torch.equal(tensors["quant_conv.weight"], codec.quant_conv.weight)
    assert not trace.exists()


def test_a_checkpoint_that_asks_for_the_operating_system_is_refused(tmp_path):
    trace = tmp_path / "trace"
    some_checkpoint(tmp_path / "last.ckpt", callbacks=Attack(os.system, f"touch {trace}"))
    with pytest.raises(CodecLoadError, match=r"last.ckpt cannot be read .*posix is blocked"):
        read_taming_tensors(tmp_path / "last.ckpt")
    assert not trace.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"not a checkpoint", "cannot be read as a tensors-only checkpoint"),
        (b"", "cannot be read as a tensors-only checkpoint"),
    ],
)
def test_other_files_are_refused(tmp_path, content, message):
    (tmp_path / "last.ckpt").write_bytes(content)
    with pytest.raises(CodecLoadError, match=message):
        read_taming_tensors(tmp_path / "last.ckpt")


def test_a_truncated_checkpoint_is_refused(tmp_path):
    some_checkpoint(tmp_path / "last.ckpt")
    content = (tmp_path / "last.ckpt").read_bytes()
    (tmp_path / "last.ckpt").write_bytes(content[: len(content) // 2])
    with pytest.raises(CodecLoadError, match="cannot be read as a tensors-only checkpoint"):
        read_taming_tensors(tmp_path / "last.ckpt")


def test_a_checkpoint_without_tensors_is_refused(tmp_path):
    torch.save({"state_dict": {}}, tmp_path / "last.ckpt")
    with pytest.raises(CodecLoadError, match=r"has nothing, but no tensor decoder.conv_in.weight, expected a VQGAN"):
        read_taming_tensors(tmp_path / "last.ckpt")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            PUBLISHED_YAML.replace("GumbelVQ", "VQSegmentationModel"),
            "describes a VQSegmentationModel with an unknown quan",
        ),
        (PUBLISHED_YAML.replace("double_z: false", "double_z: true"), "sets double_z to True, expected False"),
        (PUBLISHED_YAML.replace("in_channels: 3", "in_channels: 1"), "sets in_channels to 1, expected 3"),
        (PUBLISHED_YAML.replace("dropout: 0.0", "tanh_out: true"), "sets tanh_out to True, expected False"),
        (PUBLISHED_YAML.replace("dropout: 0.0", "resamp_with_conv: false"), "resamp_with_conv to False, expected True"),
        (PUBLISHED_YAML.replace("dropout: 0.0", "attn_type: none"), "sets attn_type to 'none', expected 'vanilla'"),
        (PUBLISHED_YAML.replace("dropout: 0.0", "use_swish: 2"), "use_swish to 2, which this codec does not know"),
        (PUBLISHED_YAML.replace("monitor: val/rec_loss", "remap: used.npy"), "sets remap to 'used.npy', expected None"),
        (PUBLISHED_YAML.replace("      resolution: 256\n", ""), "is not a taming model description: KeyError"),
        ("model: 3", "is not a taming model description"),
        ("model: [", "is not a taming model description"),
        ("!!python/object/apply:os.system ['true']", "is not a taming model description"),
    ],
)
def test_descriptions_of_other_models_are_refused(tmp_path, text, message):
    (tmp_path / "model.yaml").write_text(text)
    with pytest.raises(CodecLoadError, match=message):
        read_taming_config(tmp_path / "model.yaml")


def test_a_checkpoint_that_does_not_fit_its_description_is_refused(tmp_path):
    some_checkpoint(tmp_path / "last.ckpt")
    (tmp_path / "model.yaml").write_text(SMALL_YAML.replace("n_embed: 12", "n_embed: 24"))
    with pytest.raises(CodecLoadError, match="does not fit its configuration"):
        read_taming_codec(tmp_path / "last.ckpt", tmp_path / "model.yaml")


def with_attention(path):
    """A checkpoint whose middle level has self-attention, as its description says."""
    (path.parent / "model.yaml").write_text(SMALL_YAML.replace("attn_resolutions: [32]", "attn_resolutions: [8]"))
    torch.manual_seed(0)
    codec = VQGANCodec(read_taming_config(path.parent / "model.yaml")).eval()
    assert any(".down.1.attn" in name for name in codec.state_dict())
    torch.save({"state_dict": codec.state_dict()}, path)
    return codec


def test_levels_with_attention_are_those_of_the_tensors(tmp_path):
    codec = with_attention(tmp_path / "last.ckpt")
    (tmp_path / "larger.yaml").write_text(
        (tmp_path / "model.yaml").read_text().replace("resolution: 16", "resolution: 32")
    )
    same = read_taming_codec(tmp_path / "last.ckpt", tmp_path / "model.yaml")
    assert same.fingerprint == codec.fingerprint
    larger = read_taming_codec(tmp_path / "last.ckpt", tmp_path / "larger.yaml")
    assert larger.config.attention_resolutions == (16,) and larger.config.num_codes == 4 * codec.config.num_codes
    for name, tensor in codec.state_dict().items():
        assert torch.equal(larger.state_dict()[name], tensor), name


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"encoder.down.0.attn.0.q.weight": torch.zeros(2)}, r"\.attn\.0\.\w+\.\w+ is absent"),
        ({"encoder.extra.weight": torch.zeros(2)}, r"encoder\.extra\.weight is of shape \(2,\), expected none"),
        ({"quant_conv.bias": torch.full((16,), float("nan"))}, r"not finite in quant_conv\.bias"),
        ({"quantize.embed.weight": torch.full((12, 16), float("inf"))}, r"not finite in quantize\.embed\.weight"),
    ],
    ids=["attention", "unknown", "nan", "infinite"],
)
def test_tensors_that_would_not_be_used_or_are_not_finite_are_refused(tmp_path, changed, message):
    codec = some_checkpoint(tmp_path / "last.ckpt")
    torch.save({"state_dict": codec.state_dict() | changed}, tmp_path / "last.ckpt")
    with pytest.raises(CodecLoadError, match=message):
        read_taming_codec(tmp_path / "last.ckpt", tmp_path / "model.yaml")
