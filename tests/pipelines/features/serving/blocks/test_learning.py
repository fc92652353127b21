"""Words, prompts and adapters are learnt across servers as they are here, and load without servers."""

import pytest
import torch
from block_links import MortalSwarm
from safetensors.torch import save_file
from tiny_models import tiny_dalle, tiny_language_model
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from modeling_dalle_collab import DalleCollabForConditionalGeneration
from pipelines.features.serving.blocks.client.distributed_model import DistributedModel, local_server
from pipelines.features.serving.blocks.client.learning import (
    LearnedWords,
    add_adapters,
    add_deep_prompts,
    learn,
    load_learned,
    save_learned,
)
from pipelines.features.serving.blocks.weights import find_model

SPANS = {"a": range(0, 3), "b": range(3, 6), "c": range(0, 6)}


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("model")
    tiny_dalle(made)
    return made


@pytest.fixture
def across(folder):
    """Return a model across two servers, with a slow spare."""
    published = find_model(str(folder))
    swarm = MortalSwarm({name: local_server(published, layers) for name, layers in SPANS.items()})
    swarm.slow = {"c"}
    return DistributedModel.from_pretrained(str(folder), swarm=swarm, patience_seconds=0.0), swarm


@pytest.fixture
def here(folder):
    return DistributedModel.from_pretrained(str(folder))


def tokenizer():
    words = {word: number for number, word in enumerate(["a", "cat", "dog", "red", "big", "[UNK]"])}
    made = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]")


def captioned(tokens, caption, batch=2):
    ids = tokens(caption).input_ids
    text = torch.tensor([ids + [1] * (6 - len(ids))] * batch)
    codes = torch.randint(0, 24, (batch, 64), generator=torch.Generator().manual_seed(8))
    return text, codes


def test_a_word_is_learnt_across_servers_as_here_and_loads_into_the_local_class(folder, across, here, tmp_path):
    local = DalleCollabForConditionalGeneration.from_pretrained(folder)
    losses, tables = [], []
    for model in (across[0], here, local):
        tokens = tokenizer()
        words = LearnedWords.add(model, tokens, ["<my-cat>"], like="cat")
        text, codes = captioned(tokens, "a big <my-cat>")
        steps = learn(words.parameters(), lambda m=model, t=text, c=codes: m(t, c).image_loss, num_steps=12)
        losses.append(list(steps))
        tables.append((words, text, codes))
    assert losses[0][-1] < losses[0][0] - 1e-3
    for other in losses[1:]:
        assert max(abs(one - two) for one, two in zip(losses[0], other, strict=True)) < 1e-4
    words, text, codes = tables[0]
    expected = across[0](text, codes).image_loss
    save_learned(tmp_path / "cat.safetensors", across[0], words)
    fresh, tokens = DalleCollabForConditionalGeneration.from_pretrained(folder).eval(), tokenizer()
    assert load_learned(tmp_path / "cat.safetensors", fresh, tokens) == ("<my-cat>",)
    assert torch.equal(captioned(tokens, "a big <my-cat>")[0], text)
    torch.testing.assert_close(fresh(text, codes).image_loss, expected)
    words.finish(across[0])
    torch.testing.assert_close(across[0](text, codes).image_loss, expected)


def test_deep_prompts_are_added_before_every_layer_and_learnt_as_here(across, here):
    text, codes = captioned(tokenizer(), "a red dog")
    grads = []
    for model in (across[0], here):
        prompts = add_deep_prompts(model, 3)
        with torch.no_grad():
            prompts.mul_(300)
        model(text, codes).image_loss.backward()
        grads.append(prompts.grad.clone())
    assert (grads[0] - grads[1]).norm() <= 1e-5 * grads[1].norm() and grads[0].flatten(1).norm(dim=1).min() > 0
    stack = here.layers.route.swarm._servers["here"].span.stack
    ids = torch.cat([here.model.text_block_ids(text), codes + here.config.num_text_ids], dim=1)
    first = second = here.model.token_embedding(ids)
    prompts = here.layers.deep_prompts.detach()
    for layer in range(6):
        added = torch.nn.functional.pad(prompts[layer], (0, 0, 0, first.shape[1] - 3))
        first, second = stack.run_layers(first + added, second + added, range(layer, layer + 1))
    torch.testing.assert_close(across[0].model.stack(here.model.token_embedding(ids)), (first + second) * 0.5)


