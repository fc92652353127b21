"""A saved model is tensors, settings and code: it loads here by class and auto class, and elsewhere by itself."""

import os
import subprocess
import sys

import pytest
import torch
from isolation import PROJECT, environment_without
from safetensors.torch import load_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoConfig, AutoModel, AutoModelForMultimodalLM, PreTrainedTokenizerFast

from modeling_dalle_collab import DalleCollabForConditionalGeneration, DalleCollabModel, DalleCollabProcessor

FILES = {
    *("config.json", "generation_config.json", "model.safetensors"),
    *("attention_dalle_collab.py", "blocks_dalle_collab.py", "cache_dalle_collab.py", "configuration_dalle_collab.py"),
    *("generation_dalle_collab.py", "linear_dalle_collab.py", "inputs_dalle_collab.py", "modeling_dalle_collab.py"),
    *("pipeline_dalle_collab.py", "captured_dalle_collab.py", "compiled_dalle_collab.py"),
    *("code_cache_dalle_collab.py", "offloaded_dalle_collab.py"),
    *("feed_forward_dalle_collab.py", "guessing_dalle_collab.py", "packed_dalle_collab.py"),
    "reversible_dalle_collab.py",
    *("sampling_dalle_collab.py", "table_dalle_collab.py"),
}


@pytest.fixture
def saved(tiny_model, tmp_path):
    model = tiny_model()
    model.save_pretrained(tmp_path / "saved")
    return model, tmp_path / "saved"


def test_a_saved_model_is_tensors_settings_and_code(saved):
    _, folder = saved
    assert {path.name for path in folder.iterdir()} == FILES


def test_every_tensor_is_stored_once(saved):
    model, folder = saved
    stored = load_file(folder / "model.safetensors")
    assert stored.keys() == model.state_dict().keys() == dict(model.named_parameters()).keys()
    tables = [name for name, tensor in stored.items() if model.config.vocab_size in tensor.shape and tensor.dim() == 2]
    assert tables == ["model.token_embedding.weight"]
    assert sum(tensor.numel() for tensor in stored.values()) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("loader", [DalleCollabForConditionalGeneration, AutoModel, AutoModelForMultimodalLM])
def test_a_loaded_model_gives_the_same_logits(saved, tiny_batch, loader):
    model, folder = saved
    loaded, report = loader.from_pretrained(folder, output_loading_info=True)
    assert type(loaded) is DalleCollabForConditionalGeneration
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert torch.equal(loaded(*tiny_batch()).logits, model.eval()(*tiny_batch()).logits)


def test_a_loaded_model_can_still_be_trained(saved, tiny_batch):
    _, folder = saved
    loaded = AutoModel.from_pretrained(folder).train()
    loaded(*tiny_batch(), return_logits=False).loss.backward()
    assert all(parameter.grad is not None for parameter in loaded.parameters())


def test_sharded_and_bfloat16_weights_load(saved, tiny_batch, tmp_path):
    model, _ = saved
    model.to(torch.bfloat16).save_pretrained(tmp_path / "sharded", max_shard_size="10kB")
    assert len(list((tmp_path / "sharded").glob("model-*.safetensors"))) > 2
    loaded = AutoModel.from_pretrained(tmp_path / "sharded", dtype=torch.bfloat16)
    assert torch.equal(loaded(*tiny_batch()).logits, model.eval()(*tiny_batch()).logits)


def test_the_body_loads_from_a_checkpoint_of_the_whole(saved, tiny_batch):
    model, folder = saved
    body = DalleCollabModel.from_pretrained(folder)
    hidden = model.model(*tiny_batch()).last_hidden_state
    assert hidden.shape == (3, 22, 32) and torch.equal(body(*tiny_batch()).last_hidden_state, hidden)


def test_generation_settings_are_saved_with_the_model(saved):
    model, folder = saved
    assert AutoModel.from_pretrained(folder).generation_config.top_k == 256
    model.generation_config.top_k, model.generation_config.temperature = 7, 0.9
    model.save_pretrained(folder)
    settings = AutoModel.from_pretrained(folder).generation_config
    assert (settings.top_k, settings.temperature, settings.do_sample) == (7, 0.9, True)


def test_another_size_in_the_checkpoint_is_refused(saved, tiny_config):
    _, folder = saved
    with pytest.raises(RuntimeError, match=r"size mismatch|mismatched"):
        DalleCollabForConditionalGeneration.from_pretrained(folder, config=tiny_config(hidden_size=64))


ELSEWHERE = """
import sys

import torch
from transformers import AutoConfig, AutoModel, AutoModelForMultimodalLM, AutoProcessor

torch.set_num_threads(1)
folder, target = sys.argv[1:]
processor = AutoProcessor.from_pretrained(folder, trust_remote_code=True)
model = AutoModel.from_pretrained(folder, trust_remote_code=True)
assert type(model).__name__ == "DalleCollabForConditionalGeneration", type(model)
assert type(AutoConfig.from_pretrained(folder, trust_remote_code=True)).__name__ == "DalleCollabConfig"
assert type(AutoModelForMultimodalLM.from_pretrained(folder, trust_remote_code=True)) is type(model)
input_ids = processor(text=["red circle"]).input_ids
codes = model.generate_image_codes(input_ids, num_candidates=3, seed=9)
model.train()
model(input_ids, codes[:, 0]).loss.backward()
model.save_pretrained(target)
processor.save_pretrained(target)
again = AutoModel.from_pretrained(target, trust_remote_code=True)
assert torch.equal(again.generate_image_codes(input_ids, num_candidates=3, seed=9), codes)
print(codes.tolist())
"""


@pytest.mark.slow
def test_a_saved_model_generates_where_the_project_is_not_installed(saved, tmp_path):
    model, folder = saved
    words = {"<unk>": 0, "</s>": 1, "red": 2, "circle": 3}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="<unk>")), pad_token="</s>"
    )
    processor = DalleCollabProcessor(tokenizer, text_sequence_length=6)
    processor.save_pretrained(folder)
    script = tmp_path / "elsewhere.py"
    script.write_text(ELSEWHERE)
    environment = {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, script, folder, tmp_path / "again"],
        cwd=tmp_path,
        env=environment_without(PROJECT, environment),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    expected = model.generate_image_codes(processor(text=["red circle"]).input_ids, num_candidates=3, seed=9)
    assert done.stdout.strip().splitlines()[-1] == str(expected.tolist())
    assert {path.name for path in folder.iterdir()} == {path.name for path in (tmp_path / "again").iterdir()}


def test_the_configuration_loads_by_its_auto_class(saved):
    model, folder = saved
    assert type(AutoConfig.from_pretrained(folder)) is type(model.config)
