"""What is expected of any model of transformers: initialisation, types, devices, gradients, a resizable vocabulary."""

import math

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModel, BitsAndBytesConfig

from modeling_dalle_collab import DalleCollabForConditionalGeneration

PEFT_ASKS_BY_AN_OLD_NAME = "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"


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


@pytest.mark.filterwarnings(PEFT_ASKS_BY_AN_OLD_NAME)
@pytest.mark.parametrize(
    "settings",
    [
        dict(target_modules=["token_embedding"]),
        dict(target_modules=["token_embedding"], use_dora=True),
        dict(target_modules=["qkv"], trainable_token_indices={"token_embedding": [1, 3, 50]}),
        dict(target_modules=["qkv"], modules_to_save=["token_embedding"]),
    ],
    ids=["lora", "dora", "trainable tokens", "saved module"],
)
@torch.no_grad()
def test_an_adapter_on_the_tied_table_is_merged_into_the_same_function(tiny_model, tiny_batch, settings):
    adapted, batch = get_peft_model(tiny_model(), LoraConfig(r=2, **settings)).eval(), tiny_batch()
    plain = adapted(*batch).logits
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.add_(0.3 * torch.randn(parameter.shape))
    logits, codes = adapted(*batch).logits, adapted.generate(batch[0], seed=1)
    merged = adapted.merge_and_unload().eval()
    assert not torch.allclose(logits, plain, atol=1e-2)
    torch.testing.assert_close(merged(*batch).logits, logits, atol=1e-4, rtol=1e-4)
    assert torch.equal(merged.generate(batch[0], seed=1), codes)


def test_noise_on_embeddings_leaves_the_head_alone(tiny_model, tiny_batch):
    model, seen = tiny_model().eval(), []
    model.get_input_embeddings().register_forward_hook(lambda _module, _ids, out: seen.append(out.shape[0]))
    model(*tiny_batch(batch=3))
    assert seen == [3]


@pytest.mark.filterwarnings(PEFT_ASKS_BY_AN_OLD_NAME)
def test_a_table_with_an_adapter_is_not_resized(tiny_model):
    adapted = get_peft_model(tiny_model(), LoraConfig(r=2, target_modules=["token_embedding"]))
    with pytest.raises(ValueError, match="The table is a Embedding of peft, expected one without an adapter"):
        adapted.resize_token_embeddings(50)
    assert adapted.config.text_vocab_size == 40


@pytest.mark.parametrize("are_trained", [False, True])
def test_resizing_keeps_what_is_frozen(tiny_model, are_trained):
    model = tiny_model().requires_grad_(are_trained)
    model.resize_token_embeddings(45)
    assert {parameter.requires_grad for parameter in model.parameters()} == {are_trained}
