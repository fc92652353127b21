"""Checkpoints as other tools write them: the same codec, wherever its weights are and whatever stands before names."""

import pytest
import torch
from safetensors.torch import save_file
from torch.optim.swa_utils import AveragedModel

from pipelines.tasks.text_to_image.image_codes.checkpoints.foreign_checkpoint import MOST_LEVELS, weights_with
from pipelines.tasks.text_to_image.image_codes.checkpoints.taming_checkpoint import read_taming_codec
from pipelines.tasks.text_to_image.image_codes.vqgan_codec import VQGANCodec
from pipelines.tasks.text_to_image.image_codes.vqgan_config import CodecLoadError, VQGANConfig

MARK = "decoder.conv_in.weight"
SMALL = VQGANConfig(
    image_size=16, codebook_size=12, embedding_dim=16, z_channels=16, channels=32, channel_multipliers=(1, 2),
    num_residual_blocks=1, attention_resolutions=(), quantizer="nearest",
)  # fmt: skip
DESCRIPTION = """
model:
  target: taming.models.vqgan.VQModel
  params: {embed_dim: 16, n_embed: 12, ddconfig: {double_z: false, z_channels: 16, resolution: 16, in_channels: 3,
    out_ch: 3, ch: 32, ch_mult: [1, 2], num_res_blocks: 1, attn_resolutions: [], dropout: 0.0}}
"""


@pytest.fixture(scope="module")
def codec():
    torch.manual_seed(0)
    return VQGANCodec(SMALL)


@pytest.fixture
def read(tmp_path):
    """Return what saves a content as a checkpoint, and reads the codec in it."""

    def read(content, name="last.ckpt", save=torch.save):
        (tmp_path / "model.yaml").write_text(DESCRIPTION)
        save(content, tmp_path / name)
        return read_taming_codec(tmp_path / name, tmp_path / "model.yaml")

    return read


def before(prefix, weights):
    return {prefix + name: tensor for name, tensor in weights.items()}


def zeros(weights):
    return {name: torch.zeros_like(tensor) for name, tensor in weights.items()}


def trained(codec):
    """An optimizer's state, which has tensors, and no names of weights."""
    optimizer = torch.optim.Adam(codec.parameters())
    for parameter in codec.parameters():
        parameter.grad = torch.ones_like(parameter)
    return optimizer.state_dict() | {"state": {0: {"exp_avg": torch.ones(3)}}}


TOOLS = {
    "alone": lambda codec, own: own,
    "Lightning": lambda codec, own: {"state_dict": own, "optimizer_states": [trained(codec)], "callbacks": {}},
    "DataParallel": lambda codec, own: {"state_dict": before("module.", own)},
    "torch.compile": lambda codec, own: before("_orig_mod.", own),
    "both": lambda codec, own: {"model": before("module._orig_mod.", own), "optimizer": trained(codec)},
    "Net2Net": lambda codec, own: {
        "state_dict": before("first_stage_model.", own) | before("cond_stage_model.", zeros(own))
    },
    "DALLE": lambda codec, own: {"weights": before("vae.model.", own) | {"to_logits.1.weight": torch.ones(2, 2)}},
    "DeepSpeed": lambda codec, own: {"module": own, "optimizer": trained(codec), "global_steps": 3},
    "average beside": lambda codec, own: {"state_dict": zeros(own), "state_dict_ema": own},
    "average inside": lambda codec, own: before("online_model.", zeros(own)) | before("ema_model.", own),
    "latent-diffusion": lambda codec, own: (
        zeros(own) | {f"model_ema.{name.replace('.', '')}": tensor for name, tensor in own.items()}
    ),
    "AveragedModel": lambda codec, own: AveragedModel(codec).state_dict(),
    "twice the same": lambda codec, own: {"model": own, "state_dict": dict(own)},
}


@pytest.mark.parametrize("written", TOOLS.values(), ids=TOOLS)
def test_the_codec_is_the_same_however_a_tool_wrote_it(codec, read, written):
    content = written(codec, dict(codec.state_dict()))
    assert read(content).fingerprint == codec.fingerprint


def test_safetensors_and_torchs_old_format_are_read_too(codec, read):
    own = before("module.", {name: tensor.contiguous() for name, tensor in codec.state_dict().items()})
    assert read(own, "last.safetensors", save_file).fingerprint == codec.fingerprint

    def save_as_before(content, path):
        torch.save(content, path, _use_new_zipfile_serialization=False)

    assert read(own, save=save_as_before).fingerprint == codec.fingerprint


def test_two_models_of_one_kind_are_not_mixed_up(codec, read):
    own = codec.state_dict()
    with pytest.raises(CodecLoadError, match=r"has other weights under `a\.` than under `b\.`, expected one model"):
        read({"a": dict(own), "b": zeros(own)})


def test_names_that_only_look_like_an_average_are_none():
    content = {"schema": {MARK: torch.zeros(1)}, "ema": {"shadow": {MARK: torch.ones(1)}}}
    assert weights_with(content, MARK, "x")[MARK] == 1
    assert weights_with({"cinema": {MARK: torch.zeros(1)}}, MARK, "x")[MARK] == 0


def test_a_checkpoint_without_such_a_model_names_what_it_has(read):
    with pytest.raises(CodecLoadError, match=r"has a, b, but no tensor decoder.conv_in.weight, expected a VQGAN"):
        read({"hparams": {}, "weights": {"a": torch.ones(1), "b": torch.ones(1)}, "few": {"c": torch.ones(1)}})


def test_dictionaries_in_each_other_are_searched_to_a_bound():
    loop: dict = {f"part {number}": {} for number in range(100)}
    for inner in loop.values():
        inner.update({f"loop {number}": loop for number in range(100)})
    assert weights_with(loop, MARK, "x") == {}
    deep: dict = {MARK: torch.ones(1)}
    for _ in range(MOST_LEVELS - 1):
        deep = {"a": deep}
    assert weights_with(deep, MARK, "x") and not weights_with({"a": deep}, MARK, "x")
