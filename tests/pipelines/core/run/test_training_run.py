"""The settings that peers share and those of one machine: round trips, and every bad value by name."""

import dataclasses
import json

import pytest

from pipelines.core.run.compute_options import ComputeOptions
from pipelines.core.run.sections import SECTIONS
from pipelines.core.run.training_run import TrainingRun, stable_seed

NEEDED = dict(run_id="birds", model_config={"hidden_size": 8}, dataset_repository="org/birds", dataset_revision="abc")
SPARSE = dict(synchronisation="sparse", local_steps=30, outer_momentum=0, aggregation_rule="mean")


def test_the_defaults_are_the_papers():
    run = TrainingRun(**NEEDED)
    assert (run.target_batch_size, run.num_epochs, run.num_warmup_epochs) == (4096, 31_250, 3_125)
    assert (run.peak_learning_rate, run.betas, run.weight_decay) == (2.5e-3, (0.9, 0.96), 0.045)
    assert (run.max_gradient_norm, run.optimizer_bits, run.min_8bit_elements) == (4.0, 8, 65536)


def test_a_run_comes_back_from_its_file_as_it_was(tmp_path):
    run = TrainingRun(
        **NEEDED, entry_addresses=("/ip4/10.0.0.1/tcp/1/p2p/Qm",), seed=5, averaging_compression="float16"
    )
    (tmp_path / "training_run.json").write_text(run.to_json())
    assert TrainingRun.from_file(tmp_path / "training_run.json") == run
    assert run.replace(seed=6) != run and run.replace(seed=6).entry_addresses == run.entry_addresses


def test_every_generation_of_a_run_is_a_swarm_of_its_own():
    run = TrainingRun(**NEEDED)
    assert [run.swarm_id, run.replace(generation=1).swarm_id, run.replace(generation=2).swarm_id] == [
        "birds", "birds-generation-1", "birds-generation-2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(run_id="a b"), r"run_id is 'a b'; expected 1 to 96 letters"),
        (dict(run_id=""), "run_id is ''"),
        (dict(target_batch_size=0), "target_batch_size is 0; expected a number above 0"),
        (dict(num_epochs=-1), "num_epochs is -1; expected a number above 0"),
        (dict(peak_learning_rate=0), "peak_learning_rate is 0"),
        (dict(peak_learning_rate=float("nan")), "peak_learning_rate is nan"),
        (dict(epsilon=0.0), "epsilon is 0.0"),
        (dict(betas=(1.0, 0.9)), r"betas is \(1.0, 0.9\); expected two numbers of at least 0 and less than 1"),
        (dict(betas=[0.9]), r"betas is \(0.9,\); expected two numbers"),
        (dict(momentum_before_averaging=True, betas=(0, 0.9)), "the first of betas is 0: there is no momentum to add"),
        (dict(momentum_before_averaging=True, local_steps=2), "momentum_before_averaging is on and local_steps is 2"),
        (dict(synchronisation="none"), "synchronisation is 'none'; expected one of dense, sparse"),
        (dict(SPARSE, local_steps=1), "synchronisation is sparse and local_steps is 1; .* Cure: --set local_steps=30"),
        (dict(SPARSE, outer_momentum=0.9), "outer_momentum is 0.9; expected 0: newcomers get parameters alone"),
        (dict(SPARSE, aggregation_rule="centered_clip"), "is centered_clip; .* Cure: --set aggregation_rule=mean"),
        (dict(sparse_values_per_chunk=0), "sparse_values_per_chunk is 0; expected 1 to 4096"),
        (dict(sparse_values_per_chunk=4097), "sparse_values_per_chunk is 4097"),
        (dict(sparse_error_decay=0.0), "sparse_error_decay is 0.0; expected more than 0 and at most 1"),
        (dict(max_gradient_norm=0.0), "max_gradient_norm is 0.0"),
        (dict(matchmaking_seconds=0), "matchmaking_seconds is 0"),
        (dict(matchmaking_seconds=0), "matchmaking_seconds is 0"),
        (dict(progress_expiration_seconds=0), "progress_expiration_seconds is 0"),
        (dict(checkpoint_interval_epochs=0), "checkpoint_interval_epochs is 0"),
        (dict(min_8bit_elements=0), "min_8bit_elements is 0"),
        (dict(num_warmup_epochs=11, num_epochs=10), r"num_warmup_epochs is 11; expected 0 to num_epochs \(10\)"),
        (dict(num_warmup_epochs=-1), "num_warmup_epochs is -1"),
        (
            dict(averaging_timeout_seconds=10.0),
            r"averaging_timeout_seconds is 10.0; expected more than matchmaking_seco",
        ),
        (dict(generation=-1), "generation is -1; expected 0 or more"),
        (dict(keep_optimizer_states=0), "keep_optimizer_states is 0; expected a number above 0"),
        (dict(max_commits_per_hour=0), "max_commits_per_hour is 0"),
        (dict(num_evaluation_records=0), "num_evaluation_records is 0"),
        (dict(evaluation_interval_epochs=0), "evaluation_interval_epochs is 0"),
        (dict(reel_interval_epochs=0), "reel_interval_epochs is 0"),
        (dict(held_out_share=1.0), "held_out_share is 1.0; expected 0 or more and less than 1"),
        (dict(reel_prompts=("",)), r"reel_prompts is \(''.\); expected at most 16 captions"),
        (dict(optimizer_bits=16), "optimizer_bits is 16; expected one of 8, 32"),
        (
            dict(averaging_compression="zip"),
            "averaging_compression is 'zip'; expected one of blockwise_8bit, float16",
        ),
        (dict(aggregation_rule="vote"), "aggregation_rule is 'vote'; expected one of centered_clip, mean, coor"),
        (dict(tau_ratio=0.9), "tau_ratio is 0.9; expected a number of at least 1"),
        (dict(max_norm_ratio=float("inf")), "max_norm_ratio is inf"),
        (dict(num_clipping_iterations=0), "num_clipping_iterations is 0"),
        (dict(min_share_averaged=1.5), "min_share_averaged is 1.5; expected more than 0 and at most 1"),
        (dict(who_may_draw="nobody"), "who_may_draw is 'nobody'; expected one of members, everybody"),
        (dict(streams_per_peer=0), "streams_per_peer is 0; expected a number above 0"),
        (
            dict(candidates_per_peer=300),
            "candidates_per_peer is 300 and candidates_per_address is 256; expected no more of one peer than of all",
        ),
        (dict(format_version=3), r"training_run.json has format 3, this package knows 2. Update the package"),
    ],
    ids=str,
)
def test_a_bad_value_is_refused_by_name(changes, message):
    with pytest.raises(ValueError, match=message):
        TrainingRun(**(NEEDED | changes))


