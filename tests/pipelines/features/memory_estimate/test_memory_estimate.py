"""The estimate's arithmetic, its search and its answers; what models really hold is measured in the files beside it."""

import dataclasses
import math
import subprocess
import sys
import time

import pytest

from pipelines.core.optimizers.choice import OPTIMIZERS, optimizer_type
from pipelines.features.memory_estimate.estimate import count_parameters, estimate_training_memory
from pipelines.features.memory_estimate.model_presets import MODEL_PRESETS, ModelSizes, figures_of
from pipelines.features.memory_estimate.optimizer_states import count_elements
from pipelines.features.memory_estimate.settings import NUM_STATISTICS, MemorySettings
from pipelines.tools.pages.memory_calculator.calculator import CalculatorInput, answer, find_for
from pipelines.tools.pages.memory_calculator.fitting import MACHINES, find_fitting, join_command, largest_micro_batch

GPT2 = MODEL_PRESETS["GPT-2 S"]
OURS = MODEL_PRESETS["Our model (Training Transformers Together)"]
T4 = next(machine for machine in MACHINES if machine.name.startswith("T4"))


def changed(model, **values):
    return ModelSizes.of(model.values | values)


def estimate(model=GPT2, **settings):
    return estimate_training_memory(model, MemorySettings(**settings))


# What the calculator of 2021 got wrong.


def test_offloading_the_optimizer_leaves_the_gradients_on_the_gpu():
    plain, offloaded = estimate(), estimate(offload_optimizer=True)
    assert offloaded.gpu.gradients == plain.gpu.gradients == 4 * plain.num_parameters
    assert offloaded.gpu.optimizer == 0
    assert offloaded.ram.optimizer == plain.gpu.optimizer
    assert offloaded.ram.gradients == offloaded.ram.weights == 4 * plain.num_parameters


def test_checkpointing_still_holds_one_layer_that_is_computed_again():
    one, two = (changed(GPT2, n_layer=layers) for layers in (1, 2))
    many = dict(micro_batch_size=8)
    stored_layer = estimate(two, **many).gpu.activations - estimate(one, **many).gpu.activations
    inputs = 12 * 8 * 1024 * 768 * 4
    # A short vocabulary, so that the layers and not the head make the highest moment.
    narrow = changed(GPT2, vocab_size=100, bos_token_id=0, eos_token_id=0)
    assert estimate(narrow, recompute="checkpoint", **many).gpu.activations >= inputs + stored_layer * 0.95


def test_factored_statistics_are_a_row_and_a_column_of_each_matrix():
    model = changed(GPT2, n_layer=1, vocab_size=1000, n_positions=50, bos_token_id=0, eos_token_id=0)
    matrices = [(1000, 768), (50, 768), (768, 2304), (768, 768), (768, 3072), (3072, 768)]
    vectors = 8 * 768 + 2304 + 3072
    expected = 4 * (sum(rows + columns for rows, columns in matrices) + vectors)
    assert estimate(model, optimizer="adafactor", sequence_length=50).gpu.optimizer == expected


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("Our model (Training Transformers Together)", 125.9),
        ("BERT base", 109.5),
        ("BERT large", 335.2),
        ("GPT-2 S", 124.4),
        ("GPT-2 M", 354.8),
        ("GPT-2 L", 774.0),
        ("GPT-2 XL", 1557.6),
        ("GPT-J 6B", 6050.9),
        ("T5 small", 60.5),
        ("T5 base", 222.9),
        ("T5 large", 737.7),
        ("T5 3B", 2851.6),
        ("T5 11B", 11307.3),
    ],
)
def test_published_models_have_their_published_number_of_parameters(name, millions):
    assert estimate(MODEL_PRESETS[name]).num_parameters / 1e6 == pytest.approx(millions, abs=0.06)


@pytest.mark.parametrize(
    ("values", "millions"),
    [
        (dict(model_type="bart"), 406.3),
        (dict(model_type="bart", decoder_layers=6), 305.5),
        # The first three layers of DeepSeek's have no experts.
        (dict(model_type="deepseek_v3"), 671_026.4),
    ],
    ids=["BART large", "DistilBART 12-6", "DeepSeek V3"],
)
def test_models_with_layers_of_several_kinds_and_depths_have_their_published_number_of_parameters(values, millions):
    assert count_parameters(ModelSizes.of(values)) / 1e6 == pytest.approx(millions, abs=0.06)


def test_gpt_3_and_dall_e_have_about_the_parameters_their_names_say():
    assert estimate(MODEL_PRESETS["GPT-3 175B"]).num_parameters == pytest.approx(175e9, rel=0.01)
    assert estimate(MODEL_PRESETS["DALL-E 12B"]).num_parameters == pytest.approx(12e9, rel=0.03)


