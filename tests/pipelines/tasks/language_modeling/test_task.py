"""The language task: its losses, models, checkpoints and cards."""

import itertools
import subprocess
import sys

import pytest
import torch
from language_material import ALBERT, DOCUMENTS, GPT2, LLAMA, ROBERTA, SEQUENCE_LENGTH, language_run, tiny_tokenizer

from pipelines.core.run.task import num_samples
from pipelines.features.memory_estimate.settings import MemorySettings
from pipelines.features.publishing.publishable_task import CheckpointFacts
from pipelines.tasks.language_modeling.samples import IGNORED, masked_samples, packed_samples, to_batch
from pipelines.tasks.language_modeling.task import LanguageModelingTask

FILL, WRITE = "fill-mask", "text-generation"


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Folders of the tokenizers, by task."""
    folders = {task: tmp_path_factory.mktemp(task) for task in (FILL, WRITE)}
    for task, folder in folders.items():
        tiny_tokenizer(task).save_pretrained(folder)
    return folders


@pytest.fixture(scope="module")
def open_task(places):
    """A function that opens the task of a tiny run."""

    def opened(kind, model, **settings):
        return LanguageModelingTask(language_run(kind, model, **settings), str(places[kind]))

    return opened


def samples_of(task):
    if task.run.task == FILL:
        return list(masked_samples(DOCUMENTS, task.tokenizer, task.settings, 1))
    return list(packed_samples(DOCUMENTS, task.tokenizer, task.settings))


def gradient(task, model, batches):
    """Return the gradient of the mean over all predicted tokens, gathered batch by batch as peers do."""
    model.zero_grad()
    total = 0
    for batch in batches:
        loss, weight = task.loss(model, batch)
        loss.backward()
        total += weight
    return {name: parameter.grad / total for name, parameter in model.named_parameters()}


def test_two_uneven_splits_of_ragged_samples_equal_the_gradient_of_the_large_batch(open_task):
    task = open_task(FILL, ALBERT)
    samples = samples_of(task)[:24]
    assert len({len(sample["input_ids"]) for sample in samples}) > 5
    model = task.new_model().eval()
    whole = gradient(task, model, [to_batch(samples, task.tokenizer)])
    for cuts in ((0, 5, 24), (0, 17, 18, 24)):
        parts = [to_batch(samples[a:b], task.tokenizer) for a, b in itertools.pairwise(cuts)]
        found = gradient(task, model, parts)
        assert max((found[name] - whole[name]).abs().max().item() for name in whole) < 1e-6


@pytest.mark.parametrize(("kind", "sizes"), [(FILL, ALBERT), (FILL, ROBERTA), (WRITE, GPT2), (WRITE, LLAMA)])
def test_the_loss_is_transformers_own_summed_over_predicted_tokens(open_task, kind, sizes):
    task = open_task(kind, sizes)
    batch = to_batch(samples_of(task)[:7], task.tokenizer)
    model = task.new_model().eval()
    loss, weight = task.loss(model, batch)
    assert weight == (batch["labels"] != IGNORED).sum()
    assert loss.dtype == torch.float32 and loss.shape == ()
    torch.testing.assert_close(loss / weight, model(**batch).loss)


@pytest.mark.parametrize(("kind", "sizes"), [(FILL, ALBERT), (WRITE, GPT2), (WRITE, LLAMA)])
def test_the_seed_alone_decides_the_initial_parameters(open_task, kind, sizes):
    task = open_task(kind, sizes)
    torch.manual_seed(1)
    first, state = task.new_model().state_dict(), torch.random.get_rng_state()
    torch.manual_seed(1)
    assert torch.equal(state, torch.random.get_rng_state()), "drawing parameters leaves other random numbers alone"
    torch.manual_seed(2)
    again, other = task.new_model().state_dict(), open_task(kind, sizes, seed=7).new_model().state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)
    assert {tensor.dtype for tensor in first.values() if tensor.is_floating_point()} == {torch.float32}


@pytest.mark.parametrize(("kind", "sizes"), [(FILL, ALBERT), (FILL, ROBERTA), (WRITE, GPT2), (WRITE, LLAMA)])
def test_a_made_up_batch_is_as_heavy_as_a_usual_one_and_reaches_every_parameter(open_task, kind, sizes):
    task = open_task(kind, sizes)
    batch, model = task.made_up_batch(3), task.new_model()
    assert num_samples(batch) == 3 and batch["input_ids"].shape == (3, SEQUENCE_LENGTH)
    loss, weight = task.loss(model, batch)
    assert abs(weight - 3 * task.sample_weight) <= 3
    loss.backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


@pytest.mark.parametrize(
    ("kind", "sizes", "message"),
    [
        (
            FILL,
            ALBERT | {"hiden_size": 3, "layers": 2},
            r"Unknown setting hiden_size, layers of a model of type albert",
        ),
        (FILL, ALBERT | {"auto_map": {"AutoConfig": "a.B"}}, r"needs custom code \(auto_map\)"),
        (FILL, {"model_type": "made_up"}, r"'made_up', which transformers does not know"),
        (FILL, {}, r"model_type is 'None'"),
        (FILL, ALBERT | {"hidden_size": "large"}, r"settings of the model are invalid: .*hidden_size"),
        (FILL, {"model_type": "gpt2"}, r"transformers has no fill-mask model of type gpt2"),
        (WRITE, {"model_type": "albert"}, r"transformers has no text-generation model of type albert"),
        (FILL, {"model_type": "bart"}, r"an encoder and a decoder; fill-mask trains single-stack models"),
        (WRITE, {"model_type": "t5"}, r"an encoder and a decoder; text-generation"),
        (WRITE, {"model_type": "bert"}, r"sees the tokens that it should predict unless is_decoder is true"),
    ],
)
def test_a_model_that_cannot_be_trained_is_one_line(open_task, kind, sizes, message):
    with pytest.raises(ValueError, match=message):
        open_task(kind, sizes).new_model()


def test_names_that_transformers_maps_are_known_too(open_task):
    task = open_task(WRITE, dict(model_type="gpt2", hidden_size=32, num_hidden_layers=1, num_attention_heads=2))
    assert task.new_model().config.n_embd == 32


def test_parameters_are_float32_whatever_the_configuration_says(open_task):
    assert open_task(WRITE, GPT2 | {"dtype": "bfloat16"}).new_model().dtype == torch.float32


@pytest.mark.parametrize(
    ("kind", "sizes", "settings", "message"),
    [
        (FILL, ALBERT | {"vocab_size": 200}, {}, r"tokenizer has 300 tokens and the model 200: .*vocab_size=300"),
        (FILL, ALBERT | {"vocab_size": 2000}, {}, r"tokenizer has 300 tokens and the model 2000"),
        (FILL, ALBERT, {"sequence_length": 65}, r"sequence_length is 65, but the model has positions for 64 tokens"),
        (FILL, ROBERTA, {"sequence_length": 64}, r"positions for 63 tokens. Cure: --set sequence_length=63"),
        (WRITE, GPT2, {"sequence_length": 128}, r"positions for 64 tokens"),
        (WRITE, GPT2, {"sequence_length": 4}, r"sequence_length is 4; expected 8 to"),
        (FILL, ALBERT, {"mask_probability": 0}, r"mask_probability is 0; expected 0.01 to 0.9"),
        (FILL, ALBERT, {"text_colum": "text"}, r"Unknown setting text_colum of .*; nearest: text_column"),
        (FILL, ALBERT, {"whole_word_masks": "yes"}, r"whole_word_masks is 'yes'; expected a value of type bool"),
        (FILL, ALBERT, {"start_from": "org/bert"}, r"start_from_revision is ''; expected both"),
        (FILL, ALBERT, dict(start_from="org/bert", start_from_revision="main"), r"expected a commit of 40"),
    ],
)
def test_parts_that_do_not_fit_are_one_line(open_task, kind, sizes, settings, message):
    with pytest.raises(ValueError, match=message):
        open_task(kind, sizes, task_settings=settings).check()


def test_missing_special_tokens_and_missing_tokenizers_are_one_line(places, tmp_path):
    with pytest.raises(ValueError, match=r"no mask token, which fill-mask needs"):
        LanguageModelingTask(language_run(FILL, ALBERT), str(places[WRITE])).check()
    tokenizer = tiny_tokenizer(WRITE)
    tokenizer.eos_token = None
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"no end-of-sequence token \(EOS\)"):
        LanguageModelingTask(language_run(WRITE, GPT2), str(tmp_path)).check()
    with pytest.raises(ValueError, match=r"has no tokenizer that transformers can read"):
        LanguageModelingTask(language_run(WRITE, GPT2), str(tmp_path / "nothing")).check()


USE = """
import sys
sys.modules.update(pipelines=None, modeling_dalle_collab=None, hub_tools=None)
from transformers import pipeline
if sys.argv[1] == "fill-mask":
    fill = pipeline("fill-mask", model=sys.argv[2])
    print(len(fill(f"The old {fill.tokenizer.mask_token} stood near the north wind.")))
