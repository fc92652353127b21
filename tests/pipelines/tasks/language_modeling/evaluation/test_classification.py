"""What a short fine-tuning shows of a checkpoint: pretraining helps, the same figures again, going on after a stop."""

import copy
import dataclasses
import json
import math

import pytest
import torch
from synthetic_language import BERT, LLAMA, SEQUENCE_LENGTH, sorted_sentences, tagged_sentences, trained_model
from transformers import AutoModelForCausalLM, OPTConfig

from pipelines.features.evaluation.comparison import compare
from pipelines.features.evaluation.measurement import Measurement
from pipelines.tasks.language_modeling.evaluation.classification import LanguageContext, measure_classification
from pipelines.tasks.language_modeling.evaluation.finetuning import (
    ClassifierOptions,
    fine_tune,
    new_classifier,
    predict,
)
from pipelines.tasks.language_modeling.evaluation.labelled_samples import labelled_samples
from pipelines.tasks.language_modeling.evaluation.labelled_source import SENTENCES, TOKENS, LabelledSource
from pipelines.tasks.language_modeling.evaluation.labelled_text import Example, LabelledText, joined

pytestmark = pytest.mark.slow
OPTIONS = ClassifierOptions(num_seeds=3, num_passes=6, learning_rates=(2e-3,))


def tagged(number, are_new):
    return tuple(joined(words, tags) for words, tags in tagged_sentences(number, are_new=are_new))


def classed(number, are_new):
    return tuple(Example(text, (kind,)) for text, kind in sorted_sentences(number, are_new=are_new))


TEXTS = {
    kind: LabelledText(
        source=LabelledSource(kind=kind, repository="org/names"),
        classes=classes,
        parts=dict(train=make(96, False), validation=make(96, False)[-24:], test=make(60, True)),
    )
    for kind, classes, make in (
        (TOKENS, ("B-LOC", "B-PER", "I-LOC", "I-PER", "O"), tagged),
        (SENTENCES, ("people", "places"), classed),
    )
}


@pytest.fixture(scope="module", params=["masked", pytest.param("causal", marks=pytest.mark.long)])
def parts(request):
    sizes = BERT if request.param == "masked" else LLAMA
    model, tokenizer = trained_model(sizes)
    return LanguageContext(model=model, tokenizer=tokenizer, sees_both_sides=sizes is BERT, max_tokens=SEQUENCE_LENGTH)


def measured(parts, text, folder, options=OPTIONS, on_progress=lambda *_: None):
    result = Measurement()
    measure_classification(result, parts, text, options, folder, on_progress)
    return result


def figures(result):
    return {figure.name.partition("@")[0]: figure for figure in result.figures}


def test_pretraining_tells_persons_from_towns_and_people_from_places(parts, tmp_path):
    for kind, metric in ((TOKENS, "entity_f1"), (SENTENCES, "accuracy")):
        result = measured(parts, TEXTS[kind], tmp_path)
        found = figures(result)
        assert found[metric].value > found[f"{metric}_random"].value + 0.15
        assert found[f"{metric}_gain"].low > 0 and found[metric].num_items == 3
        tests, random, gains = (result.drawings[f"{metric}{name}@org/names"] for name in ("", "_random", "_gain"))
        assert gains == [after - before for after, before in zip(tests, random, strict=True)]
        deviation = math.sqrt(sum((value - sum(tests) / 3) ** 2 for value in tests) / 2)
        assert f"std {deviation:.3f}, learning rate 0.002" in found[metric].meaning
    counts = [
        sum(example.labels == (kind,) for example in TEXTS[SENTENCES].parts["test"]) for kind in ("people", "places")
    ]
    assert found["majority_accuracy"].value in [count / 60 for count in counts]