@pytest.mark.parametrize("name", MODEL_PRESETS)
def test_every_dial_moves_memory_the_way_it_should(name):
    model = MODEL_PRESETS[name]
    plain = estimate(model, micro_batch_size=4)
    cheaper = "reversible" if model.is_ours else "checkpoint"
    for dial in (
        dict(micro_batch_size=2),
        dict(precision="bf16"),
        dict(precision="pure-fp16"),
        dict(optimizer_bits=8),
        dict(optimizer="adafactor"),
        dict(offload_optimizer=True),
        dict(recompute=cheaper),
    ):
        changed = estimate(model, **dict(micro_batch_size=4) | dial)
        # T5 computes its attention in float32; autocast adds half copies of its weights and saves little else.
        most = 1.05 if name.startswith("T5") and dial == dict(precision="bf16") else 1.0
        assert changed.gpu.total < most * plain.gpu.total, dial


def test_a_peer_of_a_swarm_holds_accumulated_gradients_and_the_averagers_tensors():
    peer = estimate(OURS, collaborative=True, optimizer="lamb", optimizer_bits=8, recompute="reversible")
    assert peer.gpu.buffers == peer.gpu.gradients == 4 * peer.num_parameters
    vector = 4 * peer.num_parameters
    assert peer.ram.weights == peer.ram.gradients == vector
    assert peer.ram.optimizer == pytest.approx(2.03 * peer.num_parameters, rel=0.02)
    # What waits in a round, and the copy of parameters and statistics for newcomers.
    assert peer.ram.buffers == 2 * vector + peer.ram.optimizer
    # On a CPU what waits takes the place of the gradient, unless the peer computes meanwhile.
    alone, overlapping = (
        estimate_training_memory(OURS, MemorySettings(collaborative=True, device="cpu", delays_averaging=delays)).ram
        for delays in (False, True)
    )
    assert overlapping.buffers - alone.buffers == vector


def test_local_steps_keep_their_optimizer_on_the_device_and_the_start_and_what_was_not_sent_in_ram():
    settings = dict(collaborative=True, optimizer="lamb", optimizer_bits=8, recompute="reversible")
    plain = estimate(OURS, **settings)
    vector = 4 * plain.num_parameters
    local, momentum, sparse = (
        estimate(OURS, **settings, local_steps=True, **more)
        for more in ({}, dict(outer_momentum=True), dict(sparse=True))
    )
    assert local.gpu == dataclasses.replace(plain.gpu, optimizer=plain.ram.optimizer)
    assert (local.ram.optimizer, local.ram.buffers) == (0, 3 * vector)
    assert (momentum.ram.optimizer, momentum.ram.buffers) == (vector, 4 * vector)
    assert sparse.ram.buffers == local.ram.buffers + vector


def test_sharing_weights_divides_the_layers_parameters():
    layer = count_elements(dict(figures_of(GPT2).layer_shapes))
    assert estimate().num_parameters - estimate(num_shared_groups=2).num_parameters == 10 * layer


def test_more_gpus_divide_what_is_sharded_and_nothing_else():
    one, four = estimate(), estimate(num_gpus=4, shard_over_gpus=True)
    assert four.gpu.weights == one.gpu.weights / 4
    assert four.gpu.optimizer == one.gpu.optimizer / 4
    assert four.gpu.activations == one.gpu.activations
    assert estimate(num_gpus=4).gpu.buffers == one.gpu.weights


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(micro_batch_size=0), "micro_batch_size is 0; expected a whole number of at least 1"),
        (dict(precision="int3"), "precision is 'int3'; expected one of fp32, bf16"),
        (dict(optimizer="magic"), "optimizer is 'magic'; expected one of adam"),
        (dict(sequence_length=4096), "sequence_length is 4096; this model has positions for 1024 tokens"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        estimate(**settings)


# The search.


def test_the_largest_micro_batch_fits_and_one_more_does_not():
    settings = MemorySettings(collaborative=True, recompute="reversible", optimizer="lamb", optimizer_bits=8)
    largest = largest_micro_batch(OURS, settings, T4)
    fits = [
        T4.has_room_for(estimate_training_memory(OURS, settings.replace(micro_batch_size=size)))
        for size in (largest, largest + 1)
    ]
    assert largest > 1 and fits == [True, False]


def test_settings_that_fit_are_left_as_they_are():
    asked = MemorySettings(micro_batch_size=4)
    assert find_fitting(GPT2, asked, MACHINES[-1]) == asked


def test_the_search_finds_settings_that_fit_or_says_there_are_none():
    asked = MemorySettings(micro_batch_size=32)
    found = find_fitting(MODEL_PRESETS["GPT-2 L"], asked, T4)
    assert T4.has_room_for(estimate_training_memory(MODEL_PRESETS["GPT-2 L"], found))
    assert find_fitting(MODEL_PRESETS["GPT-3 175B"], asked, T4) is None


def test_the_command_for_joining_is_one_that_the_program_knows():
    import typer
    from typer.testing import CliRunner

    from pipelines.command_line.join import join

    app = typer.Typer()
    app.command()(join)
    words = join_command(MemorySettings(micro_batch_size=7), "my-org/birds").split()
    assert words[:3] == ["dalle-collab", "join", "my-org/birds"]
    result = CliRunner().invoke(app, [*words[2:], "--help"])
    assert result.exit_code == 0, result.output
    for word in words:
        assert not word.startswith("--") or word in result.output


# Configurations of the Hub.


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (dict(model_type="stable_diffusion"), "type 'stable_diffusion'; the calculator knows dalle_collab and the"),
        (dict(model_type="clip"), "type 'clip'; the calculator knows"),
        (dict(), "is of type 'None'"),
        (dict(model_type="gpt2", n_embd=-5, n_head=2, n_layer=2), "do not fit together"),
        (dict(model_type="gpt2", n_embd=10**20, n_head=2), "n_embd is 1000"),
        (dict(model_type="dalle_collab", attention_pattern="row"), "Attention kind 'r' is unknown"),
        (dict(model_type="dalle_collab", hidden_size="wide"), "hidden_size"),
    ],
)
def test_a_foreign_configuration_is_refused_with_its_reason(config, message):
    with pytest.raises(ValueError, match=message) as caught:
        estimate(ModelSizes.of(config))
    assert "\n" not in str(caught.value)


