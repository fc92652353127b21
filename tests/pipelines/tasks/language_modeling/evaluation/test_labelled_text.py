"""Labelled datasets of every shape, read by the real `datasets`: what is used, and what is refused in one line."""

import json

import datasets
import pytest

from pipelines.tasks.language_modeling.evaluation.labelled_source import SENTENCES, TOKENS, LabelledSource
from pipelines.tasks.language_modeling.evaluation.labelled_text import read_labelled_text

AMOUNTS = dict(train=40, validation=20, test=30)
TAGS, WORDS = ["O", "B-PER", "I-PER"], ["the", "tall", "man"]
TAGGED = [dict(tokens=[*WORDS, str(n)], ner_tags=[0, 0, 1, 2]) for n in range(60)]
SORTED = [dict(text=f"text {n}", label=n // 100) for n in range(300)]


@pytest.fixture(autouse=True)
def caches(monkeypatch, tmp_path):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))


def written(folder, **splits):
    """Write JSON lines by split; return the folder as a dataset's name."""
    folder.mkdir(exist_ok=True)
    for split, records in splits.items():
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(folder)


def with_names(folder, records, feature):
    """Write a Parquet file whose labels are numbers with names."""
    label = next(name for name in records[0] if name in ("label", "ner_tags"))
    dataset = datasets.Dataset.from_list(records)
    features = dataset.features.copy()
    features[label] = feature
    (folder / "data").mkdir(parents=True)
    datasets.disable_progress_bars()
    dataset.cast(features).to_parquet(folder / "data" / "train-00000.parquet")
    return str(folder)


def source(kind, place, **settings):
    return LabelledSource(kind=kind, repository=place, **settings)


def test_names_of_classes_come_from_the_dataset_and_a_sorted_one_gives_all(tmp_path):
    place = with_names(tmp_path / "a", SORTED, datasets.ClassLabel(names=["first", "second", "third"]))
    found = read_labelled_text(source(SENTENCES, place), AMOUNTS)
    assert found.classes == ("first", "second", "third")
    assert {part: len(examples) for part, examples in found.parts.items()} == AMOUNTS
    texts = [{example.text for example in examples} for examples in found.parts.values()]
    assert not (texts[0] & texts[1] or texts[0] & texts[2] or texts[1] & texts[2])
    labels = {example.labels[0]: example.text for example in found.parts["train"]}
    assert all(int(text.split()[1]) // 100 == found.classes.index(label) for label, text in labels.items())
    assert len(labels) == 3, "not the first records alone"
    assert read_labelled_text(source(SENTENCES, place), AMOUNTS) == found


def test_tags_are_read_as_numbers_with_names_and_as_texts(tmp_path):
    numbers = with_names(tmp_path / "a", TAGGED * 3, datasets.List(datasets.ClassLabel(names=TAGS)))
    texts = [dict(words=record["tokens"], tags=[TAGS[tag] for tag in record["ner_tags"]]) for record in TAGGED * 3]
    for place in (numbers, written(tmp_path / "b", train=texts)):
        found = read_labelled_text(source(TOKENS, place), AMOUNTS)
        assert set(found.classes) == set(TAGS)
        example = found.parts["test"][0]
        assert example.labels == ("O", "O", "B-PER", "I-PER")
        assert [example.text[start:end] for start, end in example.words][:3] == WORDS


def test_the_datasets_own_splits_and_the_named_columns_are_used(tmp_path):
    def records(word):
        return [dict(body=f"{word} {n}", topic="ab"[n % 2], text=None) for n in range(200)]

    place = written(tmp_path / "a", train=records("one"), validation=records("two"), test=records("three"))
    named = source(SENTENCES, place, text="body", label="topic")
    found = read_labelled_text(named, AMOUNTS)
    assert {part: {example.text.split()[0] for example in found.parts[part]} for part in found.parts} == dict(
        train={"one"}, validation={"two"}, test={"three"}
    )
    other = read_labelled_text(source(SENTENCES, place, text="body", label="topic", test="validation"), AMOUNTS)
    assert {example.text.split()[0] for example in other.parts["test"]} == {"two"}


def test_what_has_no_text_or_no_label_is_passed_over(tmp_path):
    useless = [dict(text=None, label="a"), dict(text=" \n", label="a"), dict(text="x", label=None)]
    place = written(
        tmp_path / "a", train=[*useless * 50, *(record | dict(label=str(record["label"])) for record in SORTED)]
    )
    found = read_labelled_text(source(SENTENCES, place), AMOUNTS)
    assert found.classes == ("0", "1", "2")
    odd = [dict(tokens=["a", "b"], ner_tags=["O"]), dict(tokens=["a", None], ner_tags=["O", "O"])]
    blank = [dict(tokens=[f"man{n}", " ", ""], ner_tags=["B-PER", "O", "O"]) for n in range(200)]
    found = read_labelled_text(source(TOKENS, written(tmp_path / "b", train=odd * 50 + blank, test=blank)), AMOUNTS)
    assert {example.labels for example in found.parts["test"]} == {("B-PER",)}


@pytest.mark.parametrize(
    ("kind", "records", "message"),
    [
        (SENTENCES, [dict(body="a", label="b")], r"none of the columns text, sentence, content; it has body, label"),
        (SENTENCES, SORTED[:19], r"has \d+ labelled examples for .*; expected 20 or more"),
        (SENTENCES, [dict(text=f"a {n}", label="one") for n in range(300)], r"for test have one class, 'one'"),
        (SENTENCES, [dict(text=["a"], label="b")] * 200, r"hold list and str; expected a text and a class"),
        (SENTENCES, [dict(text="a", label=0.5)] * 200, r"hold str and float; expected a text and a class"),
        (TOKENS, [dict(tokens="a", ner_tags="b")] * 200, r"hold str and str; expected lists of words and of tags"),
        (TOKENS, [dict(tokens=["a"], ner_tags=["NOUN"])] * 200, r"not entities' tags: 'NOUN'. Expected O, B-TYPE"),
        (TOKENS, TAGGED, r"not entities' tags: '0'. Expected O, B-TYPE and I-TYPE, as names"),
        (TOKENS, [dict(tokens=["a", str(n)], ner_tags=["O", "O"]) for n in range(200)], r"no entities among the 30"),
        (TOKENS, [dict(tokens=["a"], ner_tags=None)] * 200, r"has 0 labelled examples for"),
    ],
)
def test_a_dataset_of_no_use_says_why(tmp_path, kind, records, message):
    with pytest.raises(ValueError, match=message):
        read_labelled_text(source(kind, written(tmp_path / "a", train=records)), AMOUNTS)


def test_a_place_without_a_dataset_says_so(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"The dataset .*empty cannot be read: "):
        read_labelled_text(source(SENTENCES, str(tmp_path / "empty")), AMOUNTS)
