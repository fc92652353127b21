"""`dalle-collab evaluate` on the embedded Hub: figures, comparisons, what is left out, and mistakes."""

import json
import math

import pytest
from published_runs import the_line

from pipelines.demo.shipped_models import PRETRAINED_CLIP
from pipelines.training.tasks.choice import open_task

pytestmark = pytest.mark.slow

FEW = ("--records", "20", "--drawings", "2", "--training-records", "30")


def publish_weights(material, repository, seed):
    """Put untrained weights into a run's repository."""
    import torch

    run = material.settings(repository)
    torch.manual_seed(seed)
    model = open_task(run, repository, None).new_model()
    folder = material.tokenizer.parent / f"weights-{seed}"
    model.save_pretrained(folder)
    material.api.upload_folder(repo_id=repository, folder_path=str(folder))
    return folder


@pytest.fixture(scope="module")
def run_with_weights(training_material):
    repository = training_material.create_run("org/evaluated", run_id="evaluated", held_out_share=0.3)
    publish_weights(training_material, repository, 0)
    return repository


def test_without_the_runs_clip_the_losses_are_there_and_the_rest_is_named(commands, run_with_weights, tmp_path):
    done = commands.run("evaluate", run_with_weights, *FEW, "--clip", str(tmp_path), "--output", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    facts = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert {figure["name"] for figure in facts["figures"]} == {"loss", "caption_loss", "picture_loss"}
    assert any("CLIP" in name for name in facts["left_out"]) and "left out" in done.stdout
    assert "held-out records were found" in done.stderr, "20 records are few"
    assert facts["command"].startswith(f"dalle-collab evaluate {run_with_weights}")


def test_a_checkpoint_and_itself_do_not_differ_and_another_sampler_does(commands, run_with_weights, tmp_path):
    common = (run_with_weights, *FEW, "--clip", str(PRETRAINED_CLIP), "--compare", run_with_weights)
    done = commands.run("evaluate", *common, "--output", str(tmp_path / "same"), "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert {item["verdict"] for item in facts["differences"]} == {"same"}
    assert {"fid@clip", "kid@clip", "cmmd", "clip_score", "diversity"} <= {
        item["name"] for item in facts["differences"]
    }
    assert all(item["difference"] == 0 for item in facts["differences"])
    changed = ("--compare-top-k", "1", "--output", str(tmp_path / "other"))
    done = commands.run("evaluate", *common, *changed)
    assert done.returncode == 0, done.stderr
    verdicts = {
        item["name"]: item["verdict"]
        for item in json.loads((tmp_path / "other/comparison.json").read_text())["differences"]
    }
    assert verdicts["loss"] == "same" and verdicts["diversity"] == "different"
    assert (tmp_path / "other" / "comparison.html").read_text().count("<img") == 2 * 20


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--features", "fid"], "'fid' is no feature extractor. Expected clip, inception"),
        (["--precision", "int3"], "There is no precision 'int3'. Expected float32, bfloat16, float16."),
        (["--codec", "org/tiny-other"], "Use the codec of org/tiny-codec"),
        (["--compare", "org/nothing-there"], "org/nothing-there"),
        (["--originals", "/no/pictures"], "/no/pictures"),
    ],
)
def test_a_mistake_is_one_line(commands, run_with_weights, tmp_path, arguments, said):
    line = the_line(commands.run("evaluate", run_with_weights, *FEW, *arguments, "--output", str(tmp_path)))
    assert said in line


def test_a_run_that_holds_out_nothing_says_how_to(commands, training_material):
    repository = training_material.create_run("org/nothing-held-out", run_id="open-book", held_out_share=0.0)
    publish_weights(training_material, repository, 1)
    assert "run create --set held_out_share=0.01" in the_line(commands.run("evaluate", repository))


def test_a_run_without_a_checkpoint_says_so(commands, training_material):
    repository = training_material.create_run("org/no-weights", run_id="young", held_out_share=0.1)
    assert "has published no checkpoint yet" in the_line(commands.run("evaluate", repository))


def test_a_language_model_has_a_loss_and_a_perplexity(commands, training_material, tmp_path):
    model = dict(model_type="bert", hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    repository = "org/evaluated-language"
    done = commands.run(
        *training_material.language_arguments(repository, "fill-mask", model, run_id="words", held_out_share=0.4)
    )
    assert done.returncode == 0, done.stderr
    publish_weights(training_material, repository, 3)
    done = commands.run("evaluate", repository, "--compare", repository, "--output", str(tmp_path), "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    loss, perplexity = facts["first"]["figures"]
    assert perplexity["value"] == pytest.approx(math.exp(loss["value"])) and perplexity["low"] < perplexity["high"]
    assert [(item["name"], item["verdict"], item["difference"]) for item in facts["differences"]] == [
        ("loss", "same", 0.0)
    ]
    folder = str(training_material.snapshot(repository))  # as an auxiliary peer evaluates its checkpoints
    done = commands.run("evaluate", folder, "--output", str(tmp_path / "folder"), "--json")
    assert done.returncode == 0, done.stderr
    of_folder = json.loads(done.stdout)
    assert of_folder["figures"] == facts["first"]["figures"]
    assert of_folder["subject"]["weights"] == facts["first"]["subject"]["weights"] != ""