# The page's answers.


def test_the_answer_compares_two_settings():
    kept = CalculatorInput(micro_batch_size=1)
    shown = answer(CalculatorInput(micro_batch_size=8), first=kept.to_state(), run="my-org/birds")
    assert "more GPU than A." in shown.summary
    assert shown.command == "dalle-collab join my-org/birds --micro-batch-size 8 --device cuda"
    assert "For a picture B computes 1.00 times as much as A." in shown.summary


def test_the_answer_says_what_fewer_codes_save_for_a_picture():
    paper, short = (CalculatorInput(model=name) for name in list(MODEL_PRESETS)[:2])
    shown = answer(short, first=paper.to_state(), run="my-org/birds")
    # The caption's 256 tokens stay: 512 of 1,280 positions are left.
    assert "256 codes; training on it and its caption takes 4.58 TFLOP." in shown.summary
    assert "For a picture B computes 0.40 times as much as A." in shown.summary
    assert "TFLOP" not in answer(CalculatorInput(model="GPT-2 S", recompute="none"), first=None, run="").summary
    assert shown.picture.count('role="img"') == 4


def test_text_of_strangers_stays_text():
    with pytest.raises(ValueError, match="There is no model"):
        answer(CalculatorInput(model="<img src=x onerror=alert(1)>"), first=None, run="o/r")
    shown = answer(CalculatorInput(), first=None, run="o/r")
    assert "<script" not in shown.picture + shown.fits


@pytest.mark.parametrize("value", [None, "7", -1, 1e30, math.nan, math.inf, 2.5, True])
def test_a_control_that_sends_nonsense_is_refused(value):
    values = list(CalculatorInput().values())
    values[2] = value
    with pytest.raises(ValueError, match="micro batch size is"):
        CalculatorInput.from_values(values)


def test_the_search_answers_with_the_controls_to_set():
    given = CalculatorInput(
        model="GPT-2 L", collaborative=False, recompute="none", precision="fp32", micro_batch_size=64
    )
    found = find_for(given, 15, 12.7)
    assert "GPT-2 L: at most" in found.message and found.input != given
    fitting = find_for(found.input, 15, 12.7)
    assert fitting.input == found.input, "it is the largest already"
    smaller = find_for(CalculatorInput(model="GPT-3 175B", recompute="none"), 15, 12.7)
    assert smaller.message.startswith("GPT-3 175B does not fit; the largest that does is GPT-") and smaller.input.model
    assert "it takes" in find_for(CalculatorInput(), 1, 1).message
    for impossible in ((0, 8), (8, math.nan), (8, "<b>")):
        with pytest.raises(ValueError, match="expected GiB, more than 0"):
            find_for(CalculatorInput(), *impossible)


def test_an_estimate_of_a_named_model_is_instant_and_loads_no_torch():
    code = (
        "import sys; from pipelines.features.memory_estimate.estimate import estimate_training_memory as e; "
        "from pipelines.features.memory_estimate.model_presets import MODEL_PRESETS; "
        "from pipelines.features.memory_estimate.settings import MemorySettings; "
        "[e(model, MemorySettings()) for model in MODEL_PRESETS.values()]; "
        "print(sorted({'torch', 'numpy', 'transformers', 'gradio', 'huggingface_hub'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[]", done.stderr
    estimate(MODEL_PRESETS["GPT-3 175B"])
    started = time.process_time()
    estimate(MODEL_PRESETS["GPT-3 175B"])
    assert time.process_time() - started < 0.1


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_statistic_of_our_optimizers_is_counted(name):
    assert NUM_STATISTICS[name] == len(optimizer_type(name).statistics)