def test_unknown_missing_and_damaged_settings_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"Unknown setting colour, size in training_run.json; known: \['aggregation_r"):
        TrainingRun.from_mapping(NEEDED | dict(size=1, colour=2))
    with pytest.raises(ValueError, match=r"incomplete or has a value of the wrong type: .*run_id"):
        TrainingRun.from_mapping({key: value for key, value in NEEDED.items() if key != "run_id"})
    with pytest.raises(ValueError, match="incomplete or has a value of the wrong type"):
        TrainingRun.from_mapping(NEEDED | dict(target_batch_size="many"))
    (tmp_path / "training_run.json").write_text('{"run_id": ')
    with pytest.raises(ValueError, match=r"training_run.json is not JSON .* dalle-collab run create"):
        TrainingRun.from_file(tmp_path / "training_run.json")


def test_settings_from_a_newer_package_say_to_update_although_they_hold_unknown_names():
    with pytest.raises(ValueError, match="has format 3, this package knows 2"):
        TrainingRun.from_mapping(json.loads(TrainingRun(**NEEDED).to_json()) | dict(format_version=3, invented=1))


def test_every_setting_has_one_home():
    sections = [{item.name for item in dataclasses.fields(section)} for section in SECTIONS.values()]
    assert sum(map(len, sections)) == len(set().union(*sections))
    assert not set().union(*sections) & {"run_id", "task", "model_config", "generation"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(colours={}), "Unknown section colours in training_run.json; known: data, optimizer"),
        (dict(data=dict(run_id="other")), "Unknown setting run_id in section data of training_run.json"),
        (dict(data=dict(tau_ratio=2.0)), "Unknown setting tau_ratio in section data"),
        (dict(data=[]), "Unknown section data"),
        ([], "settings in training_run.json is \\[\\]; expected an object of sections"),
    ],
)
def test_sections_hold_their_own_settings_and_nothing_else(settings, message):
    with pytest.raises(ValueError, match=message):
        TrainingRun.from_mapping(NEEDED | dict(settings=settings))


@pytest.mark.parametrize("name", ["micro_batch_size", "shuffle_buffer_size", "cpu_threads", "max_epochs"])
def test_local_choices_below_one_are_refused(name):
    with pytest.raises(ValueError, match=f"{name} is 0; expected at least 1."):
        ComputeOptions(**{name: 0})


def test_seeds_depend_on_the_parts_alone_and_never_change():
    assert stable_seed("run", 1) == stable_seed("run", 1) == stable_seed("run", "1")
    assert len({stable_seed("run", number) for number in range(100)}) == 100
    assert stable_seed("ab", "c") != stable_seed("a", "bc")
    assert all(0 <= stable_seed(number) < 2**63 for number in range(100))
    # A changed value would give every running swarm other initial parameters.
    assert stable_seed("birds", 0) == 6200508589998364793