def test_codes_are_drawn_with_prompts_and_adapters_even_after_a_loss(across, here):
    (model, swarm), text = across, captioned(tokenizer(), "a red dog")[0]
    drawn = []
    for one in (model, here):
        with torch.no_grad():
            add_deep_prompts(one, 3).mul_(300)
            for number, parameter in enumerate(add_adapters(one, [0, 2, 6])):
                values = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
                parameter.copy_(values / parameter.shape[1] ** 0.5)
    asked = []

    def lose(peer, what):
        asked.append(what)
        if asked.count("step") == 50 and not swarm.lost:
            swarm.lose("a")

    swarm.before = lose
    for one in (model, here):
        drawn.append(one.generate_image_codes(text, num_candidates=2, seed=1, window=1))
    assert torch.equal(*drawn) and swarm.lost
    codes = here.generate_image_codes(text, temperature=0.0, window=1)[:, 0]
    image_logits = here.block_logits(here.model(text, codes)[0])[1]
    assert torch.equal(image_logits.argmax(dim=-1), codes), "what is drawn is what a forward pass predicts"


def test_adapters_and_prompts_are_learnt_and_load_where_there_is_no_swarm(folder, across, tmp_path):
    model, (text, codes) = across[0], captioned(tokenizer(), "a red dog")
    parameters = [add_deep_prompts(model, 2), *add_adapters(model, [3, 5], rank=2)]
    losses = list(learn(parameters, lambda: model(text, codes).image_loss, num_steps=8))
    assert losses[-1] < losses[0]
    save_learned(tmp_path / "learned.safetensors", model)
    fresh = DistributedModel.from_pretrained(str(folder))
    assert load_learned(tmp_path / "learned.safetensors", fresh) == ()
    torch.testing.assert_close(fresh(text, codes).loss, model(text, codes).loss)
    with pytest.raises(ValueError, match=r"has prompts or adapters\. Open the model so: DistributedModel"):
        load_learned(tmp_path / "learned.safetensors", DalleCollabForConditionalGeneration.from_pretrained(folder))


def test_prompts_of_a_language_model_are_learnt_and_generate_after_a_loss(tmp_path):
    tiny_language_model(tmp_path, "gpt2")
    published = find_model(str(tmp_path))
    spans = {"a": range(0, 2), "b": range(2, 4), "c": range(0, 4)}
    swarm = MortalSwarm({name: local_server(published, layers) for name, layers in spans.items()})
    swarm.slow = {"c"}
    models = [DistributedModel.from_pretrained(str(tmp_path), swarm=other) for other in (swarm, None)]
    ids, losses, texts = torch.arange(1, 13).view(2, 6), [], []
    for model in models:
        parameters = [add_deep_prompts(model, 2), *add_adapters(model, [2], rank=2)]
        losses.append(list(learn(parameters, lambda m=model: m(ids, labels=ids).loss, num_steps=6)))
    assert losses[0][-1] < losses[0][0]
    assert max(abs(one - two) for one, two in zip(*losses, strict=True)) < 1e-4
    with torch.no_grad():
        for mine, other in zip(models[1].layers.parameters(), models[0].layers.parameters(), strict=True):
            mine.copy_(other)
    asked = []
    swarm.before = lambda peer, what: (asked.append(what), asked.count("step") > 9 and swarm.lose("b"))
    for model in models:
        texts.append(model.generate(ids, max_new_tokens=12, do_sample=False))
    assert torch.equal(*texts) and swarm.lost


def test_what_cannot_be_learnt_or_loaded_is_told(folder, here, tmp_path):
    with pytest.raises(ValueError, match="has the word 'cat' already"):
        LearnedWords.add(here, tokenizer(), ["cat"])
    with pytest.raises(ValueError, match="Nothing was learnt"):
        save_learned(tmp_path / "nothing.safetensors", here)
    save_file({"word.x": torch.zeros(64)}, str(tmp_path / "other.safetensors"))
    with pytest.raises(ValueError, match="is not of the format 'dalle-collab learned 1'"):
        load_learned(tmp_path / "other.safetensors", here, tokenizer())
    about = {"format": "dalle-collab learned 1"}
    save_file({"word.x": torch.zeros(9)}, str(tmp_path / "narrow.safetensors"), metadata=about)
    with pytest.raises(ValueError, match=r"word\.x in .* has width 9, the model 64"):
        load_learned(tmp_path / "narrow.safetensors", here, tokenizer())
    words = LearnedWords.add(here, tokenizer(), ["<x>"])
    with pytest.raises(ValueError, match="The loss of step 1 is nan"):
        list(learn(words.parameters(), lambda: words.vectors.sum() * torch.nan, num_steps=2))
