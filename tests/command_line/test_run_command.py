"""`dalle-collab run create` and `run show` on the embedded Hub, as processes."""

import json
import re

import pytest
from published_runs import TINY_SETTINGS, the_line
from transformers import AutoTokenizer

from pipelines.core.run.training_run import TrainingRun

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def created(training_material):
    return training_material.create_run("org/created-run", seed=7)


def test_a_run_is_created_in_one_commit_from_its_dataset_tokenizer_and_settings(training_material, created):
    api = training_material.api
    created_by = [commit.title for commit in api.list_repo_commits(created) if "Create training run" in commit.title]
    assert created_by == ["Create training run org-created-run"]
    assert {"training_run.json", "processor_config.json", "tokenizer.json", "README.md"} <= set(
        api.list_repo_files(created)
    )
    run = TrainingRun.from_file(training_material.file(created, "training_run.json"))
    assert (run.seed, run.target_batch_size, run.peak_learning_rate) == (7, 32, 0.01)
    assert run.dataset_revision == api.dataset_info(training_material.dataset).sha
    assert (run.model_config["codebook_size"], run.model_config["image_grid_size"]) == (32, 4)
    assert run.model_config["hidden_size"] == TINY_SETTINGS["hidden_size"]
    processor = json.loads(training_material.file(created, "processor_config.json").read_text())
    assert processor["image_codec_fingerprint"] == training_material.layout.codec_fingerprint
    assert processor["image_codec_repository"] == training_material.codec


def test_a_second_run_in_the_same_repository_is_refused_and_the_first_is_kept(training_material, commands, created):
    before = training_material.api.model_info(created).sha
    done = commands.run(*training_material.create_arguments(created))
    assert f"{created} already contains a training run. Choose another name" in the_line(done)
    assert training_material.api.model_info(created).sha == before


def test_captions_of_a_new_run_are_padded_with_the_models_own_id(training_material, commands, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(training_material.tokenizer)
    tokenizer.pad_token = "<unk>"
    tokenizer.save_pretrained(tmp_path)
    arguments = training_material.create_arguments("org/padded-run")
    arguments[arguments.index("--tokenizer") + 1] = str(tmp_path)
    done = commands.run(*arguments)
    assert done.returncode == 0, done.stderr
    run = TrainingRun.from_file(training_material.file("org/padded-run", "training_run.json"))
    processor = json.loads(training_material.file("org/padded-run", "processor_config.json").read_text())
    assert processor["pad_token_id"] == run.model_config["pad_token_id"] == tokenizer.pad_token_id != 1


def test_a_dry_run_says_what_the_settings_mean_and_creates_nothing(training_material, commands):
    arguments = training_material.create_arguments("org/only-thought-of", num_epochs=300, text_sequence_length=128)
    done = commands.run(*arguments, "--dry-run")
    assert done.returncode == 0, done.stderr
    *_, schedule, hours, captions, saving, drawn, last = done.stdout.splitlines()
    assert schedule == "300 epochs of 32 samples are 9,600 samples: 100.0 passes over 96 records."
    assert hours.endswith("that takes 0.3 h at 10, 0.0 h at 100, 0.0 h at 1,000.")
    assert captions.startswith("Captions: half have at most ")
    assert captions.endswith(" The model reads 128 text tokens beside 16 image codes.")
    assert drawn.startswith("The auxiliary peer draws these held-out captions every 100 epochs, for the pages: ")
    assert saving.startswith("With --set text_sequence_length=") and last == "Nothing was created."
    slow = commands.run(*arguments, "--dry-run", "--links", 0.05)
    assert slow.returncode == 0, slow.stderr
    assert re.search(r"After (5|15|50) local steps with muon, outer steps have rate 0.7 and momentum 0.8.", slow.stdout)
    assert not training_material.api.repo_exists("org/only-thought-of")


def test_show_prints_the_settings_and_that_there_is_no_checkpoint_yet(commands, created):
    done = commands.run("run", "show", created)
    assert done.returncode == 0, done.stderr
    assert "target_batch_size" in done.stdout and "none yet" in done.stdout


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"--dataset": "org/no-dataset"}, "There is no dataset repository org/no-dataset with Parquet shards"),
        ({"--codec": "org/tiny-other"}, "but the run's codec is"),
        ({"--set": "nonsense=1"}, "Unknown setting nonsense of a text-to-image run. All settings: dalle-collab run s"),
        ({"--set": "target_batch_size=0"}, "target_batch_size is 0; expected a number above 0."),
        ({"--settings": "no.json"}, "no.json: No such file or directory"),
    ],
    ids=["unknown dataset", "wrong codec", "unknown setting", "bad value", "missing settings file"],
)
def test_a_mistake_is_one_line_and_creates_nothing(training_material, commands, changed, message):
    arguments = training_material.create_arguments("org/refused-run")
    arguments += [part for pair in changed.items() for part in pair]
    assert message in the_line(commands.run(*arguments))
    assert not training_material.api.repo_exists("org/refused-run")