else:
    print(pipeline("text-generation", model=sys.argv[2])("The old", max_new_tokens=5)[0]["generated_text"])
"""


@pytest.mark.parametrize(("kind", "sizes", "expected"), [(FILL, ALBERT, "5"), (WRITE, GPT2, "The old")])
def test_a_checkpoint_is_used_with_transformers_alone(open_task, tmp_path, kind, sizes, expected):
    task = open_task(kind, sizes)
    task.save(tmp_path, task.new_model())
    assert (tmp_path / "model.safetensors").exists() and not list(tmp_path.glob("*.py"))
    done = subprocess.run(
        [sys.executable, "-X", "utf8", "-c", USE, kind, str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0 and expected in done.stdout, done.stderr


def test_the_card_tells_perplexity_and_how_to_use_the_model(open_task):
    facts = CheckpointFacts(
        repository="org/bert", epoch=7, loss=2.5, num_parameters=1234, evaluations=[dict(epoch=5, loss=2.0)]
    )
    card = open_task(FILL, ALBERT).card(facts)
    for part in ("pipeline_tag: fill-mask", "2.0000 at epoch 5", "| 7.39 |", 'pipeline("fill-mask", model="org/bert")'):
        assert part in card
    facts = CheckpointFacts(repository="org/gpt", epoch=0, loss=None, num_parameters=1234)
    card = open_task(WRITE, GPT2).card(facts)
    assert "pipeline_tag: text-generation" in card and "not known yet" in card


def test_a_language_model_draws_nothing(open_task):
    task = open_task(WRITE, GPT2)
    assert task.draw(task.new_model(), ["The old house"]) is None


@pytest.mark.parametrize(("kind", "sizes"), [(FILL, ALBERT), (FILL, ROBERTA), (WRITE, GPT2), (WRITE, LLAMA)])
def test_the_memory_of_parameters_is_exact(open_task, kind, sizes):
    task = open_task(kind, sizes)
    estimate = task.memory(MemorySettings(device="cpu", micro_batch_size=2))
    number = sum(parameter.numel() for parameter in task.new_model().parameters())
    assert estimate.num_parameters == number and estimate.ram.weights == 4 * number
    assert estimate.ram.activations > 0
