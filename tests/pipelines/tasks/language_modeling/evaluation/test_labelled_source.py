"""What names a labelled dataset, and which of its columns and splits are used."""

import pytest

from pipelines.tasks.language_modeling.evaluation.labelled_source import SENTENCES, TOKENS, LabelledSource


def test_a_text_names_a_dataset_its_configuration_and_whatever_is_unusual():
    source = LabelledSource.from_text(TOKENS, "org/names:bn,text=words,label=kinds,test=unseen")
    assert (source.repository, source.configuration) == ("org/names", "bn")
    assert source.name == "org/names:bn,text=words,label=kinds,test=unseen"
    assert LabelledSource.from_text(TOKENS, "org/names").name == "org/names"
    assert source.columns(["words", "tokens", "kinds"]) == ("words", "kinds")
    assert source.splits(["train", "test", "unseen"])["test"] == "unseen"


def test_columns_match_in_any_case_and_equal_names_first():
    source = LabelledSource(kind=SENTENCES, repository="org/x", label="TOPIC")
    assert source.columns(["Text", "Topic", "topic"]) == ("Text", "Topic")
    assert source.columns(["Topic", "TOPIC", "SENTENCE"]) == ("SENTENCE", "TOPIC")


@pytest.mark.parametrize(
    "text", ["", ":bn", "org/x,text", "org/x,text=", "org/x,kind=a", "org/x,text=a,text=b", "org/x,"]
)
def test_a_text_that_names_none_is_refused(text):
    with pytest.raises(ValueError, match=r"names no labelled dataset. Expected REPO"):
        LabelledSource.from_text(SENTENCES, text)


@pytest.mark.parametrize(
    ("there", "validation", "test"),
    [
        (["train", "validation", "test"], "validation", "test"),
        (["train", "dev", "test"], "dev", "test"),
        (["train", "validation"], "train", "validation"),
        (["train", "test"], "train", "test"),
        (["train"], "train", "train"),
        (["test", "train", "extra"], "train", "test"),
    ],
)
def test_what_has_no_split_of_its_own_comes_from_training(there, validation, test):
    assert LabelledSource(kind=TOKENS, repository="org/x").splits(there) == dict(
        train="train", validation=validation, test=test
    )


def test_what_is_missing_is_named_with_what_is_there():
    source = LabelledSource(kind=SENTENCES, repository="org/x", test="unseen")
    with pytest.raises(ValueError, match=r"org/x,test=unseen has no split unseen; it has train, test\."):
        source.splits(["train", "test"])
    with pytest.raises(
        ValueError, match=r"none of the columns text, sentence, content; it has body, label\. .*text=COL"
    ):
        source.columns(["body", "label"])
    with pytest.raises(ValueError, match=r"org/x,label=topic has no column topic; it has text, label\. .*label=COLUMN"):
        LabelledSource(kind=SENTENCES, repository="org/x", label="topic").columns(["text", "label"])
