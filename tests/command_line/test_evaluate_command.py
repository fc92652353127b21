"""`dalle-collab evaluate` on the embedded Hub: figures, comparisons, what is left out, and mistakes."""

import json
import math
import threading

import pytest
from published_runs import the_line
from support_files import ROOT
from synthetic_language import sorted_sentences, tagged_sentences
from transformers import ByT5Tokenizer

from pipelines.tasks.choice import open_task
from pipelines.tools.demo.shipped_models import PRETRAINED_CLIP

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


@pytest.mark.long
def test_the_snippet_of_the_documents_measures_what_the_command_measures(commands, run_with_weights, tmp_path):
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    snippet = page.partition("\n## Measure\n")[2].partition("```python\n")[2].partition("```")[0]
    given = f'"{run_with_weights}", output="{tmp_path}", '
    (program := tmp_path / "measure.py").write_text(
        snippet.replace('"my-org/birds", ', given).replace("num_records=100", "num_records=20"), encoding="utf-8"
    )
    done = commands.run_program(program)
    assert done.returncode == 0, done.stderr
    names = [line.split()[0] for line in done.stdout.splitlines()[:-1]]
    assert names[:3] == ["loss", "caption_loss", "picture_loss"] and "CLIP" in done.stdout.splitlines()[-1]


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
        (["--precision", "int3"], "There is no precision 'int3'. Expected float32, bfloat16, float16, int8."),
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


@pytest.fixture(scope="module")
def language_run(commands, training_material):
    model = dict(model_type="bert", hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    repository = "org/evaluated-language"
    done = commands.run(
        *training_material.language_arguments(repository, "fill-mask", model, run_id="words", held_out_share=0.4)
    )
    assert done.returncode == 0, done.stderr
    publish_weights(training_material, repository, 3)
    return repository


def test_a_language_model_has_a_loss_and_a_perplexity(commands, training_material, language_run, tmp_path):
    done = commands.run("evaluate", language_run, "--compare", language_run, "--output", str(tmp_path), "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    loss, perplexity = facts["first"]["figures"]
    assert perplexity["value"] == pytest.approx(math.exp(loss["value"])) and perplexity["low"] < perplexity["high"]
    assert [(item["name"], item["verdict"], item["difference"]) for item in facts["differences"]] == [
        ("loss", "same", 0.0)
    ]
    folder = str(training_material.snapshot(language_run))  # as an auxiliary peer evaluates its checkpoints
    done = commands.run("evaluate", folder, "--output", str(tmp_path / "folder"), "--json")
    assert done.returncode == 0, done.stderr
    of_folder = json.loads(done.stdout)
    assert of_folder["figures"] == facts["first"]["figures"]
    assert of_folder["subject"]["weights"] == facts["first"]["subject"]["weights"] != ""


@pytest.fixture(scope="module")
def labelled(training_material, tmp_path_factory):
    """The options for two labelled datasets of the Hub, one with names of classes and one with texts."""
    tagged = [dict(tokens=words, ner_tags=tags) for words, tags in tagged_sentences(150, are_new=False)]
    classed = [dict(text=text, kind=kind) for text, kind in sorted_sentences(300, are_new=False)]
    for name, records in (("org/tagged-words", tagged), ("org/sorted-texts", classed)):
        folder = tmp_path_factory.mktemp("labelled")
        (folder / "train.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        training_material.api.create_repo(name, repo_type="dataset")
        training_material.api.upload_folder(repo_id=name, repo_type="dataset", folder_path=str(folder))
    few = (
        "--train-examples",
        "40",
        "--test-examples",
        "20",
        "--seeds",
        "2",
        "--passes",
        "1",
        "--learning-rate",
        "1e-3",
    )
    return (
        "--token-classification",
        "org/tagged-words",
        "--sentence-classification",
        "org/sorted-texts,label=kind",
        *few,
    )


@pytest.mark.long
def test_a_language_model_is_fine_tuned_on_labelled_text(commands, language_run, labelled, tmp_path):
    wrong = ("--sentence-classification", "org/sorted-texts", "--token-classification", "org/nowhere:bn")
    arguments = ("evaluate", language_run, *labelled, *wrong, "--output", str(tmp_path))
    done = commands.run(*arguments)
    assert done.returncode == 0, done.stderr
    facts = json.loads((tmp_path / "evaluation.json").read_text())
    assert [figure["name"].partition("@")[0] for figure in facts["figures"]] == [
        *("loss", "perplexity", "entity_f1", "entity_f1_random", "entity_f1_gain"),
        *("accuracy", "accuracy_random", "accuracy_gain", "majority_accuracy"),
    ]
    assert facts["settings"]["finetuning"]["num_seeds"] == 2
    assert [(item["repository"], item["classes"], item["test"]) for item in facts["settings"]["datasets"]] == [
        ("org/tagged-words", 5, 20),
        ("org/sorted-texts", 2, 20),
    ]
    assert set(facts["left_out"]) == {"accuracy@org/sorted-texts", "entity_f1@org/nowhere:bn"}
    assert "has none of the columns label, labels, category; it has text, kind" in str(facts["left_out"])
    assert "The dataset org/nowhere:bn cannot be read" in str(facts["left_out"]) and "left out" in done.stdout
    assert "fine-tuning: 12 of 12 steps on org/tagged-words" in done.stderr
    again = commands.run(*arguments)
    assert json.loads((tmp_path / "evaluation.json").read_text())["figures"] == facts["figures"], again.stderr


@pytest.mark.long
def test_other_weights_with_a_tokenizer_of_python_are_compared_by_their_loss(
    commands, training_material, language_run, labelled, tmp_path
):
    folder = publish_weights(training_material, "org/evaluated-language", 3)
    ByT5Tokenizer(extra_ids=0).save_pretrained(folder)
    done = commands.run("evaluate", language_run, *labelled, "--compare", str(folder), "--output", str(tmp_path))
    assert done.returncode == 0, done.stderr
    facts = json.loads((tmp_path / "comparison.json").read_text())
    assert [item["name"] for item in facts["differences"]] == ["loss"] and len(facts["first"]["figures"]) == 9
    assert "ByT5Tokenizer, which is written in Python" in facts["second"]["left_out"]["entity_f1@org/tagged-words"]
    assert "accuracy@org/sorted-texts,label=kind is left out: The tokenizer of" in done.stdout


@pytest.mark.long
def test_a_hub_that_goes_away_after_the_reading_is_not_missed(commands, hub, language_run, labelled, tmp_path):
    arguments = ("evaluate", language_run, *labelled, "--passes", "4", "--output", str(tmp_path))
    done = []
    worker = threading.Thread(target=lambda: done.append(commands.run(*arguments)))
    worker.start()
    while worker.is_alive() and not list(tmp_path.glob("fine-tuned/*.json")):
        worker.join(0.05)
    hub.stop()
    worker.join()
    hub.start()
    assert done[0].returncode == 0, done[0].stderr
    facts = json.loads((tmp_path / "evaluation.json").read_text())
    assert len(facts["figures"]) == 9 and facts["left_out"] == {}


@pytest.mark.long
def test_labelled_text_is_for_language_runs(commands, run_with_weights):
    line = the_line(commands.run("evaluate", run_with_weights, "--sentence-classification", "org/tagged-words"))
    assert f"{run_with_weights} is a text-to-image run; labelled text is for language runs" in line
    assert "'org/x,words' names no labelled dataset" in the_line(
        commands.run("evaluate", run_with_weights, "--token-classification", "org/x,words")
    )