def test_the_same_again_is_equal_and_what_is_finished_is_not_done_again(parts, tmp_path, capsys):
    few = dataclasses.replace(OPTIONS, num_seeds=2, num_passes=1, learning_rates=(1e-4, 1e-3))
    first = measured(parts, TEXTS[SENTENCES], tmp_path / "a", few)
    again = measured(parts, TEXTS[SENTENCES], tmp_path / "b", few)
    assert first.figures == again.figures and first.drawings == again.drawings
    assert {item.verdict for item in compare(first, again)} == {"same"}
    assert not capsys.readouterr().out, "the trainer writes nothing among the command's JSON"
    kept = sorted((tmp_path / "b").iterdir())
    assert [path.name for path in kept] == [path.name for path in sorted((tmp_path / "a").iterdir())]
    assert len(kept) == 2 * (2 + 1)
    kept[0].unlink()
    kept[1].write_text('{"validation": 0.5')
    trained = []
    third = measured(parts, TEXTS[SENTENCES], tmp_path / "b", few, lambda *report: trained.append(report))
    assert third.drawings == first.drawings
    steps = 96 // 16
    assert len(trained) == 6 + 2 * (steps - 1)
    assert trained[-1][:3] == ("fine-tuning", 6 * steps, 6 * steps)
    assert json.loads(kept[1].read_text())["validation"] <= 1


def test_the_learning_rate_is_the_one_that_is_best_on_validation_examples(parts, tmp_path):
    options = dataclasses.replace(OPTIONS, num_seeds=1, learning_rates=(1e-7, 1e-3))
    found = figures(measured(parts, TEXTS[SENTENCES], tmp_path, options))
    assert "learning rate 0.001" in found["accuracy"].meaning and "std" not in found["accuracy"].meaning
    assert found["accuracy"].low == found["accuracy"].value == found["accuracy"].high


def test_the_head_is_the_same_with_and_without_pretraining(parts):
    for kind in (TOKENS, SENTENCES):
        pretrained, random = (
            new_classifier(kind, 3, parts.model, parts.pad_token_id, 5, is_pretrained=choice)
            for choice in (True, False)
        )
        own = dict(parts.model.base_model.named_parameters())
        others = dict(random.named_parameters())
        for name, tensor in pretrained.named_parameters():
            body = name.removeprefix(f"{pretrained.base_model_prefix}.")
            is_body = body != name and body in own
            assert torch.equal(tensor, own[body] if is_body else others[name]), name
        assert not all(torch.equal(tensor, others[name]) for name, tensor in pretrained.named_parameters())


def test_padding_changes_no_prediction(parts, tmp_path):
    for kind in (TOKENS, SENTENCES):
        samples = labelled_samples(
            TEXTS[kind], parts.tokenizer, max_tokens=SEQUENCE_LENGTH, sees_both_sides=parts.sees_both_sides
        )
        lengths = {len(sample.features["input_ids"]) for sample in samples["test"]}
        classifier = new_classifier(kind, 5, parts.model, parts.pad_token_id, 1, is_pretrained=True)
        trainer = fine_tune(
            classifier, samples["train"], parts.tokenizer, dataclasses.replace(OPTIONS, num_passes=1),
            learning_rate=1e-3, seed=0, folder=tmp_path, on_step=lambda step: None,
        )  # fmt: skip
        alone = [predict(trainer, [sample])[0] for sample in samples["test"]]
        assert len(lengths) > 1 and predict(trainer, samples["test"]) == alone and not list(tmp_path.iterdir())


def test_a_checkpoints_settings_do_not_change_what_a_classifier_is_trained_for(parts, tmp_path):
    few = dataclasses.replace(OPTIONS, num_seeds=1, num_passes=1)
    expected = measured(parts, TEXTS[SENTENCES], tmp_path / "a", few).drawings
    model = copy.deepcopy(parts.model)
    for name, value in dict(problem_type="multi_label_classification", output_hidden_states=True).items():
        setattr(model.config, name, value)
    odd = dataclasses.replace(parts, model=model)
    assert measured(odd, TEXTS[SENTENCES], tmp_path / "b", few).drawings == expected


def test_an_architecture_without_classifier_is_named(parts):
    config = OPTConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, ffn_dim=16,
        max_position_embeddings=16, word_embed_proj_dim=16,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config)
    with pytest.raises(ValueError, match=r"no model for token classification of type opt\."):
        new_classifier(TOKENS, 3, model, 1, 0, is_pretrained=True)
    classifier = new_classifier(SENTENCES, 3, model, 1, 0, is_pretrained=True)
    name = "decoder.embed_tokens.weight"
    assert torch.equal(classifier.base_model.get_parameter(name), model.base_model.get_parameter(name))
