"""What is expected of any model of transformers: initialisation, types, devices, gradients, a resizable vocabulary."""

import math

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, BitsAndBytesConfig

from modeling_dalle_collab import DalleCollabForConditionalGeneration


@pytest.fixture
def saved(tiny_model, tmp_path):
    model = tiny_model().eval()
    model.save_pretrained(tmp_path / "saved")
    return model, tmp_path / "saved"


def test_what_a_checkpoint_lacks_is_initialised(saved):
    model, folder = saved
    tensors = load_file(folder / "model.safetensors")
    lacking = {name for name in tensors if "layers.1." in name or "groups.0.attention" in name or "bias" in name}
    kept = {name: tensor for name, tensor in tensors.items() if name not in lacking}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    loaded, report = AutoModel.from_pretrained(folder, output_loading_info=True)
    assert set(report["missing_keys"]) == lacking
    for name, parameter in loaded.named_parameters():
        assert parameter.isfinite().all() and parameter.device.type == "cpu", name
    assert (loaded.model.stack.layers[1].attention.scale == 0.1).all()
    assert (loaded.model.stack.layers[1].attention.norm.weight == 1).all()
    bound = 1 / math.sqrt(model.config.hidden_size)
    assert 0.8 * bound < loaded.model.stack.groups[0].attention.qkv.weight.abs().max() <= bound


def test_two_models_of_one_seed_are_equal(tiny_config):
    models = []
    for _ in range(2):
        torch.manual_seed(5)
        models.append(DalleCollabForConditionalGeneration(tiny_config()))
    for name, parameter in models[0].named_parameters():
        assert torch.equal(parameter, models[1].get_parameter(name)), name


def test_no_two_names_share_memory(tiny_model):
    pointers = [tensor.data_ptr() for tensor in tiny_model().state_dict().values()]
    assert len(pointers) == len(set(pointers))


@pytest.mark.parametrize("recompute", ["reversible", "partial", "none"])
def test_every_parameter_gets_a_gradient(tiny_model, tiny_batch, recompute):
    model = tiny_model(recompute=recompute).train()
    model(*tiny_batch()).loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all() and parameter.grad.any(), name


def test_bfloat16_changes_the_logits_by_rounding_alone(saved, tiny_batch):
    model, folder = saved
    exact = model(*tiny_batch()).logits
    loaded = AutoModel.from_pretrained(folder, dtype=torch.bfloat16).eval()
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.bfloat16}
    output = loaded(*tiny_batch())
    assert output.logits.dtype == torch.bfloat16 and output.loss.dtype == torch.float32
    possible = exact > torch.finfo(torch.float32).min
    # Eight bits of mantissa through six layers; the logits' standard deviation is above 1.
    assert (output.logits.float() - exact)[possible].abs().max() < 0.15
    assert exact[possible].std() > 0.9


@pytest.mark.parametrize("device_map", ["cpu", "auto", {"": "cpu"}])
def test_a_device_map_places_the_model(saved, tiny_batch, device_map):
    model, folder = saved
    loaded = AutoModel.from_pretrained(folder, device_map=device_map)
    torch.testing.assert_close(loaded(*tiny_batch()).logits, model(*tiny_batch()).logits)


@pytest.mark.parametrize("mean_resizing", [True, False])
def test_a_larger_tokenizer_gets_rows_and_nothing_else_moves(tiny_model, tiny_batch, mean_resizing, tmp_path):
    model, (text, codes) = tiny_model().eval(), tiny_batch()
    before, old = model(text, codes).logits, model.config.text_vocab_size
    table = model.resize_token_embeddings(old + 5, mean_resizing=mean_resizing)
    assert model.config.text_vocab_size == old + 5 and len(table.weight) == model.config.vocab_size
    after = model(text, codes).logits
    torch.testing.assert_close(after[..., :old], before[..., :old])
    torch.testing.assert_close(after[..., old + 5 :], before[..., old:])
    new_text = text.clone()
    new_text[:, 0] = old + 4
    model.save_pretrained(tmp_path)
    assert torch.equal(AutoModel.from_pretrained(tmp_path)(new_text, codes).logits, model(new_text, codes).logits)
    model.resize_token_embeddings(old)
    torch.testing.assert_close(model(text, codes).logits, before)


def test_a_vocabulary_without_its_padding_is_refused(tiny_model):
    with pytest.raises(ValueError, match="1 text pieces, expected more than 1, the padding id"):
        tiny_model().resize_token_embeddings(1)
    assert tiny_model().resize_token_embeddings(41, pad_to_multiple_of=8).num_embeddings == 48 + 6 + 24


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:MatMul8bitLt:UserWarning")
@torch.no_grad()
def test_int8_weights_of_bitsandbytes_change_the_logits_by_rounding_alone(saved, tiny_batch):
    model, folder = saved
    config = BitsAndBytesConfig(load_in_8bit=True)
    loaded = AutoModel.from_pretrained(folder, quantization_config=config).eval()
    kinds = {type(module).__name__ for module in loaded.modules()}
    assert "Linear8bitLt" in kinds and "Linear" not in kinds
    exact, rounded = (one(*tiny_batch()).logits for one in (model, loaded))
    possible = exact > torch.finfo(torch.float32).min
    assert 0 < (rounded.float() - exact)[possible].abs().max() < 0.3
    codes = loaded.generate_image_codes(tiny_batch()[0], num_candidates=2)
    assert codes.shape == (3, 2, 16)
